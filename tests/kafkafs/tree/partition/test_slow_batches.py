"""Batches that take long to be decoded: who asks for their text has them measured, in a thread."""

from __future__ import annotations

import pytest

from kafkafs.line_index.encoded import takes_long
from storage.plain_forms import AT_ONCE
from storage.record.plain import recompress
from storage.waiting import at_once
from tests import oracle
from tests.kafkafs.trees import Tree, read
from tests.storage.logs import NOW_MS, append, batch
from tests.storage.producers import Producer

B = "t/.batches/0"
LINE = b"x" * (AT_ONCE + 1) + b"\n"
LARGE = recompress(batch([LINE[:-1]]), 4)


def test_an_append_decodes_none_of_it(tree: Tree) -> None:
    file = tree.file()
    handle = tree.open(file)
    tree.append(file, b"before\n")
    assert at_once(file.attributes).size == 7
    tree.append(B, LARGE * 3)
    append(tree.log(), b"after")
    tree.roll()
    tree.append(B, LARGE)
    with pytest.raises(BlockingIOError):
        at_once(file.attributes)
    assert file.listed_attributes().size == 7
    with pytest.raises(BlockingIOError):
        at_once(handle.read, 7, 100)
    text = b"before\n" + LINE * 3 + b"after\n" + LINE
    assert tree.attributes(file).size == len(text)
    assert read(handle, 0, len(text) + 1) == text
    tree.append(file, b"more\n")
    assert at_once(file.attributes).size == len(text) + 5
    assert read(handle, len(text)) == b"more\n"


def test_it_is_measured_in_the_background(tree: Tree) -> None:
    file = tree.file()
    tree.append(B, LARGE)
    with pytest.raises(BlockingIOError):
        at_once(file.attributes)
    tree.fs.partitions.housekeeping()
    assert at_once(file.attributes).size == len(LINE)


@pytest.mark.parametrize("codec", ["lz4", "snappy", "zstd"])
def test_what_is_compressed_as_it_is_appended_is_measured_at_once(tree: Tree, codec: str) -> None:
    tree.manager.change_topic_settings("t", {"compression.type": codec})
    file = tree.file()
    text = b"".join(b"line %d of some length\n" % number for number in range(5000))
    tree.append(file, text)
    assert at_once(file.attributes).size == len(text)
    assert tree.log().size < len(text) // 2


def test_the_head_goes_before_it_is_measured(tree: Tree) -> None:
    file = tree.file()
    old = tree.open(file)
    tree.append(file, b"before\n")
    tree.append(B, LARGE)
    tree.roll()
    append(tree.log(), b"after")
    tree.remove_head(1)
    text = b"before\n" + LINE + b"after\n"
    assert read(old, 0, len(text) + 1) == text
    assert tree.read("t/0") == b"after\n"


def test_in_a_transaction_too(tree: Tree) -> None:
    file = tree.file()
    one = Producer(1, transactional=True, codec=4)
    tree.append(B, one.batch(LINE[:-1]))
    assert at_once(file.attributes).size == 0
    tree.append(B, one.commit())
    with pytest.raises(BlockingIOError):
        at_once(file.attributes)
    assert tree.attributes(file).size == len(LINE)


def test_what_takes_long() -> None:
    plain = bytes(batch([b"x" * 100]))
    large = bytes(batch([b"x" * AT_ONCE]))
    messages = [oracle.Message(0, None, b"v" * 100_000, NOW_MS)]
    assert not takes_long(b"")
    assert not takes_long(plain * 1000 + large)
    assert not takes_long(oracle.put_message(messages[0], 0) * 100)
    assert not takes_long(recompress(plain, 2) * 10)
    assert not takes_long(recompress(plain, 1))
    for codec in range(1, 5):
        assert takes_long(plain + recompress(large, codec))
    assert takes_long(oracle.put_wrapper(messages, 1, 1) * 40)
    assert takes_long(oracle.put_wrapper(messages, 0, 1) * 40)
