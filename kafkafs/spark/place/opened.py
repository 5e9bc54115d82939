"""Where a data directory is, and a data directory that is open to be planned from.

`place` reads the option `path`: a path, `file:///…`, or the URI of a file system that pyarrow
knows (`s3://bucket/prefix?region=…`, `gs://…`, `abfs://…`, `hdfs://…`).
An object store has a copy of a data directory, all of its files, which may grow. Whoever copies
puts a segment's `.log` there after its other files: without its `.txnindex` aborted records would
not be known to be. Segments may come in any order: records wait for those before them.

`Opened` follows what others write to it: a broker or a mount on a disk, whoever copies to a store.
Nothing is written, no lock is taken; a user who may only read will do.

A URI of S3 may have these parameters beside those of pyarrow: `anonymous=true`, `session_token`,
`role_arn`, `session_name`, `external_id`.

Not here: what is planned (`storage.split.split`), who may write (`owner`).
"""

from __future__ import annotations

import errno
import functools
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from storage.directory.manager import LogManager
from storage.errors import SegmentGone
from storage.files import Files
from storage.follow.follow_directory import DirectoryFollower

if TYPE_CHECKING:
    from kafkafs.spark.place.arrow_files import ArrowFiles

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# How often a store is listed at most, in seconds: who waits for more asks all the time.
LISTED_EVERY_S = 1.0
# How often descriptors and deleted segments are looked after, in ms.
_SWEEP_MS = 10_000
# How often a directory is opened anew whose objects are replaced meanwhile.
_TRIES = 5
# A directory of this name is the mount's own, at its top.
_MOUNTED = ".kafkafs"
# Parameters that pyarrow has for S3, but not in URIs; and those that are flags.
_S3_MORE = {"anonymous", "session_token", "role_arn", "session_name", "external_id"}
_S3_FLAGS = {"anonymous", "force_virtual_addressing", "allow_bucket_creation"}


@dataclass(frozen=True, slots=True)
class Location:
    """Where a data directory is. `option`: as the user has it; `path`: within its file system."""

    option: str
    path: str
    is_local: bool

    def files(self, *, listed: bool = False) -> Files:
        """To read it by, in any process. `listed`: see `ArrowFiles`. OSError."""
        return Files(self.path) if self.is_local else _objects(self, listed=listed)

    def __str__(self) -> str:
        """For people: without the secrets that a URI may have."""
        return self.path if self.is_local else _shown(self.option)


def location_of(option: str) -> Location:
    """What the option `path` means. ValueError where it is empty or no URI that is known."""
    if not option:
        raise ValueError("the option path is empty: give the data directory, or a URI of one")
    if option.startswith("file:"):
        parts = urlsplit(option)
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"{option}: a file of another host; write file:///path")
        return Location(option, os.path.abspath(unquote(parts.path)), True)
    if _URI.match(option) is None:
        return Location(option, os.path.abspath(option), True)
    option = re.sub(r"\As3[an]://", "s3://", option)
    _, path = _filesystem(option)
    return Location(option, "/" + path.strip("/"), False)


def check_directory(location: Location, files: Files) -> None:
    """FileNotFoundError, NotADirectoryError where no data directory can be there."""
    path = location.path
    if not files.is_directory(path):
        if files.exists(path):
            raise NotADirectoryError(errno.ENOTDIR, "no directory", str(location))
        raise FileNotFoundError(errno.ENOENT, "there is no such data directory", str(location))
    mounted = location.is_local and os.path.ismount(path)
    if mounted and files.is_directory(os.path.join(path, _MOUNTED)):
        reason = "a mount of kafkafs: give the data directory that it shows"
        raise NotADirectoryError(errno.ENOTDIR, reason, str(location))


def _objects(location: Location, *, listed: bool) -> ArrowFiles:
    """The files of a place that is not on a disk."""
    from kafkafs.spark.place.arrow_files import ArrowFiles

    filesystem, path = _filesystem(location.option)
    return ArrowFiles(
        filesystem,
        location.path,
        prefix=_prefix(location.option, path),
        rooted=path.startswith("/"),
        listed=listed,
    )


def _shown(uri: str) -> str:
    """A URI without user, password and parameters."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _prefix(uri: str, path: str) -> str:
    """What makes URIs of the paths of its file system."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2] if path.startswith('/') else ''}"


@functools.lru_cache(maxsize=16)
def _filesystem(uri: str) -> tuple[Any, str]:
    """The file system and the path in it; one per process, as each has its own connections."""
    import pyarrow
    import pyarrow.fs

    try:
        parts = urlsplit(uri)
        given = dict(parse_qsl(parts.query))
        if parts.scheme == "s3" and _S3_MORE & given.keys():
            return _s3(uri, given)
        filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{_shown(uri)}: {error.args[0]}") from None
    except OSError as error:
        raise OSError(error.errno or errno.EIO, str(error.args[-1]), _shown(uri)) from None
    return filesystem, path


def _s3(uri: str, given: dict[str, str]) -> tuple[Any, str]:
    """The same of S3 with parameters that pyarrow takes in calls only."""
    import pyarrow.fs

    parts = urlsplit(uri)
    settings: dict[str, Any] = {
        name: value.lower() == "true" if name in _S3_FLAGS else value
        for name, value in given.items()
    }
    if parts.username:
        settings["access_key"] = unquote(parts.username)
        settings["secret_key"] = unquote(parts.password or "")
    if "region" not in settings and "endpoint_override" not in settings:
        settings["region"] = pyarrow.fs.resolve_s3_region(parts.hostname)
    try:
        filesystem = pyarrow.fs.S3FileSystem(**settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_shown(uri)}: {error}") from None
    return filesystem, unquote(f"{parts.hostname}{parts.path}").rstrip("/")


class Opened:
    """A data directory that is open to be read: the topics that are wanted, kept up to date.

    One thread uses it. `until_high_watermark`: logs end where the broker that writes them has
    last written down that all replicas are.
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

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of everything."""
        self.manager.close()
        if self._objects is not None:
            self._objects.forget()

    def _open(self) -> None:
        """Open it; again where its objects change meanwhile."""
        for tries in range(_TRIES, 0, -1):
            self._asked = time.monotonic()
            self._objects = None if self.location.is_local else _objects(self.location, listed=True)
            files = self._objects or Files(self.location.path)
            check_directory(self.location, files)
            try:
                self._open_by(files)
            except SegmentGone:
                if tries == 1:
                    raise
            else:
                return

    def _open_by(self, files: Files) -> None:
        manager = LogManager.open(
            self.location.path, read_only=True, files=files, wanted=self._wanted
        )
        try:
            self._follower = DirectoryFollower(
                manager, until_high_watermark=self._until_high_watermark
            )
            if self._objects is not None:
                self._objects.confirm()
        except BaseException:
            manager.close()
            raise
        self.manager = manager

    # -- staying up to date --------------------------------------------------------------------

    def refresh(self, *, at_once: bool = False) -> None:
        """See what has become of it: partitions, log starts, ends, last stable offsets.

        Costs two stats a partition where nothing has changed on a disk. In an object store each
        directory is listed, once a second at most unless `at_once`. StorageError, OSError.
        """
        if self._objects is None:
            self._look()
        elif at_once or time.monotonic() - self._asked >= LISTED_EVERY_S:
            self._asked = time.monotonic()
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
                # An open object is what it was; the next read is of what is there now.
                segment.files.close_descriptors()
        objects.forget()
        objects.prepare([self.location.path, *(log.directory for log in self.manager.logs())])
        try:
            self._look()
            objects.confirm()
        except SegmentGone:
            # Something was replaced between two looks, and may have been read in part.
            self.close()
            self._open()
