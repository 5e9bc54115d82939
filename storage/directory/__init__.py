"""A data directory: its lock, its topics and partitions, its checkpoints, its periodic work.

`data_directory` is an open directory, and creates topics and partitions. Users of this library work
with a `storage.manager.LogManager`, which also has the groups and adoptions. The parts: `lock`
excludes other writers; `open` finds and opens all logs, `partition` loads one; `topics` lists the
partitions by topic; `deletion` deletes and undeletes a topic; `deleted` removes deleted files;
`checkpoints` writes the offset checkpoints; `partition_modes` sets the modes of directories and
files, `root_owner` keeps those of the mount point. `contents` recognises a data directory before it
is opened, and `top_level` decides whose entries count in a directory that others may write.

`retain` carries out retention and deletes records; `reserve` reserves disk space for deletions and
checkpoints; `make_room` frees some on a full disk; `detach` makes a broker's directory our own;
`mirror` refuses other writers of a mirror, and ends it.
"""
