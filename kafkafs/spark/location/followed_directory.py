"""Locations of data directories, and a data directory that is open for planning.

`location_of` parses the option `path`: a path, `file:///…`, or the URI of a file system that
pyarrow knows (`s3://bucket/prefix?region=…`, `gs://…`, `abfs://…`, `hdfs://…`). An object store has
a copy of a data directory, all of its files, and the copy may grow. A program that copies a segment
puts its `.log` last: without the `.txnindex` readers would show aborted records. Segments may come
in any order: `FollowedDirectory` shows records only after those before them.

It follows what others write: a broker or a mount on a disk, a copying program in a store. It writes
nothing and takes no lock, so permission to read is enough.

A URI of S3 may have these parameters beside those of pyarrow: `anonymous=true`, `session_token`,
`role_arn`, `session_name`, `external_id`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from kafkafs.data_directory import find_mistake
from storage.directory.manager import LogManager
from storage.errors import SegmentGone
from storage.files import Files
from storage.follow.follow_directory import DirectoryFollower

if TYPE_CHECKING:
    from kafkafs.spark.location.arrow_files import ArrowFiles

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# The shortest time between two listings of a store, in seconds: idle queries refresh all the time.
LISTED_EVERY_S = 1.0
# The time between two sweeps for unused descriptors and deleted segments, in ms.
_SWEEP_MS = 10_000
# How often to open a directory whose objects change meanwhile.
_TRIES = 5
# Parameters of pyarrow's S3 that its URIs cannot have; and those that are flags.
_S3_MORE = {"anonymous", "session_token", "role_arn", "session_name", "external_id"}
_S3_FLAGS = {"anonymous", "force_virtual_addressing", "allow_bucket_creation"}


@dataclass(frozen=True, slots=True)
class Location:
    """Where a data directory is. `option`: the user's text; `path`: within its file system."""

    option: str
    path: str
    is_local: bool

    def files(self, *, listed: bool = False) -> Files:
        """Files to read it with, in any process. `listed`: see `ArrowFiles`. OSError."""
        return Files(self.path) if self.is_local else _objects(self, listed=listed)

    def __str__(self) -> str:
        """The option, without the secrets that a URI may have."""
        return self.path if self.is_local else _without_secrets(self.option)


def is_uri(text: str) -> bool:
    """Whether the text is a URI, not a path."""
    return _URI.match(text) is not None


def location_of(option: str) -> Location:
    """Parse the option `path`. ValueError if it is empty or an unknown URI."""
    if not option:
        raise ValueError("the option path is empty: give the data directory, or a URI of one")
    if option.startswith("file:"):
        parts = urlsplit(option)
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"{option}: a file of another host; write file:///path")
        return Location(option, os.path.abspath(unquote(parts.path)), True)
    if not is_uri(option):
        return Location(option, os.path.abspath(option), True)
    option = re.sub(r"\As3[an]://", "s3://", option)
    _, path = _filesystem(option)
    return Location(option, "/" + path.strip("/"), False)


def check_directory(location: Location, files: Files) -> None:
    """Raise FileNotFoundError or NotADirectoryError if no data directory can be there."""
    path = location.path
    mistake = find_mistake(path) if location.is_local else None
    if mistake is not None and os.path.lexists(path):
        raise NotADirectoryError(errno.ENOTDIR, mistake.reason, str(location))
    if not files.is_directory(path):
        if files.exists(path):
            raise NotADirectoryError(errno.ENOTDIR, "no directory", str(location))
        raise FileNotFoundError(errno.ENOENT, "there is no such data directory", str(location))


def _objects(location: Location, *, listed: bool) -> ArrowFiles:
    """The files of an object store."""
    from kafkafs.spark.location.arrow_files import ArrowFiles
    from kafkafs.spark.location.open_object import ObjectStore

    filesystem, path = _filesystem(location.option)
    rooted = path.startswith("/")
    parts = urlsplit(location.option)
    host = parts.netloc.rpartition("@")[2] if rooted else ""
    store = ObjectStore(filesystem, f"{parts.scheme}://{host}", rooted=rooted)
    return ArrowFiles(store, location.path, listed=listed)


def _without_secrets(uri: str) -> str:
    """A URI without user, password and parameters."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@functools.lru_cache(maxsize=16)
def _filesystem(uri: str) -> tuple[Any, str]:
    """The file system of a URI and the path in it; cached, since each has its own connections."""
    import pyarrow
    import pyarrow.fs

    parts = urlsplit(uri)
    given = dict(parse_qsl(parts.query))
    try:
        if parts.scheme != "s3" or not _S3_MORE & given.keys():
            filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
            return filesystem, path
        # pyarrow takes these parameters only in calls.
        settings: dict[str, Any] = {
            name: value.lower() == "true" if name in _S3_FLAGS else value
            for name, value in given.items()
        }
        if parts.username:
            settings["access_key"] = unquote(parts.username)
            settings["secret_key"] = unquote(parts.password or "")
        if "region" not in settings and "endpoint_override" not in settings:
            settings["region"] = pyarrow.fs.resolve_s3_region(parts.hostname)
        filesystem = pyarrow.fs.S3FileSystem(**settings)
        return filesystem, unquote(f"{parts.hostname}{parts.path}").rstrip("/")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_without_secrets(uri)}: {error.args[0]}") from None
    except OSError as error:
        reason = str(error.args[-1])
        raise OSError(error.errno or errno.EIO, reason, _without_secrets(uri)) from None


class FollowedDirectory:
    """An open data directory: the wanted topics, up to date. For one thread.

    `until_high_watermark`: logs end at the last high watermark that their broker has checkpointed.
    """

    manager: LogManager

    def __init__(
        self,
        location: Location,
        wanted: Callable[[str], bool] | None = None,
        *,
        until_high_watermark: bool = False,
    ) -> None:
        """FileNotFoundError, NotADirectoryError, StorageError, OSError."""
        self.location = location
        self._wanted = wanted
        self._until_high_watermark = until_high_watermark
        self._swept_ms = 0
        self._open()

    def __enter__(self) -> FollowedDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the directory and its files."""
        self.manager.close()
        if self._objects is not None:
            self._objects.forget()

    def _open(self) -> None:
        """Open the directory; try again if its objects change meanwhile."""
        for tries in range(_TRIES, 0, -1):
            self._listed_at = time.monotonic()
            self._objects = None if self.location.is_local else _objects(self.location, listed=True)
            files = self._objects or Files(self.location.path)
            check_directory(self.location, files)
            with contextlib.ExitStack() as on_error:
                try:
                    self.manager = on_error.enter_context(
                        LogManager.open(
                            self.location.path, read_only=True, files=files, wanted=self._wanted
                        )
                    )
                    self._follower = DirectoryFollower(
                        self.manager, until_high_watermark=self._until_high_watermark
                    )
                    if self._objects is not None:
                        self._objects.confirm()
                except SegmentGone:
                    if tries == 1:
                        raise
                else:
                    on_error.pop_all()
                    return

    # -- staying up to date --------------------------------------------------------------------

    def refresh(self, *, at_once: bool = False) -> None:
        """Bring partitions, log starts, log ends and last stable offsets up to date.

        Costs two stats a partition on a disk where nothing has changed. Lists all directories of an
        object store, once a second at most unless `at_once`. StorageError, OSError.
        """
        if self._objects is None:
            self._look()
        elif at_once or time.monotonic() - self._listed_at >= LISTED_EVERY_S:
            self._listed_at = time.monotonic()
            self._list(self._objects)

    def _look(self) -> None:
        manager, follower = self.manager, self._follower
        follower.look_for_partitions()
        for log in list(manager.logs()):
            follower.look(log)
        follower.look_at_log_starts()
        now_ms = manager.monotonic_ms()
        if now_ms - self._swept_ms >= _SWEEP_MS:
            self._swept_ms = now_ms
            manager.sweep(now_ms)

    def _list(self, objects: ArrowFiles) -> None:
        for log in self.manager.logs():
            for segment in log.segments:
                # An open object keeps its version; the next read opens the current one.
                segment.files.close_descriptors()
        objects.forget()
        objects.list_directories(
            [self.location.path, *(log.directory for log in self.manager.logs())]
        )
        try:
            self._look()
            objects.confirm()
        except SegmentGone:
            # A writer has replaced an object between two listings: part of it may be in use.
            self.close()
            self._open()
