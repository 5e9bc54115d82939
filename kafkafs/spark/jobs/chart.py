"""Draws the figures of `stats`: rates over time by topic, and sizes by partition.

matplotlib draws without a display. The chart shows the largest topics and partitions, and the
others as one. It leaves out a few records that lie far away in time, and its title counts them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kafkafs.spark.jobs.stats_report import TopicStats
from storage.errors import InvalidConfig
from storage.units import duration_in_words

if TYPE_CHECKING:
    from kafkafs.spark.jobs.range_stats import RangeStats

_MOST_LINES = 8
_MOST_BARS = 32
_MOST_STEPS = 200
_LONGEST_NAME = 28
# The chart leaves out bins at the ends with at most this share of the records, if the other bins
# span at most a tenth of the time.
_FAR = 0.001
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


def check(path: str) -> None:
    """Raise InvalidConfig if `path` cannot be a chart, ModuleNotFoundError without matplotlib."""
    if not path.lower().endswith((".png", ".svg")):
        raise InvalidConfig(f"{path}: the name of a chart must end in .png or .svg")
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        raise InvalidConfig(f"{path}: directory {directory} does not exist")
    import matplotlib  # noqa: F401


def draw(counted: TopicStats, path: str) -> None:
    """Draw the chart into the file `path`, which it replaces. OSError."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    topics = _topics(counted.partitions)
    with mpl.rc_context({"font.size": 10, "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 7.5), dpi=120, layout="constrained")
        rates, sizes = figure.subplots(2, 1)
        colours = _rates(rates, topics)
        _sizes(sizes, counted, colours)
        if rates.lines:
            # Below the axes it covers nothing.
            names = rates.get_legend_handles_labels()
            figure.legend(*names, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path)


def _topics(partitions: Sequence[RangeStats]) -> dict[str, RangeStats]:
    """Return the figures of each topic, most records first. The last one sums up small topics."""
    from kafkafs.spark.jobs.range_stats import total_of

    # They are in the order of topics.
    topics = groupby(partitions, key=lambda stats: stats.topic)
    totals = [total_of(topic, parts) for topic, parts in topics]
    totals.sort(key=lambda total: -total.records)
    if len(totals) > _MOST_LINES:
        others = totals[_MOST_LINES - 1 :]
        totals[_MOST_LINES - 1 :] = [total_of(f"{len(others)} other topics", others)]
    return {total.topic: total for total in totals}


def _rates(axes: Any, topics: dict[str, RangeStats]) -> dict[str, str]:
    """Draw records a second over time, a line for each topic; return the colours of the lines."""
    from matplotlib import dates

    from kafkafs.spark.jobs.range_stats import WIDTHS_MS

    plain: Any = dates  # without types
    width_ms = max((stats.width_ms for stats in topics.values()), default=WIDTHS_MS[0])
    first, last, hidden = _range(list(topics.values()), width_ms)
    while last - first > _MOST_STEPS * width_ms and width_ms < WIDTHS_MS[-1]:
        width_ms = WIDTHS_MS[WIDTHS_MS.index(width_ms) + 1]
    first, last = first - first % width_ms, last - last % width_ms
    for stats in topics.values():
        stats.widen(width_ms)
    colours = {name: f"C{number}" for number, name in enumerate(topics)}
    # An empty bin at each end shows where the rate rises and falls.
    starts = range(first - width_ms, last + 2 * width_ms, width_ms)
    times = [datetime.fromtimestamp(start / 1000, UTC) for start in starts]
    for name, stats in topics.items() if last >= 0 else ():
        rate = [stats.bins.get(start, [0])[0] * 1000 / width_ms for start in starts]
        axes.step(times, rate, where="post", color=colours[name], label=_short(name), linewidth=1.4)
    locator = plain.AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(plain.ConciseDateFormatter(locator))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("records per second")
    axes.set_xlabel("time of the records, UTC")
    left_out = f"; {hidden:,} far outside of this time are omitted" if hidden else ""
    step = duration_in_words(width_ms)
    axes.set_title(f"Records over time, in steps of {step}{left_out}", loc="left")
    axes.grid(axis="y", alpha=0.3)
    return colours


def _range(topics: Sequence[RangeStats], width_ms: int) -> tuple[int, int, int]:
    """Return the first and last bin to draw (-1: none), and the number of records outside."""
    bins: Counter[int] = Counter()
    for stats in topics:
        bins.update({start: records for start, (records, _) in stats.bins.items()})
    if not bins:
        return -1, -1, 0
    starts = sorted(bins)
    spare = bins.total() * _FAR
    first, last = 0, len(starts) - 1
    hidden = 0
    while first < last:
        # Drop the end bin that is farther away from its neighbour.
        low = starts[first + 1] - starts[first]
        high = starts[last] - starts[last - 1]
        drop = bins[starts[first if low >= high else last]]
        if hidden + drop > spare:
            break
        hidden += drop
        first, last = (first + 1, last) if low >= high else (first, last - 1)
    if (starts[last] - starts[first] + width_ms) * 10 > starts[-1] - starts[0]:
        return starts[0], starts[-1], 0
    return starts[first], starts[last], hidden


def _sizes(axes: Any, counted: TopicStats, colours: dict[str, str]) -> None:
    """Draw the bytes of log of each partition, in the colour of its topic's line."""
    by_size = sorted(sorted(counted.log_bytes.items()), key=lambda item: -item[1])
    shown = len(by_size) if len(by_size) <= _MOST_BARS else _MOST_BARS - 1
    logs, rest = sorted(by_size[:shown]), by_size[shown:]
    others = next(reversed(colours.values()), "C0")
    names = [f"{_short(topic)}-{partition}" for (topic, partition), _ in logs]
    values = [size for _, size in logs]
    shades = [colours.get(topic, others) for (topic, _), _ in logs]
    if rest:
        names.append(f"{len(rest)} more")
        values.append(sum(size for _, size in rest))
        shades.append("0.6")
    factor, unit = next(each for each in _UNITS if each[0] <= max([*values, 1]))
    positions = range(len(values))
    axes.bar(positions, [value / factor for value in values], color=shades, width=0.75)
    axes.set_xticks(positions, names)
    if len(names) > 8 or max(map(len, names), default=0) > 12:
        axes.tick_params(axis="x", labelrotation=45, labelsize=8)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")
    axes.set_ylabel(unit)
    axes.set_title("Size of the logs", loc="left")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
