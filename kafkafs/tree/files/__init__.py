"""Files to read: nodes, and their handles for reading.

`view_file` is a partition in a view. `start_file` (`N@…`, `.snapshot/N`) is a part of it:
`start_names` parses such a name, `start_points` finds its offsets. `follow_file` (`.follow/N`,
`.ship/N`) has positions that never change. `raw_file` shows the files on the disk. `text_file`
is any text that is made at open, `meta` makes the text of `.meta/N`. `append` and `control` write
to files.
"""
