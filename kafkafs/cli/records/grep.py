"""`kafkafs grep`: prints the records whose values contain a word.

A value matches if `LC_ALL=C grep -a -F` matches it. The search reads batch by batch, and looks for
the words in the bytes of a whole batch first (`storage.record.columns._predicate`). Only a batch
that has them is read record by record. If a segment has `.words`, only its blocks that may have the
words are read.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from kafkafs.cli import LikeAnotherProgram, examples
from kafkafs.cli.common.addresses import CLUSTER, Address, note_first_words
from kafkafs.cli.common.clusters import (
    Client,
    cluster_address,
    cluster_options,
    is_cluster,
    partitions_of,
)
from kafkafs.cli.common.ending import FOUND, failure, warn
from kafkafs.cli.common.matching import Report, Scan, first_records, scan, text_of
from kafkafs.cli.common.mount_files import opened_tree
from kafkafs.cli.common.output import Output, binary_stdout, output_options
from kafkafs.cli.common.ranges import Range, resolve_ranges
from kafkafs.cli.common.views import view_option
from kafkafs.cli.common.words import Logs, Topic, options_as, words_argument
from kafkafs.progress import Bar
from storage.errors import StorageError, TaskCancelled
from storage.paths import INTERNAL_TOPICS

if TYPE_CHECKING:
    from kafkafs.views import TextView
    from storage.condition.condition import Condition
    from storage.record.header import Buffer

#: Exit statuses of grep. The command has no others for these.
_NOTHING_FOUND = FOUND
_FAILED = 2

_Part = tuple[str, int, Callable[[Report], Scan]]
"""A topic, a partition, and a function that begins to search it."""


class _Wanted(NamedTuple):
    """The options that select records."""

    given: tuple[str, ...]
    needs_all: bool
    fold: bool
    whole: bool
    inverted: bool
    key: str | None

    def options(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the options of the command line, with the words."""
        flags = {"--and": self.needs_all, "-i": self.fold, "-w": self.whole, "-v": self.inverted}
        yield from (name for name, is_set in flags.items() if is_set)
        for name, values in (("--key", filter(None, [self.key])), ("-e", words)):
            for value in values:
                yield from (name, value)

    def condition(self, words: Sequence[bytes]) -> Condition:
        """Return the condition for the records that are selected."""
        from storage.condition.condition import Among, Condition, Contains, Every, Part

        groups = [(each,) for each in words] if self.needs_all else [tuple(words)]
        found: Part = Every(
            tuple(Contains("value", group, self.fold, self.whole) for group in groups)
        )
        if self.inverted:
            found = found.negated()
        if self.key is not None:
            found = Every((Among("key", (os.fsencode(self.key),)), found))
        return Condition(found, "")

    def bounded(self, words: Sequence[bytes]) -> Condition | None:
        """Return the condition with `-w`, if `.words` can help more for that one."""
        from storage.split.word_query import query_of

        with_w = self._replace(whole=True).condition(words)
        if query_of(self.condition(words).part) == query_of(with_w.part):
            return None
        return with_w


class _Shown(NamedTuple):
    """The options that say what is printed of the records."""

    count_only: bool
    list_only: bool
    without_names: bool
    with_offsets: bool
    most: int | None

    @property
    def has_records(self) -> bool:
        return not (self.count_only or self.list_only)


_WANTED = options_as(
    "wanted",
    _Wanted,
    click.option(
        *("-e", "--regexp", "given"),
        metavar="WORD",
        multiple=True,
        help="Search for WORD. If there are several -e, a record matches if it contains one.",
    ),
    click.option(
        *("--and", "needs_all"), is_flag=True, help="A record must contain the words of all -e."
    ),
    click.option(
        *("-i", "--ignore-case", "fold"), is_flag=True, help="Ignore the case of ASCII letters."
    ),
    click.option(
        *("-w", "--word-regexp", "whole"),
        is_flag=True,
        help="WORD must not be a part of a longer word. Words consist of A-Z, a-z, 0-9 and _.",
    ),
    click.option(
        *("-v", "--invert-match", "inverted"),
        is_flag=True,
        help="Select the records that do not match.",
    ),
    click.option("--key", metavar="KEY", help="Search only the records with this key."),
)
_SHOWN = options_as(
    "shown",
    _Shown,
    click.option(
        *("-c", "--count", "count_only"),
        is_flag=True,
        help="Print only the number of records, per partition.",
    ),
    click.option(
        *("-l", "--list", "list_only"),
        is_flag=True,
        help="Print only the names of the partitions that have such records.",
    ),
    click.option(
        *("-h", "--no-filename", "without_names"),
        is_flag=True,
        help="Print no names of partitions before the records.",
    ),
    click.option(
        *("-n", "--offset", "with_offsets"),
        is_flag=True,
        help="Print the offset before each record.",
    ),
    click.option(
        *("-m", "--max-count", "most"),
        metavar="N",
        type=click.IntRange(min=0),
        help="Stop after N records in each partition.",
    ),
)


@click.command(
    "grep",
    cls=LikeAnotherProgram,
    failed=_FAILED,
    context_settings={"help_option_names": ["--help"]},
    epilog=examples(
        "kafkafs grep order-4711 data",
        "kafkafs grep -w 10.1.2.3 mnt/web",
        "kafkafs grep -n -m 1 timeout data logs:0@-2h",
        "kafkafs grep -e timeout -e refused --and -i data logs",
        "kafkafs grep -c error data logs@2026-11-01..2026-12-01",
        "kafkafs grep paid --key order-4711 --view jsonl kafka://broker:9092/orders",
    ),
)
@_WANTED
@_SHOWN
@view_option
@cluster_options
@output_options("the matches of each partition (-l: at most 1); the records as in .jsonl")
@words_argument(
    f"[WORD] DATA|{CLUSTER} [TOPIC[:PARTITION][@START[..END]]]...",
    Logs(Topic(partition=True), after="given"),
)
def command(
    words: Sequence[str],
    wanted: _Wanted,
    shown: _Shown,
    view: str,
    client: Client,
    out: Output,
) -> None:
    """Print the records whose values contain WORD. The directory may be in use.

    A record matches if `LC_ALL=C grep -a -F` matches its value. A value with several lines matches
    and is printed as a whole. An empty WORD matches all records. Records of aborted and of open
    transactions do not match.

    If `kafkafs words` has built files for closed segments, grep reads only the parts in which the
    words of WORD may occur. Without -w, a word at the start or the end of WORD does not count for
    that, because it may be a part of a longer word. grep does not report damage in the parts that
    it skips; `kafkafs verify` finds it.

    DATA, topics and @START..END are those of `kafkafs cat`. Without a topic, grep searches all
    topics but those that Kafka itself uses. If it searches several partitions, each record begins
    with `TOPIC:PARTITION:`.

    The exit status is that of grep(1): 0 if a record matches, 1 if none matches, and 2 if there was
    an error, also if a record matches.
    """
    from kafkafs.views import TEXT_VIEWS

    given = list(wanted.given)
    if not given:
        given, words = [words[0]], words[1:]
    note_first_words(*wanted.options(given))
    if not words:
        raise click.UsageError("give a word and a directory: WORD DATA [TOPIC]")
    if any("\n" in word for word in given):
        raise click.UsageError("WORD must not contain a newline. To search for several words: -e")
    needles = [os.fsencode(word) for word in given]
    condition = wanted.condition(needles)
    marked = None
    if _has_colours():
        shown_words = [] if wanted.inverted else needles
        marked = _marker(shown_words, fold=wanted.fold, whole=wanted.whole)
    if is_cluster(words[0]):
        parts = _parts_of_cluster(words, condition, client, out)
    else:
        client.check_unused()
        address, view, ranges = resolve_ranges(words)
        parts = _parts_of_directory(address, view, ranges, condition)
    if view == "batches":
        raise click.UsageError("grep prints records as text, not as --view batches")
    text_view = TEXT_VIEWS["jsonl" if out.as_json else view]()
    with parts as found:
        is_found, searches = _search(found, text_view, shown, marked, out)
        bounded = wanted.bounded(needles)
        if bounded is not None and not out.as_json and len(searches) == len(found):
            _name_whole_words(searches, condition, bounded, out)
    sys.exit(_FAILED if out.has_failed else 0 if is_found else _NOTHING_FOUND)


@contextmanager
def _parts_of_directory(
    address: Address, view: str, ranges: Sequence[Range], condition: Condition
) -> Iterator[list[_Part]]:
    # Those that Kafka uses have the offsets of groups.
    topics = {topic for topic, _, _ in ranges} | INTERNAL_TOPICS
    with opened_tree(address.data_dir, topics=topics) as tree:
        yield [
            (topic, number, partial(scan, tree, topic, number, view, points, condition))
            for topic, number, points in ranges
            if address.places or topic not in INTERNAL_TOPICS
        ]


@contextmanager
def _parts_of_cluster(
    words: Sequence[str], condition: Condition, client: Client, out: Output
) -> Iterator[list[_Part]]:
    from kafkafs.cli.clusters.pieces import ClusterReader
    from kafkafs.cli.clusters.ranges import parsed_range, spans
    from kafkafs.cli.clusters.text import scan_of

    address = cluster_address(words, ranges=True)
    for each in address.places:
        parsed_range(each.range, follow=False)
    with client.connected(address.brokers) as cluster:
        reader = ClusterReader(cluster, out.report, committed=True)
        named = partitions_of(cluster, address, out.report)
        found = [each for each in named if address.places or each[0].topic not in INTERNAL_TOPICS]
        yield [
            (*partition, partial(scan_of, reader, partition, span, condition))
            for partition, span in spans(reader, found, follow=False)
        ]


def _search(
    parts: Sequence[_Part],
    view: TextView,
    shown: _Shown,
    marked: Callable[[bytes], bytes] | None,
    out: Output,
) -> tuple[bool, list[Scan]]:
    """Search partitions, and print what is found. Return whether anything was found, and the
    searches that have reached the end of their partitions.
    """
    results: list[dict[str, Any]] = []
    searches: list[Scan] = []
    most = 1 if shown.list_only and shown.most != 0 else shown.most
    # Partitions that cannot be read have been reported.
    is_named = (len(parts) > 1 or out.has_failed) and not shown.without_names
    with binary_stdout() as stdout, closing(Bar()) as bar:
        # As GNU grep: -m 0 prints nothing, not even counts.
        for topic, number, begin in parts if most != 0 else ():
            name, matches, records = f"{topic}:{number}", 0, list[Any]()
            labels = [name] if is_named else []
            for batch, count in _batches(begin, name, bar, out, searches):
                if most is not None and count > most - matches:
                    count = most - matches
                    batch = first_records(batch, count) if shown.has_records else batch
                matches += count
                if shown.has_records and out.as_json:
                    records += [json.loads(line) for _, line in _lines(batch, view)]
                elif shown.has_records:
                    if stdout.isatty():
                        bar.close()
                    if labels or shown.with_offsets or marked:
                        for offset, line in _lines(batch, view):
                            more = [str(offset)] if shown.with_offsets else []
                            _write(stdout, labels + more, line, marked)
                    else:
                        stdout.write(text_of(view, batch))
                    if stdout.isatty():
                        stdout.flush()
                if matches == most:
                    break
            result = {"topic": topic, "partition": number, "matches": matches}
            results.append({**result, "records": records} if shown.has_records else result)
            if shown.has_records or out.as_json:
                continue
            bar.close()
            if shown.list_only:
                stdout.write(f"{name}\n".encode() if matches else b"")
            else:
                _write(stdout, labels, b"", marked)
                stdout.write(b"%d\n" % matches)
    out.json({"partitions": results})
    return any(each["matches"] for each in results), searches


def _name_whole_words(
    searches: Sequence[Scan], condition: Condition, bounded: Condition, out: Output
) -> None:
    """Name `-w` if the search for `bounded`, the condition with it, would have read half at most.

    Errors: OSError.
    """
    read, needed = (sum(s.bytes_for(each) for s in searches) for each in (condition, bounded))
    if read and needed <= read / 2:
        warn(
            f"grep read {out.size(read)} of log, because WORD may be a part of longer words. With "
            f"-w, it reads about {out.size(needed)}"
        )


def _batches(
    begin: Callable[[Report], Scan], name: str, bar: Bar, out: Output, searches: list[Scan]
) -> Iterator[tuple[Buffer, int]]:
    """Yield the batches that are found, with their numbers of records, and show the progress.

    At the end of the partition, add the search to `searches`. Errors are reported. All but damage
    end the search before that. Errors: ClientError, TaskCancelled.
    """
    from kafka_client.errors import ClientError
    from storage.record.header import parse_header

    def report(error: Exception) -> None:
        bar.close()
        out.report(failure(error))

    is_shown = sys.stderr.isatty()
    shown = 0
    try:
        search = begin(report)
        for done, batch in search.batches:
            if is_shown and done - shown > search.total // 1000:
                shown = done
                bar.show(f"searching {name}", done, search.total, "offsets")
            if batch is not None:
                yield batch, parse_header(batch).records_count
        searches.append(search)
    except (ClientError, TaskCancelled):
        raise
    except (StorageError, OSError) as error:
        report(error)


def _lines(batch: Buffer, view: TextView) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the text of each record of a plain batch."""
    from storage.record.batch import plain_records

    text, at = text_of(view, batch), 0
    for record in plain_records(batch):
        # Only a value that is printed as it is can have several lines.
        size = len(record.value or b"") if view.name == "values" else text.index(b"\n", at) - at
        yield record.offset, text[at : at + size + 1]
        at += size + 1


def _write(
    out: BinaryIO, labels: Sequence[str], line: bytes, marked: Callable[[bytes], bytes] | None
) -> None:
    """Write a record after its labels, on a terminal in the colours of grep."""
    for label in labels:
        if marked is None:
            out.write(f"{label}:".encode())
        else:
            colour = 32 if label.isdigit() else 35
            out.write(f"\x1b[{colour}m{label}\x1b[36m:\x1b[m".encode())
    out.write(line if marked is None else marked(line))


def _has_colours() -> bool:
    dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not dumb


def _marker(words: Sequence[bytes], *, fold: bool, whole: bool) -> Callable[[bytes], bytes]:
    """Return a function that colours the words in a line."""
    longest_first = sorted(filter(None, words), key=len, reverse=True)
    if not longest_first:
        return lambda line: line
    pattern = b"|".join(map(re.escape, longest_first))
    if whole:
        pattern = rb"(?<![0-9A-Za-z_])(?:%s)(?![0-9A-Za-z_])" % pattern
    found = re.compile(pattern, re.IGNORECASE if fold else 0)
    return lambda line: found.sub(b"\x1b[01;31m\\g<0>\x1b[m", line)
