"""Conditions on records, in SQL's words: `timestamp >= '2026-11-22T08:00' and key = 'alice'`.

`parse` makes a `Condition` from text, by sqlglot's parser; `literals` reads its times and strings.
A condition computes the partitions, offsets and times for which it may be true (`condition`,
`intervals`), so that readers skip the others; `storage.record.columns._predicate` decides about
single records.

Not here: reading (`storage.split`), Spark, the command line.
"""
