"""The request to a log's owner to swap in segments that another process has cleaned.

A request is a JSON object, without a line's end. It identifies the source segments, so that the
owner can check that the log still has them, and the new ones, which are staged files in the
partition's directory: their names are those of a segment's files, and `suffix`.

Kafka ignores files of such names, and so does a start of ours. Files that belong to no request are
removed by their age, like all staged files.

Not here: carrying it out (`swap_in`), writing new segments (`staged_round`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from storage import paths
from storage.adopt.staged import StagedFile, StagedName, check_query, parse_name
from storage.errors import InvalidRecord

FIGURES = (
    "records_read",
    "records_kept",
    "records_invalid",
    "records_aborted",
    "markers",
    "rewritten",
    "map_keys",
    "map_full",
    "elapsed_ms",
)
"""The fields of `Cleaned` that only the cleaning process knows."""


class SourceSegment(NamedTuple):
    """A source segment, and the identity of its file. Size in bytes."""

    base_offset: int
    size: int
    inode: int
    mtime_ns: int


class NewSegment(NamedTuple):
    """A new segment, with offsets from `base_offset` to below `next_offset`.

    `suffix`: the ending of its files' names. `mtime_ns`: the mtime that its files get.
    """

    base_offset: int
    next_offset: int
    size: int
    inode: int
    mtime_ns: int
    suffix: str

    @property
    def name(self) -> str:
        """The name of its log."""
        return paths.file_name(self.base_offset, paths.LOG) + self.suffix


def staged_suffix(job: str, attempt: int) -> str:
    """Return the ending of the names of a round's new files. Each `attempt` has its own number."""
    return "." + str(StagedName(job, 0, 0, attempt))


class SwapRequest(NamedTuple):
    """Lets `new` replace `sources`, the first segments of a log.

    `first_dirty_offset`: the end of the log's clean part when they were read. `clean_up_to`: the
    same, after the swap; a full offset map ends it within the last source. `end_offset`: the end of
    the sources. Without `new` segments the sources stay.
    """

    topic: str
    partition: int
    job: str
    first_dirty_offset: int
    clean_up_to: int
    end_offset: int
    sources: tuple[SourceSegment, ...]
    new: tuple[NewSegment, ...]
    figures: Mapping[str, int]

    def staged_files(self) -> list[StagedFile]:
        """Return all files that the new segments may have; indexes count as 0 bytes."""
        return [
            StagedFile(
                self.topic,
                self.partition,
                paths.file_name(each.base_offset, kind) + each.suffix,
                each.size if kind == paths.LOG else 0,
            )
            for each in self.new
            for kind in (paths.LOG, *paths.INDEX_SUFFIXES)
        ]

    def encode(self) -> str:
        """Return one line, without its end."""
        fields = {**self._asdict(), "figures": dict(self.figures)}
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, fields: Any) -> SwapRequest:
        """Return the request of a parsed JSON value. Errors: InvalidRecord where it is none."""
        try:
            sources = tuple(SourceSegment(*each) for each in fields["sources"])
            new = tuple(NewSegment(*each) for each in fields["new"])
            request = cls(**{**fields, "sources": sources, "new": new})
        except (TypeError, KeyError) as error:
            raise InvalidRecord(f"invalid swap request: {error}") from None
        request.check()
        return request

    def check(self) -> None:
        """Check the values of all fields. Errors: InvalidRecord."""
        # The fields may have any type: they come from JSON.
        fields: dict[str, Any] = self._asdict()
        if not isinstance(fields["topic"], str) or not paths.is_topic_name(self.topic):
            raise InvalidRecord(f"{self.topic!r} is not a valid topic name")
        if not _is_number(self.partition) or self.partition > paths.MAX_PARTITION:
            raise InvalidRecord(f"{self.partition!r} is not a valid partition number")
        check_query(self.job)
        numbers = [self.first_dirty_offset, self.clean_up_to, self.end_offset]
        numbers += [number for source in self.sources for number in source]
        numbers += [number for segment in self.new for number in segment[:-1]]
        figures = fields["figures"]
        if not isinstance(figures, Mapping) or set(figures) != set(FIGURES):
            raise InvalidRecord("its figures are not those of a compaction")
        for number in (*numbers, *figures.values()):
            if not _is_number(number):
                raise InvalidRecord(f"{number!r} is not a valid number")
        self._check_ranges()
        for segment in self.new:
            suffix: Any = segment.suffix
            parsed = parse_name(segment.name) if isinstance(suffix, str) else None
            if parsed is None or segment.suffix != staged_suffix(self.job, parsed.attempt):
                raise InvalidRecord(
                    f"{segment.suffix!r} is not the suffix of a staged file of this job"
                )

    def _check_ranges(self) -> None:
        if not self.sources:
            raise InvalidRecord("the swap lists no segments")
        bases = [*(source.base_offset for source in self.sources), self.end_offset]
        if not all(one < other for one, other in pairwise(bases)):
            raise InvalidRecord("the compacted segments are not in ascending order")
        first = self.first_dirty_offset
        if not first <= self.clean_up_to <= max(first, self.end_offset):
            raise InvalidRecord(f"the log cannot be clean up to offset {self.clean_up_to}")
        if not self.new:
            return
        ends = [self.sources[0].base_offset, *(segment.next_offset for segment in self.new)]
        starts = [*(segment.base_offset for segment in self.new), self.end_offset]
        if ends != starts or not all(one < other for one, other in pairwise(starts)):
            raise InvalidRecord("the new segments are not contiguous")


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= paths.MAX_OFFSET
