"""Refuses the requests that this file system does not serve, and counts them.

pyfuse3's own answer would be ENOSYS.
"""

from __future__ import annotations

import errno
from typing import NoReturn

import pyfuse3

from kafkafs.metrics import MountCounters


class RefusedOperations(pyfuse3.Operations):
    """The handlers that always refuse."""

    def __init__(self, counters: MountCounters) -> None:
        super().__init__()
        self._counters = counters
        self._requests = counters.requests

    def _count_error(self, operation: str, number: int) -> None:
        name = errno.errorcode.get(number, str(number))
        self._counters.errors[operation, name] += 1

    def _refuse(self, operation: str, number: int) -> NoReturn:
        self._requests[operation] += 1
        self._count_error(operation, number)
        raise pyfuse3.FUSEError(number)

    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        self._refuse("mknod", errno.EPERM)

    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        self._refuse("symlink", errno.EPERM)

    async def link(
        self,
        inode: int,
        new_parent_inode: int,
        new_name: bytes,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        self._refuse("link", errno.EPERM)

    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        self._refuse("rename", errno.EPERM)

    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        self._refuse("readlink", errno.EINVAL)

    async def setxattr(
        self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext
    ) -> None:
        self._refuse("setxattr", errno.EOPNOTSUPP)

    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._refuse("removexattr", errno.EOPNOTSUPP)
