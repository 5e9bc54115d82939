"""Directories: what names lead to, and what may be made or removed.

`tree_directory` is what all of them share. `root` is the mount point, `topic` a topic; `dot_names`
are what it has besides partitions (`.kv`, `.raw`, `.meta`, …), `control_directory` its `.control`.
`about` is `.kafkafs`, the daemon as files.

What the names lead to is made in `files`, `append`, `control` and `owner`; which partitions there
are is the data directory's to say.
"""
