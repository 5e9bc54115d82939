"""The tree of the mounted file system: nodes and handles, without FUSE.

`kafkafs.fuse.operations` calls `filesystem`. A node (`inodes`) stands for an inode, a handle
(`handles`) for an open file (`open_files`), a job (`jobs`) for work that outlives the request that
began it. All of them share the mount's `context`, whose `events` go to `.kafkafs/log` and whose
`notices` tell the kernel what to forget; `permissions` has owners and modes. `names` is the page
of all names; `directories` lead to `files`, which show a `partition`; `append` writes to one,
`control` and `owner` take lines and act on them. Nothing here knows trio or pyfuse3.

**Threads.** One thread, the owner's (trio's), answers all requests. It calls lookup, getattr, open,
getxattr and read with `at_once` (`storage.waiting`): a call that would wait for the disk, another
thread or long work raises BlockingIOError and changes nothing, and is repeated in a worker thread,
where it waits. Everything else runs on the owner's thread, except the structural changes
(`Directory.mkdir`, `create`, `rmdir`, `Node.set_attributes`) and the writes of `structural`
handles, which write settings files: these run in a worker thread, one at a time.

**Errors** are OSError with the errno for the user, or StorageError, which `kafkafs.fuse.operations`
translates.
"""
