"""The words of a sealed segment: a file that says in which of its records a word may be.

`build` writes `BASE.words`, `words` looks entries up in it, `query` says which entries bytes have,
`layout` documents the file. The file is disposable: a search without it reads the whole segment,
and a damaged, incomplete or foreign file never hides a record.

Not here: when a file is built or removed, conditions (`split.narrow`).
"""
