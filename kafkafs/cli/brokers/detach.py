"""`kafkafs detach`: makes a broker's directory one of kafkafs' own, or back; ends a mirror."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import directory_to_open, resolve_directory
from kafkafs.cli.common.ending import warn
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.progress import opened
from kafkafs.cli.common.words import Logs, words_argument


@click.command(
    "detach",
    epilog=examples(
        "kafkafs config data --broker-config /etc/kafka/server.properties  # first",
        "kafkafs detach --dry-run data",
        "kafkafs detach data",
        "kafkafs detach --undo data",
        "kafkafs detach backup  # ends a mirror",
    ),
)
@words_argument("DATA|MOUNT", Logs())
@click.option("--undo", is_flag=True, help="Give the directory back to its broker.")
@click.option(
    "--dry-run",
    is_flag=True,
    help=(
        "Only print which names would change, and which settings are not known. detach then takes "
        "no lock."
    ),
)
@output_options(
    "`dry_run`, `undo`, and four lists: `names` (the names that change), `not_known` (a line for "
    "each topic whose settings are not known), `tiered`, and `reset` (a line for each committed "
    "offset that was reset)"
)
def command(words: Sequence[str], undo: bool, dry_run: bool, out: Output) -> None:
    """Turn a broker's directory, or the mirror of a cluster, into a directory of kafkafs. The
    directory must not be in use.

    In a mirror, only `kafkafs mirror` writes the logs. detach ends the mirror: it removes
    kafkafs.mirror. Then every command can write the directory, and `kafkafs mirror` cannot continue
    it. If a group has committed an offset beyond the end of a copied log, detach resets this offset
    to the log end, and prints a line. --undo cannot restore a mirror.

    In a broker's directory, kafkafs cannot create topics or partitions, because the broker would
    not know them: at its next start, the broker would rename their directories to …-stray. After
    detach, kafkafs can create them.

    detach stores the broker's topic settings in kafkafs-broker.properties. Then it adds the suffix
    .detached to meta.properties and to the metadata log, so that no broker starts on the directory.
    Before detach, run `kafkafs config DATA --broker-config FILE`. FILE is the broker's
    server.properties.

    detach prints a line for each topic whose settings are not known. Until you set the settings of
    such a topic, kafkafs deletes and compacts nothing in it. detach also names the tiered topics,
    with the offsets that are only in remote storage. These topics stay read-only until you set
    remote.storage.enable=false on them.

    --undo restores the names in a broker's directory, so that the broker can use it again. Records
    that were appended after detach stay. If topics or partitions were created after detach, --undo
    fails.
    """
    from storage.directory import detach, mirror
    from storage.directory.lock import alone
    from storage.files import Files
    from storage.paths import DETACHED, MIRROR

    where = resolve_directory(words, needs="files")
    data_dir = where.data_dir if dry_run else directory_to_open(where)
    files = Files(data_dir)
    is_mirror = not undo and mirror.is_mirror_for_writer(files, data_dir)
    # An interrupted detach may have renamed the file.
    ends = is_mirror or (not undo and mirror.is_end_unfinished(files, data_dir))
    with nullcontext(files) if dry_run else alone(data_dir, mirrors=is_mirror) as files:
        lines: list[str] = []
        tiered: list[str] = []
        reset: list[str] = []
        if ends:
            names = [MIRROR]
            if is_mirror and not dry_run:
                mirror.end_mirror(files, data_dir)
        elif undo:
            names = detach.names_to_give_back(files, data_dir)
            if not dry_run:
                detach.undo(files, data_dir)
        else:
            names = detach.names_to_set_aside(files, data_dir)
            lines = detach.not_known(files, data_dir) if dry_run else detach.detach(files, data_dir)
            tiered = detach.tiered_lines(files, data_dir)
    if ends and not dry_run:
        with opened(data_dir, keeps_faulty=True) as manager:
            reset = manager.resets
    out.json(
        {
            "dry_run": dry_run,
            "undo": undo,
            "names": names,
            "not_known": lines,
            "tiered": tiered,
            "reset": reset,
        }
    )
    if ends:
        done = "would be removed, which would end" if dry_run else "removed: this ends"
        out.say(f"{MIRROR} {done} the mirror; then every command can write {data_dir}")
    for name in () if ends else names:
        before, after = name, name + DETACHED
        if undo:
            before, after = after, before
        out.say(f"{before} {'would be renamed to' if dry_run else 'renamed to'} {after}")
    for line in [*lines, *tiered]:  # opening has printed the others
        warn(line)
