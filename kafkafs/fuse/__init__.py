"""The FUSE side: the daemon, its session loop, and the adapter between pyfuse3 and the tree.

`daemon` mounts and serves, `mount_point` looks after the directory that it mounts on (with `users`,
who keeps it busy, and `utab`, by which umount(8) finds our helper), `background` puts a daemon
there, `user` has it become another user. `live_mounts` lists what is mounted. `operations` answers
requests, with `listing` for open directories, `answers` for pyfuse3's structures and errnos, and
`retries` for what has failed and is tried again.
`turns` keeps the order of changes to a slow log. `session_loop` takes requests, `threads` runs
calls and jobs in worker threads, `notify` tells the kernel what to forget. `housekeeping` flushes,
writes checkpoints and sweeps, `schedule` begins retention, compaction and checks by the clock.
"""
