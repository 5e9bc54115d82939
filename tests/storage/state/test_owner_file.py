"""`kafkafs.owner` is read back with any bytes in the path; invalid content reads as None."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage import paths
from storage.errors import UnusableFile
from storage.files import Files
from storage.state import owner_file
from storage.state.owner_file import OwnerProcess

files = Files()


@pytest.mark.parametrize("mount", [b"/mnt", b'/a b\n"c\\', "/größe/👾".encode(), b"/\xff\xfe/\x80"])
def test_written_and_read(tmp_path: Path, mount: bytes) -> None:
    owner = OwnerProcess(4711, os.fsdecode(mount))
    assert owner_file.read(files, str(tmp_path)) is None
    owner_file.write(files, str(tmp_path), OwnerProcess(1, "/before"))
    owner_file.write(files, str(tmp_path), owner)
    found = owner_file.read(files, str(tmp_path))
    assert found == owner
    assert os.fsencode(found.mount) == mount
    assert os.listdir(tmp_path) == [paths.OWNER]
    owner_file.remove(files, str(tmp_path))
    owner_file.remove(files, str(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0\0", b"{", b"[]", b"1", b"null", b"\xff"),
        *(b'{"pid":1}', b'{"pid":"1","mount":"/m"}', b'{"pid":true,"mount":"/m"}'),
        *(b'{"pid":1,"mount":null}', b'{"pid":1,"mount":"m"}', b'{"pid":1,"mount":""}'),
    ],
)
def test_what_makes_no_sense_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / paths.OWNER).write_bytes(content)
    assert owner_file.read(files, str(tmp_path)) is None


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / paths.OWNER).mkdir()
    with pytest.raises(UnusableFile):
        owner_file.read(files, str(tmp_path))
