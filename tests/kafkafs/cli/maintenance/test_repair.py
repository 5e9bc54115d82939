"""`kafkafs repair`, `--salvage` and `--apply`: what they say, and the exit status."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kafkafs.cli import main
from storage import LogManager, paths
from storage.state import manifest_file
from storage.state.history import FILE_NAME as HISTORY
from storage.state.manifest_file import FILE_NAME as MANIFEST
from tests.kafkafs.cli.conftest import kafkafs
from tests.storage.log.test_salvage import damage
from tests.storage.logs import NOW_MS, append, log_file, opened, values
from tests.storage.recovery.test_partition import fill
from tests.storage.state.test_segment_manifest import LINES
from tests.storage.state.test_segment_manifest import fill as fill_flushed

HINT = "nothing was changed; to do this, add --apply"


def damaged(base: Path) -> Path:
    """A log whose second segment has a damaged batch; a third one follows."""
    fill(base)
    path = sorted((base / "t-0").glob("*.log"))[1]
    damage(path, 140)
    return path


def test_a_plan_says_what_salvage_takes_and_leaves(tmp_path: Path) -> None:
    path = damaged(tmp_path)
    before = {each: each.read_bytes() for each in (tmp_path / "t-0").iterdir()}
    said = CliRunner().invoke(main, ["repair", str(tmp_path), "--salvage"])
    assert said.exit_code == 1, said.output
    assert {each: each.read_bytes() for each in (tmp_path / "t-0").iterdir()} == before
    left = "left 74 bytes from position 74: the CRC is wrong"
    behind = path.with_name("00000000000000000008.log")
    assert said.stdout.splitlines() == [
        f"{path}: would truncate 222 bytes at position 74",
        f"{behind}: would truncate 298 bytes at position 0",
        f"{path}: would restore 2 records in 2 batches, 148 of 222 bytes",
        f"{path}: {left}",
        f"{behind}: would restore 4 records in 4 batches, 298 of 298 bytes",
        HINT,
    ]
    done = CliRunner().invoke(main, ["repair", str(tmp_path), "--salvage", "--apply"])
    assert done.exit_code == 1, done.output
    assert done.stdout.splitlines() == [
        f"{path}.74.cut: restored 2 records in 2 batches, 148 of 222 bytes",
        f"{path}.74.cut: {left}",
        f"{behind}.cut: restored 4 records in 4 batches, 298 of 298 bytes",
        "1 partition with 12 offsets: 1 of them incomplete",
    ]
    for options in ([], ["--apply"]):
        done = CliRunner().invoke(main, ["repair", str(tmp_path), "--salvage", *options])
        assert done.exit_code == 1
        assert "nothing to restore" in done.stdout.splitlines()


@pytest.mark.programs
def test_what_is_cut_is_said_once(tmp_path: Path) -> None:
    path = damaged(tmp_path)
    planned = kafkafs("repair", tmp_path)
    behind = path.with_name("00000000000000000008.log")
    assert (planned.returncode, planned.stderr) == (1, "")
    assert planned.stdout.splitlines() == [
        f"{path}: would truncate 222 bytes at position 74",
        f"{behind}: would truncate 298 bytes at position 0",
        HINT,
    ]
    assert not list((tmp_path / "t-0").glob("*.cut"))
    done = kafkafs("repair", tmp_path, "--apply")
    assert done.returncode == 1
    assert done.stdout == "1 partition with 5 offsets: 1 of them incomplete\n"
    assert done.stderr.splitlines() == [
        f"{path}: truncated 222 bytes at position 74: the CRC is wrong; kept as {path.name}.74.cut",
        f"{behind}: truncated 298 bytes at position 0: the records before it are missing; "
        f"kept as {behind.name}.cut",
    ]
    planned = kafkafs("repair", tmp_path)
    assert (planned.returncode, planned.stdout) == (0, "nothing to repair\n")


def test_what_is_whole(tmp_path: Path) -> None:
    fill(tmp_path)
    for options, said in (
        ([], "nothing to repair\n"),
        (["--salvage"], "nothing to restore\n"),
        (["--accept-loss"], "nothing to repair\n"),
        (["--purge"], "nothing to repair\n"),
        (["--salvage", "--apply"], "nothing to restore\n1 partition with 12 offsets: whole\n"),
        (["--apply"], "1 partition with 12 offsets: whole\n"),
    ):
        done = CliRunner().invoke(main, ["repair", str(tmp_path), *options])
        assert (done.exit_code, done.output) == (0, said)


def test_as_json(tmp_path: Path) -> None:
    damaged(tmp_path)
    done = CliRunner().invoke(main, ["repair", str(tmp_path), "--apply", "--json"])
    found = json.loads(done.stdout)
    facts = found["result"]
    assert done.exit_code == 1
    assert ["truncated" in each["message"] for each in found["problems"]] == [True, True]
    assert facts.pop("lines") == ["1 partition with 5 offsets: 1 of them incomplete"]
    assert facts == {"applied": True, "partitions": 1, "lacking": 1, "cannot_be_opened": 0}


@pytest.mark.parametrize("options", [["--salvage"], ["--salvage", "--purge"]])
def test_what_was_cut_is_removed(tmp_path: Path, options: list[str]) -> None:
    damaged(tmp_path)
    assert run("repair", tmp_path, "--apply", *options).exit_code == 1
    if "--purge" not in options:
        assert run("repair", tmp_path, "--apply", "--purge").stdout.endswith(".cut: removed\n")
    assert list(tmp_path.rglob("*.cut")) == []
    with opened(tmp_path) as manager:
        assert len(values(manager.log("t", 0))) == 11


def everything(base: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}


def without_end(base: Path) -> None:
    fill_flushed(base)
    log_file(base, 9).unlink()


def without_log_start(base: Path) -> None:
    fill_flushed(base)
    (base / paths.LOG_STARTS).write_bytes(b"?")
    (base / "t-0" / HISTORY).unlink(missing_ok=True)


def with_a_bad_file(base: Path) -> None:
    fill(base)
    (base / "t-0/partition.metadata.bad").touch()


@pytest.mark.parametrize(
    ("make", "options", "planned", "status"),
    [
        (damaged, [], "4.log: would truncate 222 bytes at position 74", 1),
        (damaged, ["--salvage"], "4.log: would restore 2 records in 2 batches", 1),
        (
            damaged,
            ["--salvage", "--purge"],
            "the bytes that would be truncated: would be removed",
            1,
        ),
        (without_end, ["--accept-loss"], "t-0: would give up offsets 9 to 11", 1),
        (without_log_start, ["--log-start", "t:0=2"], "t:0: would start at offset 2", 1),
        (without_log_start, ["--log-start", "first"], "t:0: would start at offset 0", 1),
        (with_a_bad_file, ["--purge"], "t-0/partition.metadata.bad: would be removed", 0),
    ],
)
def test_a_plan_changes_nothing(
    tmp_path: Path, make: Callable[[Path], object], options: list[str], planned: str, status: int
) -> None:
    make(tmp_path)
    before = everything(tmp_path)
    done = run("repair", tmp_path, *options)
    assert done.exit_code == status, done.output
    assert planned in done.stdout
    assert done.stdout.endswith(f"{HINT}\n")
    assert everything(tmp_path) == before
    planned_json = json.loads(run("repair", tmp_path, "--json", *options).stdout)["result"]
    assert not planned_json["applied"]
    assert any(planned in line for line in planned_json["lines"])
    run("repair", tmp_path, "--apply", *options)
    assert HINT not in run("repair", tmp_path, *options).stdout


@pytest.mark.parametrize("applies", [False, True])
def test_a_log_start_beyond_the_log_end_is_refused(tmp_path: Path, applies: bool) -> None:
    without_log_start(tmp_path)
    before = everything(tmp_path)
    options = ["--apply"] if applies else []
    done = run("repair", tmp_path, "--log-start", "t:0=1000", *options)
    assert done.exit_code == 3
    assert "before its start offset 1000" in done.stderr
    assert everything(tmp_path) == before


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def content(data: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in (data / "t-0").iterdir()}


GARBAGE = {
    "zeros": bytes(8),
    "random bytes": random.Random(1).randbytes(700),
    "a page of zeros and more": bytes(5000) + b"x",
}


@pytest.mark.parametrize(
    ("base", "mounts", "is_counted"), [(0, 0, False), (3, 1, False), (0, 0, True), (3, 0, True)]
)
@pytest.mark.parametrize("garbage", list(GARBAGE.values()), ids=list(GARBAGE))
def test_garbage_behind_a_sealed_segment_goes_and_nothing_else(
    tmp_path: Path, garbage: bytes, base: int, mounts: int, is_counted: bool
) -> None:
    """``is_counted``: the partition has written down a length that includes the garbage."""
    fill_flushed(tmp_path)
    before = content(tmp_path)
    path = log_file(tmp_path, base)
    path.write_bytes(before[path] + garbage)
    manifest = tmp_path / "t-0" / manifest_file.FILE_NAME
    if is_counted:
        with LogManager.open(str(tmp_path), read_only=True) as manager:
            recorded = manifest_file.read(manager.files, str(tmp_path / "t-0"))
        entries = [
            each._replace(size=each.size + len(garbage) * (each.base_offset == base))
            for each in recorded.entries
        ]
        manifest.write_bytes(
            manifest_file.text(manifest_file.ManifestContent(recorded.log_start, entries))
        )
    for _ in range(mounts):
        with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS) as manager:
            assert values(manager.log("t", 0)) == LINES
        assert is_counted or manifest.read_bytes() == before[manifest]
    assert run("repair", tmp_path, "--apply").exit_code == int(any(garbage))
    for arguments in (["verify", tmp_path], ["repair", tmp_path, "--apply"], ["verify", tmp_path]):
        done = run(*arguments)
        assert done.exit_code == 0, done.output
    after = content(tmp_path)
    kept = path.with_name(f"{path.name}.{len(before[path])}.cut")
    assert after.pop(kept, b"") == (garbage if any(garbage) else b"")
    assert after == before
    with opened(tmp_path) as manager:
        assert manager.faults == []
        log = manager.log("t", 0)
        assert append(log, b"next") == len(LINES)
        assert values(log) == [*LINES, b"next"]


@pytest.mark.parametrize("garbage", [bytes(8), b"rubbish"])
def test_garbage_hides_no_missing_segment(tmp_path: Path, garbage: bytes) -> None:
    fill_flushed(tmp_path)
    path = log_file(tmp_path, 3)
    path.write_bytes(path.read_bytes() + garbage)
    log_file(tmp_path, 6).unlink()
    assert (
        f"{log_file(tmp_path, 6)}: offset 6: the file is missing" in run("verify", tmp_path).output
    )
    for _ in range(2):
        with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS) as manager:
            assert any("offsets 6 to 8" in line for line in manager.faults)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("base", [0, 3])
def test_a_log_is_not_ended_before_records_that_a_mount_shows(
    tmp_path: Path, base: int, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fill_flushed(tmp_path, clean=is_clean)
    path = log_file(tmp_path, base)
    damage(path, 140)
    lost = base + 1
    with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS) as manager:
        assert append(manager.log("t", 0), b"next") == len(LINES)
    before = content(tmp_path)
    hidden = len(LINES) - lost
    line = (
        f"the CRC is wrong (file {path}, position 74, offset {lost}); nothing was "
        f"truncated, because a mount shows {hidden} records after the damage. To keep them: "
        f"kafkafs repair {tmp_path} --salvage --apply. To truncate the log there: "
        f"kafkafs repair {tmp_path} --accept-loss --apply"
    )
    for arguments in ([], ["--apply"]):
        caplog.clear()
        done = run("repair", tmp_path, *arguments)
        assert done.exit_code == (3 if arguments else 1)
        assert line in caplog.messages
        assert content(tmp_path) == before
    left = [*LINES[:lost], *LINES[lost + 1 :], b"next"]
    assert run("repair", tmp_path, "--salvage", "--apply").exit_code == 1
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert values(log) == left
        assert append(log, b"more") == len(LINES) + 1
    assert run("repair", tmp_path, "--apply").exit_code == 0


@pytest.mark.parametrize("kind", ["missing segment", "bad manifest"])
def test_a_fault_is_reported_once_although_the_log_is_loaded_again(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A mount ends the log at the damage, too, as the last batch was never flushed."""
    fill_flushed(tmp_path)
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    append(manager.log("t", 0), b"next")
    append(manager.log("t", 0), b"last")
    manager.abandon()
    path = log_file(tmp_path, 9)
    damage(path, path.stat().st_size - 80)
    bad = log_file(tmp_path, 3) if kind == "missing segment" else path.with_name(MANIFEST)
    bad.unlink() if kind == "missing segment" else bad.write_bytes(b"?")
    run("repair", tmp_path, "--apply")
    for name in (f"{bad}, " if kind == "missing segment" else f"{bad})", f"{path}: truncated"):
        assert len([line for line in caplog.messages if name in line]) == 1
