"""storage.compaction._offset_map: a dict with a limited number of keys, hashed with SipHash."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.compaction._offset_map import OffsetMap

SLOT = 24
WORD = (1 << 64) - 1
SECRET = bytes(range(16))

# Where the hash takes another way: whole words, and each length of what is left.
keys = st.binary(max_size=9) | st.integers(10, 300).map(lambda size: b"k" * size)


def siphash(secret: bytes, data: bytes, per_word: int, at_end: int) -> bytes:
    """SipHash of 128 bits as its paper and its authors' siphash.c have it."""
    k0, k1 = (int.from_bytes(secret[at : at + 8], "little") for at in (0, 8))
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def rounds(count: int) -> None:
        for _ in range(count):
            for a, b, c, d, first, second in ((0, 1, 2, 3, 13, 16), (2, 1, 0, 3, 17, 21)):
                v[a] = v[a] + v[b] & WORD
                v[c] = v[c] + v[d] & WORD
                v[b] = (v[b] << first | v[b] >> 64 - first) & WORD ^ v[a]
                v[d] = (v[d] << second | v[d] >> 64 - second) & WORD ^ v[c]
                v[a] = (v[a] << 32 | v[a] >> 32) & WORD

    whole = len(data) // 8 * 8
    padded = data + bytes(whole + 7 - len(data)) + bytes([len(data) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(per_word)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(at_end)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(at_end)
    high = v[0] ^ v[1] ^ v[2] ^ v[3]
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def test_the_twin_gives_the_published_vectors() -> None:
    # vectors_sip128 of the authors' vectors.h, for SipHash-2-4.
    assert siphash(SECRET, b"", 2, 4).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash(SECRET, b"\0", 2, 4).hex() == "da87c1d86b99af44347659119b22fc45"


@given(secret=st.binary(min_size=16, max_size=16), key=keys | st.binary(max_size=70))
def test_the_hash_is_siphash_1_3(secret: bytes, key: bytes) -> None:
    assert OffsetMap(1000, secret=secret).hash(key) == siphash(secret, key, 1, 3)


def test_each_map_has_a_secret_of_its_own() -> None:
    assert OffsetMap(1000).hash(b"key") != OffsetMap(1000).hash(b"key")


@given(puts=st.lists(st.tuples(keys, st.integers(0, 2**63 - 2)), max_size=60), data=st.data())
def test_it_is_a_dict(puts: list[tuple[bytes, int]], data: st.DataObject) -> None:
    """However few slots there are, so also where keys stand in each other's places."""
    distinct = len({key for key, _ in puts})
    slots = distinct + 2 + data.draw(st.integers(0, 20))
    made = OffsetMap(slots * SLOT, 1.0)
    twin: dict[bytes, int] = {}
    for key, offset in puts:
        made.put(key, offset)
        twin[key] = offset
        assert made.latest_offset == offset
    assert len(made) == len(twin)
    assert {key: made.get(key) for key in twin} == twin
    for key in data.draw(st.lists(keys, max_size=5)):
        assert made.get(key) == twin.get(key, -1)


@pytest.mark.parametrize("slots", [2, 3, 7, 64, 1000])
def test_a_table_that_is_used_up_but_for_one_slot(slots: int) -> None:
    """Runs of used slots go on at the table's start, and a search for what is not there ends."""
    for _ in range(20):
        made = OffsetMap(slots * SLOT, 1.0)
        count = 0
        while not made.is_full:
            made.put(b"key %d" % count, count)
            count += 1
        assert len(made) == count == made.usable == slots - 1
        assert [made.get(b"key %d" % number) for number in range(count)] == list(range(count))
        assert made.get(b"another") == -1


def test_a_full_map_takes_no_key() -> None:
    made = OffsetMap(10 * SLOT, 0.3)
    for number in range(3):
        assert not made.is_full
        made.put(b"%d" % number, number)
    assert made.is_full
    for key in (b"0", b"new"):
        with pytest.raises(AssertionError, match="full"):
            made.put(key, 9)
    assert (made.get(b"0"), made.get(b"new"), made.latest_offset, len(made)) == (0, -1, 2, 3)


@pytest.mark.parametrize(
    ("memory", "load", "slots", "usable"),
    [
        (128 << 20, 0.9, 5592405, 5033164),  # log.cleaner.dedupe.buffer.size, one thread
        (48, 0.9, 2, 1),
        (71, 0.5, 2, 1),
        (240, 1.0, 10, 9),
        (240, 0.01, 10, None),
        (47, 0.9, 1, None),
        (23, 0.9, 0, None),
        (0, 0.9, 0, None),
        (-5, 0.9, 0, None),
    ],
)
def test_sizes(memory: int, load: float, slots: int, usable: int | None) -> None:
    if usable is None:
        with pytest.raises(ValueError, match="too small for a key"):
            OffsetMap(memory, load)
    else:
        made = OffsetMap(memory, load)
        assert (made.slots, made.usable) == (slots, usable)
        assert made.memory <= memory
        assert (len(made), made.is_full, made.latest_offset) == (0, False, -1)


@given(most=st.integers(0, 10_000), load=st.floats(0.01, 1.0), memory=st.integers(2400, 1 << 18))
def test_no_larger_than_the_keys_need(most: int, load: float, memory: int) -> None:
    whole = OffsetMap(memory, load)
    made = OffsetMap(memory, load, most=most)
    assert made.slots <= min(whole.slots, max(most, 1) / load + 2)
    assert made.usable >= min(most, whole.usable)


@pytest.mark.parametrize("load", [0.0, -1.0, 1.1, float("nan")])
def test_impossible_load_factors(load: float) -> None:
    with pytest.raises(ValueError, match="load factor"):
        OffsetMap(1000, load)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_secrets_of_another_size(size: int) -> None:
    with pytest.raises(ValueError, match="secret"):
        OffsetMap(1000, secret=bytes(size))


def test_its_memory_is_what_its_keys_need() -> None:
    made = OffsetMap(1 << 62)
    assert made.memory <= 1 << 17
    count = 100_000
    for number in range(count):
        made.put(b"key %d" % number, number)
    assert SLOT * count <= made.memory <= SLOT * count * 4
    assert len(made) == count
    assert all(made.get(b"key %d" % number) == number for number in range(count))
    assert all(made.get(b"no key %d" % number) == -1 for number in range(1000))


@pytest.mark.parametrize("slots", [4096, 4097, 8191, 20_000])
def test_it_grows_up_to_its_limit(slots: int) -> None:
    made = OffsetMap(slots * SLOT + 23, 0.9)
    for number in range(made.usable):
        assert not made.is_full
        assert made.memory <= slots * SLOT
        made.put(b"key %d" % number, number)
    assert made.is_full
    assert (made.memory, made.usable) == (slots * SLOT, int(slots * 0.9))
    assert all(made.get(b"key %d" % number) == number for number in range(made.usable))


def test_a_map_that_gets_no_more_memory_is_full_earlier() -> None:
    code = """
import resource
from storage.compaction._offset_map import OffsetMap

made = OffsetMap(1 << 30)
for number in range(1000):
    made.put(b"%d" % number, number)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20),) * 2)
while not made.is_full:
    number += 1
    made.put(b"%d" % number, number)
assert made.latest_offset == number == len(made) - 1
assert made.memory < 4 << 20
assert all(made.get(b"%d" % n) == n for n in range(number + 1))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
