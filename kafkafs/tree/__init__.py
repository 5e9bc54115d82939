"""The tree of the mounted file system: nodes and handles, without FUSE.

`filesystem` is what `kafkafs.fuse.operations` talks to; nodes (`inodes`) stand for names, handles
(`handles`) for open files, `jobs` for work that goes on after the request which asked for it. What
all of them know of their mount is its `context`.
`directories` lead to `files`, which show a `partition`; `append` writes to one, `control` and
`owner` take lines and act on them. Nothing here knows trio or pyfuse3.

**Threads.** One thread owns the tree (trio's), and answers all requests. It asks for attributes,
names, handles, extended attributes and bytes with `at_once` (`storage.waiting`): what would wait
for the disk, for another thread or for long work raises BlockingIOError, with no state changed, and
is asked for again in a worker thread, where it waits. Everything else runs on the owner's thread,
except the structural changes (`Directory.mkdir`, `create`, `rmdir`, `Node.set_attributes`) and the
writes of `structural` handles, which write settings files: they run in a worker thread, one at a
time.

**Errors** are OSError with the errno that the user shall see, or StorageError, for which
`kafkafs.fuse.operations` has the table.
"""
