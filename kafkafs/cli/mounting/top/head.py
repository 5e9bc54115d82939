"""Makes the lines above the table, about the whole mount. It uses no terminal."""

from __future__ import annotations

import math
from collections.abc import Callable

from kafkafs.cli.mounting.top.rates import JobProgress, Latency, Rates
from kafkafs.cli.mounting.top.table import count_text
from kafkafs.quantities import human_size
from storage.plural import plural

_SizeText = Callable[[int], str]


def lines(rates: Rates, size_text: _SizeText = human_size) -> list[str]:
    """Return lines about the contents, the throughput, the disk, and the daemon's resources."""
    now, whole = rates.now, rates.whole

    def speed(amount: float | None) -> str:
        return "-" if amount is None else f"{size_text(int(amount))}/s"

    what = [
        _counted(now.value("topics"), "topic"),
        _counted(now.value("partitions"), "partition"),
        f"{size_text(whole.bytes)} on the disk",
        _counted(now.value("open_handles"), "open file"),
    ]
    if rates.is_read_only:
        what.append("read-only")
    flow = [
        f"in {count_text(whole.records_in)} records/s {speed(whole.bytes_in)}",
        f"out {speed(whole.bytes_out)}",
        f"{count_text(rates.rate('requests_total'))} requests/s",
        f"{count_text(rates.rate('request_errors_total'))} errors/s",
        f"{count_text(rates.rate('refused_appends_total'))} refused appends/s",
    ]
    disk = [
        _latency("flush", rates.latency("flush")),
        _latency("fsync", rates.latency("fsync")),
        f"{count_text(now.value('segment_descriptors'))} segment files open of "
        f"{count_text(now.value('segment_descriptors_limit'))}",
    ]
    cpu = rates.rate("process_cpu_seconds_total")
    daemon = [
        f"daemon cpu {'-' if cpu is None else f'{cpu:.0%}'}",
        f"memory {size_text(int(now.value('process_resident_memory_bytes')))}",
        _counted(now.value("events_total"), "event"),
    ]
    return [", ".join(what), ", ".join(flow), ", ".join(disk), ", ".join(daemon)]


def _counted(number: float, thing: str) -> str:
    return f"{count_text(number)} {plural(number, thing)}"


def _latency(name: str, latency: Latency) -> str:
    if latency.mean_s is None or latency.most_s is None:
        return f"{name} none"
    most = "over 10 s" if math.isinf(latency.most_s) else f"<= {_seconds(latency.most_s)}"
    mean = _seconds(latency.mean_s)
    return f"{name} {count_text(latency.per_second)}/s mean {mean} 99% {most}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def job_line(job: JobProgress, size_text: _SizeText = human_size) -> str:
    """Return the line of a job, with its progress."""
    phase = f" {job.phase}" if job.phase else ""
    how_far = ""
    if job.total:
        part = min(job.done / job.total, 1.0)
        bar = "#" * round(part * 20)
        done, total = size_text(job.done), size_text(job.total)
        how_far = f" [{bar:<20}] {part:4.0%} {done} of {total}"
    return f"{job.job} {job.topic} {job.state}{phase}{how_far}"
