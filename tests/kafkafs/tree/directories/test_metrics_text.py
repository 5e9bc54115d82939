"""The metrics' text, read by prometheus_client's own parser."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kafkafs.printable import one_line
from kafkafs.tree.directories.metrics_table import BY_NAME
from kafkafs.tree.directories.metrics_text import exposition, metrics_text, of_partitions
from storage import paths
from storage.compaction.repack import repack_all
from storage.directory.retain import delete_records
from storage.files import Files
from storage.state import mirror_file
from storage.state.gaps_file import Gap
from storage.state.mirror_file import MirroredPartition, MirrorFile
from storage.task import Task
from tests.kafkafs.trees import APPEND, CALLER, Tree, a_tree, in_thread
from tests.storage.handed import write_broker
from tests.storage.logs import append
from tests.storage.transactions import Client


def samples(text: str) -> dict[tuple[str, ...], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = (value for _, value in sorted(sample.labels.items()))
            found[sample.name, *labels] = sample.value
    return found


def shown(tree: Tree) -> dict[tuple[str, ...], float]:
    return samples(metrics_text(tree.fs.partitions, []))


def test_every_metric_of_the_table_is_in_the_text(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        text = metrics_text(tree.fs.partitions, [])
    found = re.findall(r"^# HELP (kafkafs_\w+) (.+)\n# TYPE \1 (\w+)$", text, re.M)
    declared = [(each.full_name, each.help, each.kind) for each in BY_NAME.values()]
    assert sorted(found) == sorted(declared)


def test_label_values_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = 'a "quoted" \\ topic\nof two lines, {é}'
    found = samples(exposition(of_partitions([((odd, "7"), (1, 2, 2, 99, 1))])))
    escaped = one_line(odd)
    assert found["kafkafs_partition_size_bytes", "7", escaped] == 99
    assert found["kafkafs_partition_log_end_offset", "7", escaped] == 2
    monkeypatch.setattr("kafkafs.tree.directories.metrics_text.version", lambda package: odd)
    monkeypatch.setattr("platform.python_version", lambda: "3")
    with a_tree(tmp_path / "data") as tree:
        tree.fs.mount.counters.refused_appends[odd] += 3
        found = shown(tree)
    assert found["kafkafs_refused_appends_total", escaped] == 3
    assert found["kafkafs_build_info", "3", escaped] == 1


def test_numbers_are_what_they_are(tmp_path: Path) -> None:
    """Offsets up to 2^53 exactly; every operation is there from the start."""
    largest = 2**53
    found = samples(exposition(of_partitions([(("t", "0"), (0, largest, 0, 0, 1))])))
    assert found["kafkafs_partition_log_end_offset", "0", "t"] == largest
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        assert shown(tree)["kafkafs_flush_seconds_count",] == 0
        append(tree.log(), bytes(100))
        tree.node("t/0")
        found = shown(tree)
        size = tree.log().size
    assert found["kafkafs_requests_total", "write"] == 0
    measured = found["kafkafs_view_index_measured_bytes", "values"]
    assert measured + found["kafkafs_view_index_unmeasured_bytes", "values"] == size > 0


def test_offsets_and_sizes_of_a_partition(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t").create("1", 0o644, APPEND, CALLER)
        log = tree.log()
        append(log, b"one", b"two")
        tree.roll()
        Client(log, 7).send(b"undecided")
        in_thread(lambda: delete_records(tree.manager, log, 1, Task()))
        found, size = shown(tree), log.size
        tree.fs.root.rmdir("t", CALLER)
        after = shown(tree)
    names = ["log_start_offset", "last_stable_offset", "log_end_offset", "segments", "size_bytes"]
    assert [found[f"kafkafs_partition_{name}", "0", "t"] for name in names] == [1, 2, 3, 2, size]
    assert found["kafkafs_partition_log_end_offset", "1", "t"] == 0
    assert (found["kafkafs_topics",], found["kafkafs_partitions",]) == (1, 2)
    assert not [name for name, *_ in after if name == "kafkafs_partition_log_end_offset"]


def test_cleaners_and_checker(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        mount = tree.fs.mount
        manager, cleaner = mount.manager, mount.cleaner.counters
        append(tree.log(), b"record")
        tree.roll()
        manager.change_topic_settings("t", {"cleanup.policy": "compact"})
        cleaner.rounds, cleaner.map_fill, cleaner.elapsed_ms = 3, 0.5, 1500
        cleaner.records_read, cleaner.records_kept = 100, 7
        mount.cleaner.uncleanable[tree.log()] = "why"
        for error in (OSError(5, "x"), ValueError("y"), OSError(5, "x")):
            manager.duties.failed("flush", error, "t-0")
        manager.duties.failed("flush", OSError(5, "x"), "t-1")
        manager.duties.failed("checkpoint", OSError(5, "x"))
        manager.duties.succeeded("checkpoint")
        manager.log_group.counters.segments_deleted, manager.log_group.counters.damages = 4, 1
        mount.checker.run_sealed(Task())
        checked = mount.checker.all_bytes_checked
        found = shown(tree)
    assert found["kafkafs_compactions_total",] == 3
    assert found["kafkafs_compaction_seconds_total",] == 1.5
    assert found["kafkafs_compaction_map_fill",] == 0.5
    assert found["kafkafs_compaction_read_records_total",] == 100
    assert found["kafkafs_compaction_kept_records_total",] == 7
    assert found["kafkafs_uncleanable_partitions",] == 1
    assert found["kafkafs_duty_failures_total", "flush"] == 4
    assert found["kafkafs_duty_failures_total", "checkpoint"] == 1
    assert found["kafkafs_failing_duties", "flush"] == 2
    assert found["kafkafs_failing_duties", "checkpoint"] == 0
    assert found["kafkafs_topic_dirty_ratio", "t"] == 1
    assert found["kafkafs_deleted_segments_total",] == 4
    assert found["kafkafs_checked_bytes_total",] == checked > 0
    assert found["kafkafs_damages_total",] == 1


def test_gaps_of_a_mirror(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.mkdir("whole")
        for offset in (5, 15):
            tree.log().note_gaps(Gap("missing", offset, offset + 4, 0))
        tree.log().note_gaps(Gap("deleted", 0, 4, 0))
        found = shown(tree)
    gaps = {name: value for name, value in found.items() if name[0] == "kafkafs_partition_gaps"}
    assert gaps == {
        ("kafkafs_partition_gaps", "missing", "0", "t"): 2,
        ("kafkafs_partition_gaps", "deleted", "0", "t"): 1,
    }


def test_a_mirror(tmp_path: Path) -> None:
    copies = {
        ("t", 0): MirroredPartition(0, 7, 0, 10, 1_700_000_000_500),
        ("t", 1): MirroredPartition(state="waiting", reason="no leader"),
    }
    with a_tree(tmp_path / "data") as tree:
        assert not any("mirror" in name for name, *_ in shown(tree))
        mirror = MirrorFile("c", "kafka://broker:9092", ("*",), {"t": "-"}, copies)
        mirror_file.write(Files(), str(tmp_path / "data"), mirror)
        found = {of: value for of, value in shown(tree).items() if "mirror" in of[0]}
    assert found == {
        ("kafkafs_mirror_lag", "0", "t"): 3,
        ("kafkafs_mirror_complete_timestamp_seconds", "0", "t"): 1_700_000_000.5,
        ("kafkafs_mirror_waiting", "0", "t"): 0,
        ("kafkafs_mirror_waiting", "1", "t"): 1,
    }


def test_repacking(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.manager.change_topic_settings("t", {"kafkafs.repack": "zstd"})
        for _ in range(20):
            append(tree.log(), b"the same words in each line")
        tree.roll()
        before = tree.log().segments[0].size
        in_thread(lambda: repack_all(tree.log(), tree.clock.ms(), Task()))
        after = tree.log().segments[0].size
        found = shown(tree)
    assert found["kafkafs_repacked_segments_total",] == 1
    assert found["kafkafs_repack_read_bytes_total",] == before
    assert found["kafkafs_repack_kept_bytes_total",] == after < before


def test_words(tmp_path: Path) -> None:
    """Only topics that have the setting count."""
    with a_tree(tmp_path / "data") as tree:
        for topic in ("t", "without"):
            tree.mkdir(topic)
            append(tree.log(topic), b"record")
            tree.roll(topic)
        mount = tree.fs.mount
        mount.manager.change_topic_settings("t", {"kafkafs.words": "words"})
        before = shown(tree)
        mount.word_files.build_missing(tree.log(), Task())
        append(tree.log(), b"record")
        tree.roll()
        rolled = shown(tree)
        mount.word_files.build_missing(tree.log(), Task())
        mount.word_files.elapsed_s = 1.5
        found = shown(tree)
        size = sum(segment.file_size(paths.WORDS) for segment in tree.log().segments)
    assert before["kafkafs_words_bytes",] == 0
    assert before["kafkafs_words_missing_segments",] == 0, "no file was looked for"
    assert rolled["kafkafs_words_missing_segments",] == 1
    assert found["kafkafs_words_bytes",] == size > 0
    assert found["kafkafs_words_missing_segments",] == 0
    assert found["kafkafs_words_seconds_total",] == 1.5


def test_words_of_a_brokers_topic(tmp_path: Path) -> None:
    """The daemon builds none. Files that another call has found there do not count."""
    write_broker(tmp_path / "data", {"t": 1})
    with a_tree(tmp_path / "data") as tree:
        tree.manager.change_topic_settings("t", {"kafkafs.words": "words"})
        append(tree.log(), b"record")
        tree.roll()
        cache = tmp_path / "cache"
        cache.mkdir()
        tree.fs.mount.word_files.build_missing(tree.log(), Task(), str(cache))
        found = shown(tree)
    assert found["kafkafs_words_bytes",] == found["kafkafs_words_missing_segments",] == 0


def test_many_partitions() -> None:
    """Each has its five samples, once."""
    rows = [(("t", str(number)), (0, number, number, 1, 1)) for number in range(3000)]
    found = samples(exposition(of_partitions(rows)))
    assert len([name for name in found if name[0].startswith("kafkafs_partition_")]) == 5 * 3000
    assert found["kafkafs_partition_log_end_offset", "2999", "t"] == 2999


def test_the_library_is_not_loaded_before_it_is_needed() -> None:
    """A mount does not import prometheus_client when it starts."""
    program = "import sys, kafkafs.fuse.daemon; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"
