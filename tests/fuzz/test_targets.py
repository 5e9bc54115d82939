"""Every target on mutated seeds, and the hot loops on crafted bytes.

A short run of what `scripts/fuzz` and `tests.fuzz.campaign` do for long.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz.campaign import ALL, inputs_of, makers
from tests.fuzz.crafted import mutated
from tests.fuzz.directories import DIRECTORIES, NAMES, pack, unpack
from tests.fuzz.directory_seeds import directory_seeds
from tests.fuzz.loops import LOOPS
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS


def seeds_in(name: str) -> st.SearchStrategy[bytes]:
    """A seed, or two in one."""
    known = st.sampled_from(seeds(name))
    return known | st.tuples(known, known).map(b"".join)


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
@given(data=st.data(), chance=st.randoms(use_true_random=False))
def test_mutated_seeds(name: str, data: st.DataObject, chance: Random) -> None:
    TARGETS[name](mutated(chance, data.draw(seeds_in(name))))


@st.composite
def mutated_directories(draw: st.DrawFn) -> bytes:
    """A directory with one or two damaged files, or with one too many or too few."""
    files = unpack(draw(st.sampled_from(directory_seeds())))
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(files)))
        what = draw(st.sampled_from(["damage", "damage", "remove", "copy"]))
        if what == "damage":
            files[name] = mutated(draw(st.randoms(use_true_random=False)), files[name])
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


@pytest.mark.parametrize("name", [*LOOPS, *filter(makers, TARGETS)])
def test_crafted_bytes(name: str) -> None:
    one = inputs_of(name, Random(name))
    for _ in range(200 if name in LOOPS else 50):
        ALL[name](one())
