"""Data directories on a disk or in an object store.

`location` parses a directory's place, and `followed_directory` opens the directory for planning.
`arrow_files` and `open_object` read object stores. `owner_client` sends requests to a directory's
owner.
"""
