"""Every target on mutated seeds, and the hot loops on crafted bytes.

A short run of what `scripts/fuzz` and `tests.fuzz.campaign` do for long.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz.campaign import inputs_of
from tests.fuzz.directories import DIRECTORIES, NAMES, pack, unpack
from tests.fuzz.directory_seeds import directory_seeds
from tests.fuzz.loops import LOOPS
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

INTERESTING = [
    bytes(1), bytes(4), bytes(8), b"\xff", b"\xff" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff",
    b"\x80\0\0\0", b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), b"\x01", b"\x02", b"\0\0\0\x0e",
]  # fmt: skip


def mutated(name: str) -> st.SearchStrategy[bytes]:
    """A seed, or two in one, that is damaged."""
    known = st.sampled_from(seeds(name))
    return (known | st.tuples(known, known).map(b"".join)).flatmap(damaged)


@st.composite
def damaged(draw: st.DrawFn, data_before: bytes) -> bytes:
    """Some bytes are changed, put in, taken out or repeated."""
    data = bytearray(data_before)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        count = draw(st.integers(0, 8))
        what = draw(st.sampled_from(["flip", "put", "over", "cut", "repeat", "end"]))
        if what == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "put":
            data[at:at] = draw(st.binary(max_size=8))
        elif what == "over":
            piece = draw(st.sampled_from(INTERESTING))
            data[at : at + len(piece)] = piece
        elif what == "cut":
            del data[at : at + count]
        elif what == "repeat":
            data[at:at] = data[at : at + count]
        elif what == "end":
            del data[at:]
    return bytes(data)


FOUND = [
    # A tagged field whose size is negative.
    (
        "dumped_coordinator_record",
        "05000b00010000000000000000000000ffffff00a1a1a16d658effff946a6a6a0000",
    ),
]


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_was_found_once(name: str, data: str) -> None:
    TARGETS[name](bytes.fromhex(data))


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_valid(name: str) -> None:
    for seed in seeds(name):
        TARGETS[name](seed)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
def test_mutated_seeds(name: str, data: st.DataObject) -> None:
    TARGETS[name](data.draw(mutated(name)))


@st.composite
def mutated_directories(draw: st.DrawFn) -> bytes:
    """A directory with one or two damaged files, or with one too many or too few."""
    files = unpack(draw(st.sampled_from(directory_seeds())))
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(files)))
        what = draw(st.sampled_from(["damage", "damage", "remove", "copy"]))
        if what == "damage":
            files[name] = draw(damaged(files[name]))
        elif what == "copy":
            files[draw(st.sampled_from(NAMES))] = files[name]
        elif len(files) > 1:
            del files[name]
    return pack(files, right=draw(st.booleans()))


@pytest.mark.parametrize("name", DIRECTORIES)
def test_directories_are_valid(name: str) -> None:
    for seed in directory_seeds():
        DIRECTORIES[name](seed)


#: A log of a v0 wrapper with three messages, of offsets 0 to 2. The wrapper's offset is 0.
WRAPPER_TOO_LOW = bytes.fromhex(
    "0000005d0000000000000000000000518f712dd50001ffffffff000000431f8b080000000000000363608003e13507"
    "5a80d47f200052ac658939a5a950294690748cb76d2d5c318a3413108b29871d3407f398b3532be12a0097734430"
    "60000000"
)


@pytest.mark.parametrize("name", DIRECTORIES)
@given(data=mutated_directories())
@example(WRAPPER_TOO_LOW)
def test_mutated_directories(name: str, data: bytes) -> None:
    DIRECTORIES[name](data)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.binary(max_size=200))
@settings(max_examples=30)
def test_garbage(name: str, data: bytes) -> None:
    TARGETS[name](data)


@pytest.mark.parametrize("name", LOOPS)
def test_loops_on_crafted_bytes(name: str) -> None:
    one = inputs_of(name, Random(name))
    for _ in range(200):
        LOOPS[name](one())
