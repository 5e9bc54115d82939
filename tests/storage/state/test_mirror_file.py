"""`kafkafs.mirror` is written to the byte and read strictly."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import paths
from storage.errors import CorruptCheckpoint
from storage.files import Files
from storage.state import mirror_file
from storage.state.mirror_file import MirroredPartition, MirrorFile

files = Files()
COPY = "start -1 end -1 source-start -1 source-end -1 at-end -1"
HEAD = "version 0\ncluster C\nsource kafka://one:9092\ntopics *\n"
TEXT = """\
version 0
cluster 5L6g3nShT-eMCtK--X86sw
source kafka://one:9092,two:9092
topics a-* b
topic a-x eV5C2xLoR3ehQ0NFt2aPvA
topic b -
setting a-x =%3D%25%0A%FF
setting a-x cleanup.policy=compact,%20delete
setting a-x x=
setting b follower.replication.throttled.replicas=0:1,*
partition a-x 0 start 7 end 812 source-start 5 source-end 815 at-end 1790000000000 state ok
partition a-x 10 start -1 end -1 source-start -1 source-end -1 at-end -1 state waiting wrong \\udce9
"""
VALUE = MirrorFile(
    "5L6g3nShT-eMCtK--X86sw",
    "kafka://one:9092,two:9092",
    ("a-*", "b"),
    {"b": "-", "a-x": "eV5C2xLoR3ehQ0NFt2aPvA"},
    {
        ("a-x", 10): MirroredPartition(state="waiting", reason="wrong\n \udce9"),
        ("a-x", 0): MirroredPartition(7, 812, 5, 815, 1790000000000),
    },
    {
        "b": {"follower.replication.throttled.replicas": "0:1,*"},
        "a-x": {"x": "", "cleanup.policy": "compact, delete", "": "=%\n\udcff"},
    },
)


def test_the_bytes_and_reading_them(tmp_path: Path) -> None:
    path = str(tmp_path)
    assert mirror_file.read(files, path) is None
    mirror_file.write(files, path, MirrorFile("C", "kafka://one:9092", ("*",)))
    assert (tmp_path / paths.MIRROR).read_text() == HEAD
    mirror_file.write(files, path, VALUE)
    assert [each.name for each in tmp_path.iterdir()] == [paths.MIRROR]
    assert (tmp_path / paths.MIRROR).read_text() == TEXT
    found = mirror_file.read(files, path)
    assert found is not None
    assert found.text() == TEXT
    assert found.settings == VALUE.settings
    assert found.partitions["a-x", 0] == VALUE.partitions["a-x", 0]
    reason = r"wrong \udce9"
    assert found.partitions["a-x", 10] == MirroredPartition(state="waiting", reason=reason)


@pytest.mark.parametrize(
    ("copy", "lag"),
    [
        (MirroredPartition(source_end=9), None),
        (MirroredPartition(start=3), None),
        (MirroredPartition(start=3, source_end=9), 6),
        (MirroredPartition(start=3, end=8, source_end=9), 1),
        (MirroredPartition(start=3, end=9, source_end=8), 0),
    ],
)
def test_lag(copy: MirroredPartition, lag: int | None) -> None:
    assert copy.lag == lag


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        ("version 0\n", None),
        (HEAD[:-1], None),
        (HEAD.replace("version 0", "version 1"), 1),
        (HEAD.replace("cluster C", "cluster"), 2),
        (HEAD.replace("cluster C", "cluster C D"), 2),
        (HEAD.replace("topics *", "topics"), 4),
        (HEAD.replace("topics *", "topics  *"), 4),
        ("source S\n" + HEAD, 1),
        (HEAD + "later 1\n", 5),
        (HEAD + "version 0\n", 5),
        (HEAD + "topics a\n", 5),
        (HEAD + "topic a\n", 5),
        (HEAD + "topic ../a -\n", 5),
        (HEAD + "topic a -\ntopic a -\n", 6),
        (HEAD + f"partition a 0 {COPY} state ok\n", 5),
        *(
            (HEAD + f"topic a -\n{line}\n", 6)
            for line in (
                *("partition a", "partition a 0", f"partition a 0 {COPY}"),
                f"partition a 0 {COPY} state",
                *(
                    "setting a x",
                    "setting a x=1=2",
                    "setting a x=1 2",
                    "setting b x=1",
                ),
                *("setting a x=%2c", "setting a x='", "setting a x=%"),
                f"partition a 0 {COPY} state fine",
                f"partition a 0 {COPY} since ok",
                f"partition a -1 {COPY} state ok",
                f"partition a 2147483648 {COPY} state ok",
                f"partition a 0 {COPY} state ok ",
                f"partition a 0 {COPY} state ok\r",
                *(
                    f"partition a 0 {COPY.replace('-1', word, 1)} state ok"
                    for word in ("-2", "+2", "1_0", "x", "9223372036854775808")
                ),
                f"partition a 0 {COPY.replace('end', 'till', 1)} state ok",
            )
        ),
        (HEAD + "topic a -\nsetting a x=1\nsetting a x=2\n", 7),
        (HEAD + f"topic a -\npartition a 0 {COPY} state ok\npartition a 0 {COPY} state ok\n", 7),
    ],
)
def test_other_contents_are_named(tmp_path: Path, text: str, line: int | None) -> None:
    path = tmp_path / paths.MIRROR
    path.write_bytes(text.encode())
    with pytest.raises(CorruptCheckpoint) as e:
        mirror_file.read(files, str(tmp_path))
    assert (e.value.path, e.value.line) == (str(path), line)


def test_what_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / paths.MIRROR).write_bytes(b"version 0\n\xff")
    with pytest.raises(CorruptCheckpoint, match="not UTF-8 at byte 10"):
        mirror_file.read(files, str(tmp_path))
    (tmp_path / paths.MIRROR).unlink()
    (tmp_path / paths.MIRROR).mkdir()
    with pytest.raises(CorruptCheckpoint):
        mirror_file.read(files, str(tmp_path))
