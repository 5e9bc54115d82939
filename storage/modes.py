"""Compares owners and permission bits, as values, and computes those of a partition's directory.

Pure: no file is touched.
"""

from __future__ import annotations

Ownership = tuple[int, int, int]
"""(permission bits, uid, gid)"""


def within(given: Ownership, limit: Ownership) -> int:
    """Return the permission bits of `given` that grant no user more than `limit` grants him.

    The members of one class may be in several classes of the other; such a class gets the bits that
    all of them have. root is not considered, since no bits restrict it.
    """
    mode, uid, gid = given
    limit_mode, limit_uid, limit_gid = limit
    owners, groups, others = limit_mode >> 6, limit_mode >> 3, limit_mode
    # The bits of the limit for a user who may be its owner, or a member of its group.
    perhaps_owner = 7 if limit_uid == uid else owners
    perhaps_member = 7 if limit_gid == gid else groups
    owner = owners if limit_uid == uid else groups & others
    group = perhaps_owner & (groups if limit_gid == gid else groups & others)
    other = perhaps_owner & perhaps_member & others
    allowed = (owner & 7) << 6 | (group & 7) << 3 | other & 7
    return mode & (allowed | ~0o777)


def of_directory(uid: int, gid: int, topic: Ownership, partition: Ownership) -> int:
    """Return the permission bits of a partition's directory of the owner `uid` and the group `gid`,
    who have all rights.

    Other users may read it if they may reach and read the partition through its topic's directory.
    They may never write: only the log makes files there.
    """
    search, read = topic[0] & 0o111, partition[0] & 0o444
    reached = within((0o755, uid, gid), (search | search << 2, *topic[1:]))
    return 0o700 | within((reached, uid, gid), (read | read >> 2, *partition[1:]))


def of_file(directory_mode: int) -> int:
    """Return the permission bits of the files in a directory with these bits."""
    return 0o600 | directory_mode & 0o044
