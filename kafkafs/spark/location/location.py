"""The place of a data directory, which the option `path` gives, and the files to read it with.

It is a path, `file:///…`, or the URI of a file system that pyarrow knows
(`s3://bucket/prefix?region=…`, `gs://…`, `abfs://…`, `hdfs://…`). A URI of S3 may have these
parameters beside those of pyarrow: `anonymous=true`, `session_token`, `role_arn`, `session_name`,
`external_id`.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from kafkafs.data_directory import find_mistake, is_broker_address
from kafkafs.spark.option_values import InvalidOption
from storage.files import Files

if TYPE_CHECKING:
    from kafkafs.spark.location.arrow_files import ArrowFiles
    from storage.log.log import Log

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# The parameters of pyarrow's S3 that its URIs cannot have, and those that are flags.
_S3_MORE = {"anonymous", "session_token", "role_arn", "session_name", "external_id"}
_S3_FLAGS = {"anonymous", "force_virtual_addressing", "allow_bucket_creation"}


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a data directory. `option`: the user's text; `path`: in its file system."""

    option: str
    path: str
    is_local: bool

    def files(self, *, listed: bool = False) -> Files:
        """Return files to read it with, in any process. `listed`: see `ArrowFiles`. OSError."""
        return Files(self.path) if self.is_local else object_files(self, listed=listed)

    def cache_directory(self, log: Log) -> str | None:
        """Return the directory of this user's `.words` of a log; None in an object store."""
        from kafkafs.tree.context import cache_directory

        return cache_directory(log) if self.is_local else None

    def __str__(self) -> str:
        """Return the option, without the secrets that a URI may have."""
        return self.path if self.is_local else _without_secrets(self.option)


def is_uri(text: str) -> bool:
    """Return whether the text is a URI, not a path."""
    return _URI.match(text) is not None


def location_of(option: str) -> Location:
    """Parse the option `path`. InvalidOption if it is empty or an unknown URI; OSError."""
    if not option:
        raise InvalidOption("the option path is empty: give the data directory, or a URI of one")
    if option.startswith("file:"):
        parts = urlsplit(option)
        if parts.netloc not in ("", "localhost"):
            raise InvalidOption(f"{option}: the file is on another host; use file:///path")
        return Location(option, os.path.abspath(unquote(parts.path)), True)
    if not is_uri(option):
        return Location(option, os.path.abspath(option), True)
    if is_broker_address(option) and (mistake := find_mistake(option)) is not None:
        raise InvalidOption(f"{option}: {mistake.reason}")
    option = re.sub(r"\As3[an]://", "s3://", option)
    _, path = _filesystem(option)
    return Location(option, "/" + path.strip("/"), False)


def check_directory(location: Location, files: Files) -> None:
    """Raise an OSError if no data directory can be there: its subclass says why."""
    path = location.path
    mistake = find_mistake(path) if location.is_local else None
    if mistake is not None:
        number = errno.ENOTDIR if mistake.number in (None, errno.EINVAL) else mistake.number
        raise OSError(number, mistake.reason, str(location))
    if location.is_local:
        if not os.access(path, os.R_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(location))
        return
    if not files.is_directory(path):
        if files.exists(path):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(location))
        raise FileNotFoundError(errno.ENOENT, "no such data directory", str(location))


def object_files(location: Location, *, listed: bool) -> ArrowFiles:
    """Return the files of an object store. `listed`: see `ArrowFiles`. OSError."""
    from kafkafs.spark.location.arrow_files import ArrowFiles
    from kafkafs.spark.location.open_object import ObjectStore

    filesystem, path = _filesystem(location.option)
    rooted = path.startswith("/")
    parts = urlsplit(location.option)
    host = parts.netloc.rpartition("@")[2] if rooted else ""
    store = ObjectStore(filesystem, f"{parts.scheme}://{host}", rooted=rooted)
    return ArrowFiles(store, location.path, listed=listed)


def _without_secrets(uri: str) -> str:
    """Return a URI without user, password and parameters."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@functools.lru_cache(maxsize=16)
def _filesystem(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI and the path in it.

    They are cached, because each file system has its own connections.
    """
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
        raise InvalidOption(f"{_without_secrets(uri)}: {error.args[0]}") from None
    except OSError as error:
        reason = str(error.args[-1])
        raise OSError(error.errno or errno.EIO, reason, _without_secrets(uri)) from None
