"""Each name of a group has one spelling, which is a file's name, and names nothing else."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkafs.tree.files.group_names import (
    LONGEST,
    file_name,
    group_name,
    is_shown,
    why_no_group,
)
from kafkafs.tree.files.start_names import Offset, OfGroup, parse_start_name

#: Characters of a group name in a record's key. Bytes that are not UTF-8 are surrogates.
CHARACTERS = st.one_of(
    st.sampled_from("./%~@= \n\x00\x1b\x7fAé\udc80\udcff"),
    st.characters(exclude_categories=["Cs"]),
)
NAMES = st.text(CHARACTERS, min_size=1, max_size=300).map(
    # Bytes that are UTF-8 after all are not spelt by surrogates.
    lambda text: text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
)


@pytest.mark.parametrize(
    ("group", "spelt"),
    [
        ("plain", "plain"),
        ("a b", "a b"),
        ("a/b", "a%2Fb"),
        ("%", "%25"),
        ("%2F", "%252F"),
        ("a\nb\x1b\x7f\0", "a%0Ab%1B%7F%00"),
        (".lag", "%2Elag"),
        (".", "%2E"),
        ("a..b.c.", "a.%2Eb.c%2E"),
        ("grün@=", "grün@="),
        ("x" * 200, "x" * 200),
    ],
)
def test_how_names_are_spelt(group: str, spelt: str) -> None:
    assert file_name(group) == spelt
    assert group_name(spelt) == group


@pytest.mark.parametrize(
    "spelt",
    [
        "",
        ".",
        "..",
        ".a",
        "a.",
        "a..b",
        "a/b",
        "%",
        "%2",
        "%2f",
        "%41",
        "a%",
        "%ZZ",
        "\n",
        "x" * 201,
    ],
)
def test_what_spells_no_group(spelt: str) -> None:
    assert group_name(spelt) is None


@pytest.mark.parametrize(
    ("given", "right"),
    [("a%2fb", "a%2Fb"), ("%41", "A"), ("a.", "a%2E"), ("50%", "50%25"), ("%zz", "%25zz")],
)
def test_the_right_spelling_is_that_of_what_was_meant(given: str, right: str) -> None:
    assert why_no_group(given) == f"no group has the file name {given!r}; use {right}"
    assert group_name(right) is not None


@given(NAMES)
@example("é" * 100)
@example("é" * 101)
@example("%" * 67)
def test_a_spelling_is_a_files_name_and_leads_back(group: str) -> None:
    spelt = file_name(group)
    name = os.fsencode(spelt)
    assert name
    assert is_shown(group) == (len(name) <= LONGEST)
    assert b"/" not in name
    assert not any(byte < 0x20 or byte == 0x7F for byte in name)
    assert not spelt.startswith(".")
    assert not spelt.endswith(".")
    assert ".." not in spelt
    assert group_name(spelt) == (group if is_shown(group) else None)


@given(NAMES, NAMES)
@example("x" * 300, "x" * 299)
@example("x" * 128 + "y" * 100, "x" * 128 + "z" * 100)
def test_two_groups_have_two_spellings(one: str, other: str) -> None:
    assert (file_name(one) == file_name(other)) == (one == other)


@given(st.text(CHARACTERS, max_size=250))
def test_no_group_has_two_spellings(spelt: str) -> None:
    group = group_name(spelt)
    assert group is None or file_name(group) == spelt


@given(NAMES)
@example("1..2")
@example("a=b..c")
def test_two_dots_end_it_in_a_start_name(group: str) -> None:
    spelt = file_name(group)
    for name, start, end in (
        (f"0@group={spelt}", OfGroup(spelt), None),
        (f"0@group={spelt}..", OfGroup(spelt), None),
        (f"0@group={spelt}..7", OfGroup(spelt), Offset(7)),
        (f"0@7..group={spelt}", Offset(7), OfGroup(spelt)),
    ):
        parsed = parse_start_name(name, 0)
        assert parsed is not None
        assert (parsed.partition, parsed.start, parsed.end) == ("0", start, end)
