"""Verifies logs in use, once, on demand: every batch, record and index entry, as `verify` does.

The active segment is read up to its end at the start. A segment that is removed from its log during
the read is skipped. One that seems to have faults is read again, as it may have been sealed,
cleaned or renamed meanwhile.

Runs on a worker thread, and changes no file. If a sealed segment's file is missing, the log is
informed.

Not here: reading all logs back in the background (`log_checker`), and directories that no process
has open (`verify`).
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.errors import SegmentGone
from storage.log.log import Log
from storage.segment.batch_check import Part, check_file
from storage.segment.segment import Segment
from storage.task import Task
from storage.verify.transactions import OpenTransactions
from storage.verify.verify_segment import (
    Fault,
    SegmentPlace,
    Verified,
    transaction_faults,
    verify_segment,
)

_ATTEMPTS = 3


def verify_logs(logs: Sequence[Log], task: Task) -> list[tuple[str, object]]:
    """Return names and values: the amount that was read, and a `fault` for each one found. Errors:
    OSError, TaskCancelled.
    """
    task.begin("verifying", sum(log.size for log in logs))
    segments = records = size = 0
    faults: list[str] = []
    for log in logs:
        transactions = OpenTransactions(log.log_start_offset)
        end = 0
        for segment in log.segments:
            task.check()
            if segment.base_offset < end:
                faults.append(f"{segment.log_path}: the segment before it ends at {end}")
            verified = _verify(log, segment, transactions, task)
            if verified is not None:
                end = verified.next_offset
                segments += 1
                records += verified.records
                size += verified.size
                faults += map(str, verified.faults)
    return [
        ("segments", segments),
        ("records", records),
        ("bytes", size),
        ("faults", len(faults)),
        *(("fault", fault) for fault in faults),
    ]


def _verify(
    log: Log, segment: Segment, transactions: OpenTransactions, task: Task
) -> Verified | None:
    """Verify a segment; return None if it was removed from the log."""
    try:
        segment.lease()
    except SegmentGone:
        return None
    try:
        attempts = 0
        while attempts < _ATTEMPTS:
            # During appends, its end may be half written and its index preallocated.
            active, suffix = segment is log.active, segment.suffix
            place = SegmentPlace(
                log.files,
                log.directory,
                segment.base_offset,
                log.config.index_interval_bytes,
                is_last=active,
                is_live=active,
                renamed=suffix,
            )
            try:
                # Count its bytes only the first time.
                progress = task.advance if not attempts else lambda size: None
                verified = verify_segment(place, progress)
            except FileNotFoundError:
                # A cleaner may be renaming it, on the log thread.
                if suffix == task.on_log_thread(lambda: segment.suffix):
                    raise
                continue
            if segment not in log.segments:
                return None
            verified.faults += transaction_faults(place, transactions, verified.transactions)
            if not verified.faults:
                break
            attempts += 1
        transactions.pass_over(verified.transactions)
        if not verified.is_read_whole:
            # The read ended at the first damage.
            path, base = segment.log_path, segment.base_offset
            largest = log.config.max_message_bytes
            part = Part(
                base, 0, base, segment.size, largest, named=segment.offset_index.position_after
            )
            known = {fault.position for fault in verified.faults}
            verified.faults += [
                Fault(path, place.reason, place.start, place.first_offset)
                for place in check_file(log.files, path, part, Task()).damages
                if place.start not in known
            ]
        return verified
    except FileNotFoundError:
        if segment not in log.segments or log.closed:
            return None
        if not log.files.exists(log.directory):
            raise
        # The log detects the loss now, unless it has before.
        segment.open_log()
        reason = f"the file is missing, its size was {segment.size} bytes"
        fault = Fault(segment.log_path, reason, 0, segment.base_offset)
        return Verified(next_offset=segment.next_offset, faults=[fault])
    finally:
        segment.release()
