"""Conditions on records, in SQL's words: `timestamp >= '2026-11-22T08:00' and key = 'alice'`.

`parse` makes a `Condition` of text, by sqlglot's parser; `literals` reads its times and strings. A
condition says which partitions, offsets and times it can hold for (`condition`, `intervals`), so
that readers leave out the rest; `storage.record.columns._predicate` decides about single records.

Not here: reading (`storage.split`), Spark, the command line.
"""
