"""Files that show something: nodes, and their handles for reading.

`view_file` is a partition in a view; `start_file` (`N@…`) begins somewhere else in it, as
`start_names` and `start_points` say, and `follow_file` (`.follow/N`) has positions that never move.
`raw_file` shows the bytes on the disk. `virtual_file` is any text that is made at open, `meta` what
`.meta/N` shows.

How a file is written to is in `append` and `control`.
"""
