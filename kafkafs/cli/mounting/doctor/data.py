"""Checks a data directory, its file system, and the process that has it open."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from kafkafs.cli.common.mounts import mount_that_writes
from kafkafs.cli.common.serving import as_root, as_user
from kafkafs.cli.mounting.doctor import Check, Finding, NotLooked
from kafkafs.data_directory import Mistake, contents_or_mistake, is_run_by_broker, mount_of
from kafkafs.fuse.mount_point import NAME, is_stopped
from kafkafs.mount_options import MountOptions
from kafkafs.mount_table import find_around
from kafkafs.quantities import human_size, local_time
from kafkafs.tree.control.retention import freed_text
from kafkafs.tree.permissions import Permissions, exposed_text
from storage import paths
from storage.directory.contents import Contents
from storage.directory.mirror import is_mirror
from storage.directory.reserve import COUNT, Reserve
from storage.directory.retain import RetentionPlan, kept_starts, plan_retention
from storage.directory.top_level import closing_command, others_may_write, others_text
from storage.errors import StorageError, reason_of
from storage.files import Files
from storage.manager import LogManager
from storage.retention.retention import deletes_by_limits, effects
from storage.settings.settings import SETTINGS_FILE, Settings
from storage.state import mirror_file, owner_file

#: Free space of less than 1/SHORT of the disk is a problem, of less than 1/SCARCE a hint.
SHORT = 100
SCARCE = 20
#: The number of partitions for which a finding says what can be freed, the largest first.
LARGEST = 3
HOUR_MS = 3_600_000
#: Seconds by which the clocks of two machines may differ.
CLOCKS_S = 60


def checks(path: str) -> Iterator[Check]:
    """Yield the checks of the data directory `path`."""
    mounted = find_around(os.path.abspath(path))
    where = "/" if mounted is None else mounted.path
    silent = Finding(f"{path}: its file system, at {where}, does not answer", "dmesg | tail")
    for name, look in (
        ("data-directory", _is_one),
        ("file-system", _file_system),
        ("space", _space),
        ("inodes", _inodes),
        ("reserve", _reserve),
        ("lock", _lock),
        ("clock", _clock),
        ("settings", _settings),
        ("private-topics", _private),
        ("other-users", _other_users),
        ("mirror", _mirror),
    ):
        yield Check(name, partial(_unless_missing, look, path), silent)


def _unless_missing(look: Callable[[str], Iterator[Finding]], path: str) -> list[Finding]:
    """Return the findings of a check.

    Errors: NotLooked if there is no data directory. The check `data-directory` reports that.
    """
    if look is not _is_one and isinstance(contents_or_mistake(path), Mistake):
        raise NotLooked
    return list(look(path))


def _is_one(path: str) -> Iterator[Finding]:
    """Check that there is a data directory, and that this user may write it."""
    quoted = shlex.quote(path)
    found = contents_or_mistake(path)
    if isinstance(found, Mistake):
        yield Finding(f"{path}: {found.reason}", _mend_of(path, found))
        return
    if found is Contents.LOG:
        again = f"kafkafs doctor {shlex.quote(os.path.dirname(os.path.realpath(path)))}"
        yield Finding(
            f"{path}: this is the directory of one partition, not a data directory", again
        )
    elif found is Contents.OTHERS:
        what = f"{path}: has files, but none of Kafka or kafkafs"
        yield Finding(what, "kafkafs doctor DATA  (with the right directory)")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        owner = os.stat(path).st_uid
        what = f"{path}: you have no permission to write it; it belongs to user {owner}"
        yield Finding(what, as_user(owner, f"kafkafs mount {quoted} MOUNT") + "  (or: -o ro)")


def _mend_of(path: str, mistake: Mistake) -> str:
    """Return the line to type if a path is no data directory."""
    quoted = shlex.quote(path)
    if mistake.is_missing:
        return f"mkdir {quoted}"
    if mistake.instead is not None:
        return f"kafkafs doctor {shlex.quote(mistake.instead)}"
    if mistake.number in (errno.EACCES, errno.EPERM):
        owner = 0
        with contextlib.suppress(OSError):
            owner = os.stat(path).st_uid
        return as_user(owner, f"kafkafs doctor {quoted}")
    return "kafkafs doctor DATA  (with the right directory)"


def _file_system(path: str) -> Iterator[Finding]:
    """Check that the file system can be written and supports RWF_NOWAIT.

    With RWF_NOWAIT, a read reports at once that bytes are not in the page cache.
    """
    mounted = find_around(os.path.realpath(path))
    kind, where = ("unknown", "/") if mounted is None else (mounted.type, mounted.path)
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        mend = as_root(f"mount -o remount,rw {shlex.quote(where)}")
        yield Finding(
            f"{where} ({kind}) is mounted read-only", f"{mend}  (or: kafkafs mount -o ro)"
        )
    for name in os.listdir(path):
        file = os.path.join(path, name)
        with contextlib.suppress(OSError):
            if os.path.isfile(file) and os.path.getsize(file) and not _tells_at_once(file):
                yield Finding(
                    f"{where} ({kind}) does not support RWF_NOWAIT: a read that waits for the "
                    "disk blocks all other reads",
                    "keep the data on ext4, xfs or btrfs",
                    is_wrong=False,
                )
                return


def _tells_at_once(path: str) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError as error:
        return error.errno != errno.EOPNOTSUPP
    finally:
        os.close(fd)
    return True


def _space(path: str) -> Iterator[Finding]:
    found = os.statvfs(path)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if free * SCARCE < total:
        what = f"{human_size(free)} of {human_size(total)} are free on the disk of {path}"
        frees, mend = _makes_room(path)
        if words := _words_bytes(path):
            removal = f"kafkafs words --remove {shlex.quote(path)}"
            frees.append(f"the .words files have {human_size(words)} ({removal} deletes them)")
        yield Finding("; ".join([what, *frees]), mend, is_wrong=free * SHORT < total)


def _words_bytes(path: str) -> int:
    """Return the bytes of all `.words` files."""
    size = 0
    for name in filter(paths.is_partition_directory, os.listdir(path)):
        with contextlib.suppress(OSError), os.scandir(os.path.join(path, name)) as entries:
            for entry in entries:
                if entry.name.endswith(paths.WORDS):
                    # It may be deleted meanwhile.
                    with contextlib.suppress(OSError):
                        size += entry.stat().st_size
    return size


def _makes_room(path: str) -> tuple[list[str], str]:
    """Return lines about the largest partitions, and the command that frees room."""
    quoted, mounted = shlex.quote(path), find_around(os.path.abspath(path))
    others = f"du -xhd1 {shlex.quote('/' if mounted is None else mounted.path)} | sort -h"
    if is_mirror(Files(path), path):
        file = shlex.quote(os.path.join(path, SETTINGS_FILE))
        return [], f"echo log.retention.bytes=BYTES >> {file}  (and start kafkafs mirror again)"
    try:
        with LogManager.open(path, read_only=True) as manager:
            now_ms = manager.clock_ms()
            logs = [log for log in manager.logs() if log.size and log.tiered is None]
            kept = kept_starts(manager)
            plans = [plan_retention(log, now_ms, kept) for log in logs]
    except (StorageError, OSError):
        return [], others
    plans.sort(key=lambda plan: plan.log.size, reverse=True)
    frees = [
        f"{plan.log.topic}:{plan.log.partition}: {freed_text(plan)}" for plan in plans[:LARGEST]
    ]
    size = sum(plan.size for plan in plans)
    if size:
        return frees, f"kafkafs prune {quoted}  (frees {human_size(size)})"
    if not plans:
        return frees, others
    plan = next((plan for plan in plans if deletes_by_limits(plan.config)), None)
    if plan is None:
        largest = plans[0].log
        mend = f"kafkafs delete {quoted} {largest.topic}  (deletes {human_size(largest.size)})"
        return frees, mend
    return frees, _limit_to_set(quoted, plan, now_ms)


def _limit_to_set(quoted: str, plan: RetentionPlan, now_ms: int) -> str:
    """Return the line that limits a log to half its size or, if that frees nothing, to an hour."""
    topic = plan.log.topic
    half = replace(plan.config, retention_bytes=plan.log.size // 2, retention_ms=-1)
    hour = replace(plan.config, retention_bytes=-1, retention_ms=HOUR_MS)
    (by_size,) = effects(plan.facts, half, now_ms)
    (by_time,) = effects(plan.facts, hour, now_ms)
    effect = by_size if by_size.size else by_time
    line = f"kafkafs config {quoted} {topic} {effect.setting}"
    if effect.size:
        return f"{line} && kafkafs prune {quoted} {topic}  (frees {human_size(effect.size)})"
    assert effect.next_ms is not None
    return f"{line}  (frees {human_size(effect.next_size)} at {local_time(effect.next_ms)})"


def _inodes(path: str) -> Iterator[Finding]:
    found = os.statvfs(path)
    if found.f_favail * SCARCE < found.f_files:
        what = f"{found.f_favail} of {found.f_files} inodes are free on the disk of {path}"
        is_wrong = found.f_favail * SHORT < found.f_files
        yield Finding(what, f"du --inodes -d1 {shlex.quote(path)} | sort -n", is_wrong=is_wrong)


def _reserve(path: str) -> Iterator[Finding]:
    """Check that no part of the disk reserve is used up, if the settings reserve space."""
    files = Files(path)
    parts = Reserve(files, path).parts
    is_kept = Settings(files, path, keeps_faulty=True).broker.kafkafs_reserve_bytes > 0
    owner = owner_file.read(files, path)
    is_open = owner is not None and files.locked_by(os.path.join(path, paths.LOCK)) == owner.pid
    if is_kept and parts < COUNT and (parts or is_open):
        yield Finding(
            f"{COUNT - parts} of {COUNT} parts of the disk reserve are used up: appends are "
            "refused until there is free space for them",
            _makes_room(path)[1],
        )


def _lock(path: str) -> Iterator[Finding]:
    """Check that the process that has the directory open is not stopped.

    For a daemon of kafkafs, also check that its mount is still there.
    """
    files = Files(path)
    lock = os.path.join(path, paths.LOCK)
    try:
        holder = files.locked_by(lock)
    except PermissionError:
        return
    if holder is None:
        return
    name = ""  # of a process that is not visible here
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{holder}/comm").read_text(errors="replace").rstrip("\n")
    who = f"process {holder} ({name})" if name else f"process {holder}"
    if name and is_stopped(holder):
        yield Finding(f"{who} has {path} open, and is stopped", f"kill -CONT {holder}")
        return
    owner = owner_file.read(files, path)
    if name != NAME or owner is None or owner.pid != holder:
        return
    if mount_of(owner, path) is None:
        yield Finding(
            f"{who} has {path} open, but its mount at {owner.mount} was unmounted: it exits when "
            "the last open file there is closed",
            f"kill {holder}",
        )


def _clock(path: str) -> Iterator[Finding]:
    """Check that no log was written in the future.

    If one was, the clock is late, and times and ages are wrong.
    """
    newest, when = "", 0.0
    for name in os.listdir(path):
        if not paths.is_partition_directory(name):
            continue
        with contextlib.suppress(OSError):
            for entry in os.scandir(os.path.join(path, name)):
                if paths.is_log(entry.name) and entry.stat().st_mtime > when:
                    newest, when = entry.path, entry.stat().st_mtime
    ahead = when - time.time()
    if ahead > CLOCKS_S:
        yield Finding(
            f"{newest} was written {ahead:.0f} s in the future: check the system clock",
            as_root("timedatectl set-ntp true"),
        )


@contextlib.contextmanager
def _opened(path: str) -> Iterator[LogManager]:
    """Open the data directory without its logs, as reading logs may take long."""
    mount_point = mount_that_writes(path)
    with LogManager.open(
        path, read_only=True, wanted=lambda topic: False, mount_point=mount_point
    ) as manager:
        yield manager


def _settings(path: str) -> Iterator[Finding]:
    """Check that the settings of every topic are known."""
    try:
        with _opened(path) as manager:
            topics = paths.partitions_in(manager.files.listing(path))
            ordinary = [topic for topic in topics if manager.tiered.why(topic) is None]
            kept = manager.settings.kept_topics(ordinary)
            holder = manager.files.locked_by(os.path.join(path, paths.LOCK))
            if holder is not None and is_run_by_broker(path, holder):
                kept = []  # nothing is deleted while it runs
            notes = manager.settings.notes
    except (StorageError, OSError) as error:
        mend = f"kafkafs verify {shlex.quote(path)}"
        if isinstance(error, StorageError) and error.path == os.path.join(path, SETTINGS_FILE):
            mend = f"${{EDITOR:-vi}} {shlex.quote(error.path)}"
        yield Finding(f"{path} cannot be opened: {reason_of(error)}", mend)
        return
    for line in kept:
        what, _, mend = line.rpartition("; ")
        yield Finding(what, mend.removeprefix("run "))
    for note in notes:
        yield Finding(note, f"kafkafs config {shlex.quote(path)} TOPIC", is_wrong=False)


def _private(path: str) -> Iterator[Finding]:
    """Check that users without access in the mount cannot read the files on the disk either."""
    options = MountOptions()
    try:
        with _opened(path) as manager:
            permissions = Permissions(manager, options.uid, options.gid, options.umask)
            topics = paths.partitions_in(manager.files.listing(path))
            found = permissions.exposed(
                (topic, number) for topic, numbers in topics.items() for number in numbers
            )
    except (StorageError, OSError):
        raise NotLooked from None
    if found:
        what, mend = exposed_text(path, found)
        yield Finding(what, mend)


def _other_users(path: str) -> Iterator[Finding]:
    """Check that only the owner and the group may write the data directory."""
    if others_may_write(Files(path), path):
        yield Finding(others_text(path), closing_command(path))


def _mirror(path: str) -> Iterator[Finding]:
    """Check that a mirror runs, and copies each partition."""
    files, quoted = Files(path), shlex.quote(path)
    try:
        mirror = mirror_file.read(files, path)
    except (StorageError, OSError) as error:
        mend = f"kafkafs detach {quoted}  (ends the mirror)"
        yield Finding(f"{path}: nothing writes this mirror: {reason_of(error)}", mend)
        return
    if mirror is None:
        return
    for (topic, number), copy in sorted(mirror.partitions.items()):
        if copy.is_waiting:
            what = f"{topic}:{number}: the mirror copies nothing: {copy.reason}"
            yield Finding(what, f"kafkafs describe {quoted} {topic}")
    if not files.is_locked(os.path.join(path, paths.LOCK)):
        what = f"{path}: the mirror of {mirror.source} is not running"
        source = shlex.quote(mirror.source)
        yield Finding(what, f"kafkafs mirror {source} {quoted}", is_wrong=False)
