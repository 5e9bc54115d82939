"""A data directory: its lock, its topics and partitions, its checkpoints, its periodic work.

`manager` has one open and is what users of this library hold. Its parts: `lock` keeps other writers
out, `opening` opens all logs, each by the `loader`; `topics` are the partitions by topic,
`creation` makes some, `deletion` deletes a topic and takes that back, `deleted` removes what was
deleted; `checkpoints` keeps the offset checkpoints, `partition_modes` gives directories and files
their modes. `contents` tells a data directory from others before any is opened.

`retain` carries retention out; `reserve` keeps disk space free for deletions and checkpoints,
`make_room` frees some where a disk is found full; `detach` makes a broker's directory our own.
"""
