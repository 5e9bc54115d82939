"""`kafkafs verify`: checks everything in a data directory and changes nothing."""

from __future__ import annotations

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import Address, check_address, logs_argument
from kafkafs.cli.common.ending import end
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.progress import reading_shown
from kafkafs.cli.topics.facts import gap_facts, gap_text
from kafkafs.quantities import Size
from storage.plural import counted


@click.command(
    "verify",
    epilog=examples(
        "kafkafs verify data",
        "kafkafs verify data orders payments:0",
        "kafkafs verify mnt/orders/0",
    ),
)
@logs_argument(may_be_partition=True)
@output_options(
    "`partitions`, `records`, `bytes`, and the lists `left_over`: objects with `path`, "
    "`reason`, `position` and `offset`, and `gaps`: objects with `path`, `kind`, `first`, `last` "
    "and `time`",
    times=True,
    sizes=True,
)
def command(logs: Address, out: Output) -> None:
    """Read every byte of logs, and report every fault.

    The directory may be in use, also by a broker. verify takes no lock and writes nothing. Without
    TOPIC, it checks the whole data directory. DATA can also be the directory of one partition.

    verify checks offsets, indexes, transaction indexes, producer snapshots, checkpoints, the CRC of
    each batch, and each record in any codec and format. kafkafs or a broker of any version may have
    written these files. Each fault is one line: file, position in bytes, offset, reason.

    verify also lists leftover files: files that a deletion, a cleaner or a recovery did not remove,
    and unfinished files of a killed process, which kafkafs replaces at its next start. Leftover
    files are not faults.

    In a mirror, verify lists the gaps: offsets that the mirror could not copy. Gaps are not faults.

    Exit status 1: there are faults.
    """
    from dataclasses import asdict

    from storage.verify.verify import log_bytes, verify

    check_address(logs)
    wanted = logs.wants if logs.places else None
    total = log_bytes(logs.data_dir, wanted=wanted)
    with reading_shown("reading", total) as progress:
        found = verify(logs.data_dir, progress=progress, wanted=wanted)
    for fault in found.faults:
        out.say(fault, wrong=True)
    for fault in found.left_over:
        out.say(f"left over: {fault}")
    for path, gap in found.gaps:
        out.say(f"gap: {path}: {gap_text(gap, out)}")
    state = counted(len(found.faults), "fault") if found.faults else "whole"
    size = Size(found.size)
    what = f"{counted(found.partitions, 'partition')} with {counted(found.records, 'record')}"
    out.say(f"{what}, {out.size(size)}: {state}")
    for fault in found.faults:
        message = (
            fault.reason if fault.position is None else f"position {fault.position}: {fault.reason}"
        )
        out.problem(message, "FAULT", path=fault.path, offset=fault.offset)
    out.json(
        {
            "partitions": found.partitions,
            "records": found.records,
            "bytes": size,
            "left_over": [asdict(fault) for fault in found.left_over],
            "gaps": [{"path": path, **gap_facts(gap)} for path, gap in found.gaps],
        }
    )
    end(found=bool(found.faults))
