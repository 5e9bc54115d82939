"""The tree of the mounted file system: nodes and handles, without FUSE.

`filesystem` is what `kafkafs.fuse.operations` talks to; nodes (`inodes`) stand for names, handles
(`handles`) for open files, `jobs` for work that goes on after the request which asked for it. What
all of them know of their mount is its `context`.
`directories` lead to `files`, which show a `partition`; `append` writes to one, `control` and
`owner` take lines and act on them. Nothing here knows trio or pyfuse3.

**Waiting.** What could wait for a disk takes `wait: bool`. With wait=False it raises
BlockingIOError instead of waiting, with no state changed, and the caller repeats it in a worker
thread with wait=True. What takes no `wait` runs on the thread that owns the tree (trio's), except
the structural changes (`Directory.mkdir`, `create`, `rmdir`, `Node.set_attributes`), and the
writes of `structural` handles, which write settings files: they may run in a worker thread, one at
a time.

**Errors** are OSError with the errno that the user shall see, or StorageError, for which
`kafkafs.fuse.operations` has the table.
"""
