"""`kafkafs points`: lists the restore points of a mirror, names and removes them."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import resolve_directory
from kafkafs.cli.common.ending import end, fail
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.words import Logs
from kafkafs.cli.topics.facts import mirror_of
from kafkafs.quantities import Size, TimeMs, Value

if TYPE_CHECKING:
    from storage.files import Files
    from storage.state.mirror_file import MirrorFile
    from storage.state.point_file import Point

_COLUMNS = ("point", "time", "state", "partitions", "groups", "records", "lag", "size")


@click.command(
    "points",
    epilog=examples(
        "kafkafs points backup",
        "kafkafs points backup --keep before-upgrade",
        "kafkafs points backup --keep monday 20260131T021500Z",
        "kafkafs points backup --remove monday",
    ),
)
@click.argument("data", metavar="DATA|MOUNT", type=Logs())
@click.argument("point", metavar="[POINT]", required=False)
@click.option(
    "--keep",
    metavar="NAME",
    help=(
        "Name POINT, by default the newest valid one without a name. The mirror keeps a named "
        "point, and its retention keeps the records of the point."
    ),
)
@click.option("--remove", metavar="POINT", help="Remove a point.")
@output_options("`points`, after the change, and `notes`", times=True, sizes=True)
def command(
    data: str, point: str | None, keep: str | None, remove: str | None, out: Output
) -> None:
    """List the restore points of a mirror. The mirror may be running.

    A restore point is a state that `kafkafs handover --at POINT` can give to a broker: all records
    up to an offset in each partition, and what the consumer groups had committed. Its name is its
    time in UTC, or a name that you have given.

    The column `records` shows the number of records up to the point, and `lag` how many records the
    mirror has copied since. `size` is the size of the segments that the point needs: retention
    keeps them if the point has a name of yours. The state is `valid`, or one of these: `invalid`,
    the copy was too late; `split`, a transaction is committed in a part of its partitions only;
    `incomplete`, retention has deleted records since, or the cluster has lost some.
    """
    from storage.errors import StorageError
    from storage.files import Files
    from storage.state import point_file

    if point is not None and keep is None:
        raise click.UsageError("POINT requires --keep NAME")
    where = resolve_directory((data,), needs="files")
    files = Files(where.data_dir)
    names = point_file.names(files, where.data_dir)
    found: dict[str, Point] = {}
    for name in names:
        try:
            found[name] = point_file.read(files, where.data_dir, name)
        except FileNotFoundError:
            pass  # it was thinned meanwhile
        except (StorageError, OSError) as error:
            out.report(error)
    segments = _Segments(files, where.data_dir)
    if keep is not None and point is None:
        point = max(
            (
                name
                for name, each in found.items()
                if each.state == point_file.VALID
                and point_file.time_of(name) is not None
                and not segments.why_incomplete(each)
            ),
            default=None,
        )
        if point is None:
            raise fail(f"{data}: there is no valid restore point without a name")
    for name in filter(None, (point, remove)):
        if name not in names:
            raise fail(f"{data}: there is no restore point {name!r}")
    if point is not None and point not in found:
        end(failed=True)  # the output says why it cannot be read
    if point is not None and keep is not None:
        point_file.keep(files, where.data_dir, point, keep)
        found[keep] = found.pop(point)
    if remove is not None:
        point_file.remove(files, where.data_dir, remove)
        found.pop(remove, None)
    mirror = mirror_of(where)
    rows = [_row(name, each, segments, mirror) for name, each in found.items()]
    out.listing("points", _COLUMNS, rows)
    end(failed=out.has_failed)


def _row(
    name: str, point: Point, segments: _Segments, mirror: MirrorFile | None
) -> dict[str, Value]:
    lag: int | None = None
    if mirror is not None:
        copies = mirror.partitions
        lag = sum(
            max(0, copies[item].end - each.end)
            for item, each in point.partitions.items()
            if item in copies
        )
    size = sum(
        segments.size(segments.name_of(topic, point.ids[topic]), number, each.start, each.end)
        for (topic, number), each in point.partitions.items()
    )
    incomplete = segments.why_incomplete(point)
    return {
        "point": name,
        "time": TimeMs(point.time_ms),
        "state": f"incomplete: {incomplete}" if incomplete else point.state_text,
        "partitions": len(point.partitions),
        "groups": len(point.groups),
        "records": sum(each.end - each.start for each in point.partitions.values()),
        "lag": lag,
        "size": Size(size),
    }


class _Segments:
    """The sizes of the `.log` files of partitions, by base offset."""

    def __init__(self, files: Files, data_dir: str) -> None:
        from storage.errors import CorruptCheckpoint
        from storage.paths import LOG_STARTS, partitions_in
        from storage.state.checkpoint_file import read_offsets

        self._files = files
        self._data_dir = data_dir
        self._topics = partitions_in(files.listing(data_dir))
        self._starts: dict[tuple[str, int], int] = {}
        with contextlib.suppress(CorruptCheckpoint):
            self._starts = read_offsets(files, os.path.join(data_dir, LOG_STARTS))
        self._of = cache(self._look)

    def name_of(self, topic: str, topic_id: str) -> str:
        """Return the name of the copy of a topic, which may have been created again."""
        from storage.state.mirror_file import kept_name

        kept = kept_name(topic, topic_id)
        return kept if kept in self._topics else topic

    def why_incomplete(self, point: Point) -> str:
        """Return which records of a point the logs do not have any more; "": they have all."""
        from storage.errors import CorruptCheckpoint
        from storage.paths import partition_directory
        from storage.state import gaps_file
        from storage.state.point_file import lost_from

        for (topic, number), each in point.partitions.items():
            name = self.name_of(topic, point.ids[topic])
            bases, _ = self._of(name, number)
            is_there = bases and max(bases[0], self._starts.get((name, number), 0)) <= each.start
            if each.start < each.end and not is_there:
                return f"records of {topic}:{number} were deleted"
            directory = os.path.join(self._data_dir, partition_directory(name, number))
            try:
                lost = lost_from(point, each, gaps_file.read(self._files, directory))
            except (CorruptCheckpoint, OSError):
                return f"{gaps_file.FILE_NAME} of {topic}:{number} cannot be read"
            if lost is not None:
                return f"the cluster has lost records of {topic}:{number}"
        return ""

    def size(self, topic: str, number: int, start: int, end: int) -> int:
        """Return the bytes of the segments that have these offsets."""
        bases, sums = self._of(topic, number)
        first, last = max(bisect_right(bases, start) - 1, 0), bisect_left(bases, end)
        return sums[last] - sums[first] if first < last else 0

    def _look(self, topic: str, number: int) -> tuple[list[int], list[int]]:
        from storage import paths

        directory = os.path.join(self._data_dir, paths.partition_directory(topic, number))
        try:
            bases = paths.log_bases(self._files.names(directory))
            logs = (os.path.join(directory, paths.file_name(base, paths.LOG)) for base in bases)
            sizes = [self._files.file_stat(log).st_size for log in logs]
        except OSError:
            return [], [0]
        return bases, list(accumulate(sizes, initial=0))
