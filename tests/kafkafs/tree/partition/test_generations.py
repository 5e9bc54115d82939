"""Generations against a model: for each open one, the text it must show, as a string."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafkafs.tree.partition.generations import Generation, Timeline
from storage.errors import SegmentGone

TEXTS = st.text("abcdefgh", max_size=6)


@dataclass(eq=False)
class FakeExtent:
    """An extent that holds its text."""

    text: str = ""
    gone: bool = False

    @property
    def text_length(self) -> int:
        return len(self.text)


def fake(text: str = "") -> Any:
    """Any: a timeline knows no more of an extent than the length of its text."""
    return FakeExtent(text)


def located(timeline: Timeline, absolute: int) -> Any:
    return Generation(timeline, 1, timeline.positioned[0][0]).locate(absolute)[0]


@dataclass
class Opened:
    """A generation, all of its text, and the ranges of absolute positions that stay in memory."""

    generation: Generation
    text: str
    kept: list[tuple[int, int]] = field(default_factory=list)


def read(generation: Generation, absolute: int, size: int) -> str:
    """Read as a reader does, extent by extent."""
    text = ""
    end = min(absolute + size, generation.timeline.end)
    while absolute + len(text) < end:
        at = absolute + len(text)
        if at < generation.first_valid:
            text += generation.kept(at, end - at).decode()
            continue
        extent, start = cast("tuple[Any, int]", generation.locate(at))
        assert not extent.gone
        assert start <= at < start + extent.text_length
        text += extent.text[at - start :][: end - at]
    return text


class History(RuleBasedStateMachine):
    """The log grows, rolls, loses its head and is cleaned, while generations are opened."""

    def __init__(self) -> None:
        super().__init__()
        self.extents = [fake()]
        self.timeline: Timeline = Timeline(self.extents)
        self.timeline.position(0, 0, 1000)
        self.open: list[Opened] = []
        self.retired: list[Any] = []

    def measured(self) -> None:
        if self.timeline.unpositioned:
            self.timeline.position()

    @rule(text=TEXTS)
    def append(self, text: str) -> None:
        self.extents[-1].text += text
        self.timeline.end = self.timeline.positioned[0][-1] + self.extents[-1].text_length
        for opened in self.open:
            opened.text += text

    @rule()
    def roll(self) -> None:
        self.extents.append(fake())
        self.timeline.extend(self.extents[-1])

    @rule(inside=st.integers(0, 3))
    def open_current(self, inside: int) -> None:
        """Also with a log start inside the first segment."""
        self.measured()
        inside = min(inside, self.extents[0].text_length)
        log_start = self.timeline.positioned[0][0] + inside
        text = "".join(extent.text for extent in self.extents)[inside:]
        self.open.append(Opened(Generation(self.timeline, len(self.open), log_start), text))

    def supersede(self, count: int) -> None:
        first = count - len(self.timeline.unpositioned)
        if first < 0:
            return
        cut = self.timeline.positioned[0][first]
        for opened in self.open:
            generation = opened.generation
            generation.supersede(cut)
            start = max(cut - 3, generation.first_valid)
            if start < cut:
                generation.keep(start, read(generation, start, cut - start).encode())
                opened.kept.append((start, cut))

    @precondition(lambda self: len(self.extents) > 1)
    @rule(data=st.data())
    def remove_head(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.extents) - 1))
        self.supersede(count)
        self.timeline.replace_head(count, ())
        self.retired += self.extents[:count]
        del self.extents[:count]

    @precondition(lambda self: len(self.extents) > 1)
    @rule(data=st.data(), texts=st.lists(TEXTS, max_size=3))
    def clean(self, data: st.DataObject, texts: list[str]) -> None:
        count = data.draw(st.integers(1, len(self.extents) - 1))
        self.supersede(count)
        new = [fake(text) for text in texts]
        self.timeline.replace_head(count, new)
        self.retired += self.extents[:count]
        self.extents[:count] = new

    @precondition(lambda self: self.retired)
    @rule()
    def delete_files(self) -> None:
        for extent in self.retired:
            extent.gone = True
            for opened in self.open:
                opened.generation.forget(lambda known: cast(Any, known).gone)
        self.retired.clear()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))

    @rule()
    def measure(self) -> None:
        self.measured()

    @invariant()
    def shows_its_history(self) -> None:
        for opened in self.open:
            generation = opened.generation
            assert generation.size == len(opened.text)
            for position in range(len(opened.text)):
                absolute = position + generation.origin
                kept = any(start <= absolute < end for start, end in opened.kept)
                if absolute >= generation.first_valid:
                    expected = opened.text[position : position + 5]
                    assert read(generation, absolute, 5) == expected
                elif not kept:
                    with pytest.raises(SegmentGone):
                        read(generation, absolute, 5)

    @invariant()
    def loses_no_more_than_is_gone(self) -> None:
        for opened in self.open:
            generation = opened.generation
            if generation.first_valid > generation.origin:
                assert generation.first_valid <= generation.timeline.end


History.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestHistory = History.TestCase


def test_a_placed_piece_grows_before_anybody_is_told() -> None:
    timeline = Timeline([fake("aa"), fake("b"), fake()])
    timeline.position(1, 1, 10)
    positioned: Any = timeline.positioned[1]
    positioned[0].text = "bbb"
    positioned[1].text = "c"
    timeline.position()
    assert (timeline.positioned[0], timeline.end) == ((8, 10, 13), 14)


def test_places_before_and_behind_the_anchor() -> None:
    timeline = Timeline([fake("aa"), fake("bbb"), fake("c")])
    timeline.position(0, 1, -10)
    assert timeline.positioned[0] == (-12, -10, -7)
    assert timeline.end == -6


def test_cleaned_pieces_end_where_the_first_uncleaned_one_begins() -> None:
    timeline = Timeline([fake("aa"), fake("bbb"), fake("c")])
    timeline.position()
    timeline.replace_head(2, [fake("a longer text")])
    assert list(timeline.positioned[0]) == [5]
    timeline.position()
    assert list(timeline.positioned[0]) == [-8, 5]
    assert located(timeline, 4).text == "a longer text"


def test_empty_pieces_hold_nothing() -> None:
    timeline = Timeline([fake("aa"), fake(), fake("c"), fake()])
    timeline.position()
    assert located(timeline, 2).text == "c"
    assert located(timeline, 1).text == "aa"


def test_what_was_kept_ends_with_the_next_cut() -> None:
    extents = [fake("abc"), fake("def"), fake("ghi")]
    timeline = Timeline(extents)
    timeline.position()
    generation = Generation(timeline, 1, 0)
    for count, text in ((1, b"bc"), (1, b"ef")):
        cut = timeline.positioned[0][count]
        generation.supersede(cut)
        generation.keep(cut - 2, text)
        timeline.replace_head(count, ())
    generation.forget(lambda extent: extent is extents[0])
    assert generation.first_valid == 3
    assert generation.kept(1, 9) == b"bc"
    assert read(generation, 3, 6) == "defghi"
    generation.forget(lambda extent: extent is extents[1])
    assert generation.first_valid == 6
    assert generation.kept(4, 1) == b"e"
    with pytest.raises(SegmentGone):
        generation.kept(3, 1)
    assert not generation.forget(lambda extent: extent is extents[0])


def test_what_was_kept_goes_back_over_several_cuts() -> None:
    """However small the segments are: what is kept before the last cut is not less for it."""
    extents = [fake("ab"), fake("cd"), fake("ef"), fake("gh")]
    timeline = Timeline(extents)
    timeline.position()
    generation = Generation(timeline, 1, 0)
    for extent in extents[:3]:
        cut = timeline.positioned[0][1]
        start = generation.first_valid
        generation.supersede(cut)
        generation.keep(start, read(generation, start, cut - start).encode())
        timeline.replace_head(1, ())
        generation.forget(lambda known, gone=extent: known is gone)  # type: ignore[misc]
    assert generation.first_valid == 6
    assert generation.kept(0, 8) == b"abcdef"
    assert read(generation, 1, 9) == "bcdefgh"


def test_the_example_of_the_page() -> None:
    """`docs/dev/history.md`"""
    ab, cd, e = fake("a\nb\n"), fake("c\nd\n"), fake("e\n")
    timeline = Timeline([ab, cd, e])
    timeline.position()
    first = Generation(timeline, nonce=1, start=0)
    assert (timeline.positioned[0], first.size) == ((0, 4, 8), 10)

    assert first.attach()
    timeline.replace_head(1, ())
    second = Generation(timeline, nonce=2, start=4)
    assert (timeline.positioned[0], second.size) == ((4, 8), 6)
    assert (first.size, read(first, 0, 10)) == (10, "a\nb\nc\nd\ne\n")

    assert second.attach()
    timeline.replace_head(1, [fake("d\n")])
    timeline.position()
    third = Generation(timeline, nonce=3, start=6)
    assert (timeline.positioned[0], third.size) == ((6, 8), 4)
    assert (second.size, read(second, 4, 6)) == (6, "c\nd\ne\n")

    e.text += "f\n"
    timeline.end = 12
    assert [each.size for each in (first, second, third)] == [12, 8, 6]
    assert read(third, 6, 6) == "d\ne\nf\n"
    first.forget(lambda extent: extent is ab)
    assert first.first_valid == 4
    assert read(first, 4, 8) == "c\nd\ne\nf\n"
