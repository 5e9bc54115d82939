"""A data directory: its lock, its topics and partitions, its checkpoints, its periodic work.

`manager` opens a directory, and users of this library work with its `LogManager`. Its parts: `lock`
excludes other writers; `open` opens all logs, `partition` loads or creates one; `topics` lists the
partitions by topic; `creation` makes partitions; `deletion` deletes and undeletes a topic;
`deleted` removes deleted files; `checkpoints` writes the offset checkpoints; `partition_modes` sets
the modes of directories and files. `contents` recognises a data directory before it is opened.

`retain` carries out retention; `reserve` reserves disk space for deletions and checkpoints;
`make_room` frees some on a full disk; `detach` makes a broker's directory our own.
"""
