"""Compaction: of the records of each key, only the latest one need stay."""
