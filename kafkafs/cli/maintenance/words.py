"""`kafkafs words`: builds the `.words` files of logs, now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import (
    Address,
    check_address,
    logs_argument,
    logs_at,
    report_faults,
)
from kafkafs.cli.common.ending import end
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.progress import long_work, opened
from kafkafs.quantities import Size, Value
from storage.paths import INTERNAL_TOPICS
from storage.plural import counted

if TYPE_CHECKING:
    from storage.log.log import Log
    from storage.settings.settings import Settings


@click.command("words", epilog=examples("kafkafs words data", "kafkafs words --remove mnt/mail:0"))
@logs_argument()
@click.option("--remove", is_flag=True, help="Remove the files of words instead.")
@output_options(
    "`removed`, and the list `partitions` with the number of `files` that were built or removed",
    sizes=True,
)
def command(logs: Address, remove: bool, out: Output) -> None:
    """Build files that make searches fast, for the closed segments that have none.

    The file of a segment says in which parts of the segment a word may occur. With it,
    `kafkafs grep` and conditions read only these parts. The daemon builds the files of topics with
    kafkafs.words=words when it closes a segment. This command builds them for segments that were
    closed before, and for topics without this setting. Without TOPIC, it builds them for all topics
    but those that Kafka itself uses. A search does not report damage in the parts that it skips;
    `kafkafs verify` finds it.

    The directory may be in use, also by a broker. The command takes no lock. The files lie beside
    the segments (`*.words`). If the directory is a broker's or one of Kafka 0.7, or if you may not
    write it, they lie in the cache directory of kafkafs, and serve only your searches on this
    machine.

    A file of words reveals which words occur in a segment. It is deleted with its segment. A file
    in the cache is deleted later: when this command runs again, or when a read-only mount first
    shows the partition. The files of a deleted topic stay in the cache until you delete the cache.
    If you rewrite a log with other programs in order to erase records, run `kafkafs words
    --remove`, too. The daemon builds the files again as long as a topic has kafkafs.words=words.

    Ctrl-C leaves the files that are complete.
    """
    from kafkafs.tree.context import cache_directory
    from storage.directory.word_files import WordFiles, remove_all, remove_stale
    from storage.errors import StorageError, TaskCancelled

    check_address(logs)
    partitions: list[dict[str, Value]] = []
    named = {topic for topic, _ in logs.places}

    def wanted(topic: str) -> bool:
        return topic in named if named else topic not in INTERNAL_TOPICS

    with (
        opened(logs.data_dir, read_only=True, wanted=wanted, keeps_faulty=True) as manager,
        long_work() as task,
    ):
        # A named one that could not be opened is an error.
        wanted_logs = logs_at(manager, logs.places)
        report_faults(manager, out, logs.wants)
        for log in wanted_logs:
            files = WordFiles(checks_pages=True)
            name = f"{log.topic}:{log.partition}"
            cache = None if _is_ours(log, manager.settings) else cache_directory(log)
            facts: dict[str, Value] = {"topic": log.topic, "partition": log.partition}
            try:
                if remove:
                    # The user may not have the permission to remove those of the log's directory.
                    count = remove_all(log, cache_directory(log)) + remove_all(log)
                    out.say(f"{name}: removed {counted(count, 'file')}")
                    partitions.append({**facts, "files": count})
                    continue
                if cache is not None:
                    os.makedirs(cache, mode=0o700, exist_ok=True)
                remove_stale(log, cache)
                files.build_missing(log, task, cache)
            except TaskCancelled:
                raise
            except (OSError, StorageError) as error:
                out.report(f"{name}: {error}", path=f"{log.topic}-{log.partition}")
                if files.count:
                    out.say(f"{name}: built {counted(files.count, 'file')}")
                    partitions.append({**facts, "files": files.count})
                continue
            count = files.count
            size, missing = files.totals(log)
            closed = len(log.segments) - 1
            out.say(
                f"{name}: built {counted(count, 'file')}; {closed - missing} of {closed} closed "
                f"segments have one ({out.size(size)})"
            )
            facts |= {"files": count, "directory": cache or log.directory, "bytes": Size(size)}
            partitions.append({**facts, "segments": closed, "missing": missing})
    out.json({"removed": remove, "partitions": partitions})
    end(failed=out.has_failed)


def _is_ours(log: Log, settings: Settings) -> bool:
    """Return whether the files may lie in the log's directory."""
    is_kept = settings.is_brokers_topic(log.topic) or log.tiered is not None
    # kafkafs changes nothing in a directory of Kafka 0.7.
    return not is_kept and log.active.holds_batches and os.access(log.directory, os.W_OK)
