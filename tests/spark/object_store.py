"""S3 on this machine: a moto server in a thread, and a list of its requests."""

from __future__ import annotations

import contextlib
import logging
import re
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs
from moto.server import ThreadedMotoServer

from kafkafs.spark.location.location import Location, location_of

_REQUEST = re.compile(r'"(GET|HEAD) /([^ ?]*)(\S*list-type=2)?\S* HTTP')
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Requests(logging.Handler):
    """The requests to the server, as (GET, HEAD or LIST, path)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        found = _REQUEST.search(_COLOURS.sub("", record.getMessage()))
        if found is not None:
            self.seen.append(("LIST" if found[3] else found[1], found[2]))

    def of(self, suffix: str) -> list[str]:
        """Return the kinds of the requests for objects whose names end with `suffix`."""
        return [kind for kind, path in self.seen if path.endswith(suffix)]


class Bucket:
    """A bucket with a data directory at `prefix`."""

    prefix = "some/where"

    def __init__(self, name: str, address: str, requests: Requests) -> None:
        self.name = name
        self.requests = requests
        self.uri = (
            f"s3://key:secret@{name}/{self.prefix}"
            f"?endpoint_override={address}&scheme=http&region=us-east-1"
        )
        self.filesystem, self.root = pyarrow.fs.FileSystem.from_uri(
            f"{self.uri}&allow_bucket_creation=true"
        )
        self.filesystem.create_dir(name)
        self._put: dict[str, bytes] = {}

    @property
    def location(self) -> Location:
        return location_of(self.uri)

    def put(self, name: str, data: bytes) -> None:
        with self.filesystem.open_output_stream(f"{self.root}/{name}") as stream:
            stream.write(data)

    def delete(self, name: str) -> None:
        self.filesystem.delete_file(f"{self.root}/{name}")

    def sync(self, data: Path) -> None:
        """Make the bucket equal to a directory.

        Writes new and changed files in the order of their names, then deletes missing ones.
        """
        now = {
            str(path.relative_to(data)): path.read_bytes()
            for path in sorted(data.rglob("*"))
            if path.is_file() and path.name != ".lock"
        }
        for name, content in now.items():
            if self._put.get(name) != content:
                self.put(name, content)
        for name in self._put.keys() - now.keys():
            self.delete(name)
        self._put = now

    @contextlib.contextmanager
    def counted(self) -> Iterator[Requests]:
        """The requests that are made within."""
        self.requests.seen.clear()
        yield self.requests


class ObjectStore:
    """The server."""

    def __init__(self) -> None:
        self._requests = Requests()
        self._log = logging.getLogger("werkzeug")
        self._before = self._log.level, self._log.propagate
        self._log.propagate = False
        self._log.setLevel(logging.INFO)
        self._log.addHandler(self._requests)
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.address = f"{host}:{port}"

    def bucket(self) -> Bucket:
        # All servers of a process have the same buckets.
        return Bucket(f"bucket-{uuid.uuid4()}", self.address, self._requests)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Only who has an account that is known may do anything; nobody has one."""
        self._ask_who_is_there(after="0")
        try:
            yield
        finally:
            self._ask_who_is_there(after="inf")

    def _ask_who_is_there(self, *, after: str) -> None:
        request = urllib.request.Request(
            f"http://{self.address}/moto-api/reset-auth",
            data=after.encode(),
            headers={"Content-Type": "text/plain"},
        )
        urllib.request.urlopen(request).close()

    def stop(self) -> None:
        self._server.stop()
        self._log.removeHandler(self._requests)
        self._log.level, self._log.propagate = self._before
