"""Consumer groups as files: what they show, and what is written to them.

`positions` parses a line that commits, and finds the offset that it means; `group_facts` makes the
texts; `group_files` the files. `claims` shares partitions among consumers, and `claim_file` is the
file that they open. The directories that hold them are in
`kafkafs.tree.directories.group_directories`, the spelling of groups' names in
`kafkafs.tree.files.group_names`, the positions themselves in `storage.groups`.
"""
