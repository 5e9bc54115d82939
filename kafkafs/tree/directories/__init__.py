"""Directories: they look names up, and create and remove entries.

`tree_directory` is the base of all. `root` is the mount point, `topic` a topic; `dot_names` has its
directories and files besides partitions (`.kv`, `.raw`, `.meta`, …), `control_directory` its
`.control`. `about` is `.kafkafs`, the daemon as files. The nodes of files are in `files`, `append`,
`control` and `owner`.
"""
