"""`kafkafs repair`, `--salvage` and `--dry-run`: what they say, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from kafkafs.cli import main
from tests.kafkafs.cli.conftest import kafkafs
from tests.storage.log.test_salvage import damage
from tests.storage.recovery.test_recovery import fill


def damaged(base: Path) -> Path:
    """A log whose second segment has a damaged batch; a third one follows."""
    fill(base)
    path = sorted((base / "t-0").glob("*.log"))[1]
    damage(path, 140)
    return path


def test_a_dry_run_says_what_salvage_takes_and_leaves(tmp_path: Path) -> None:
    path = damaged(tmp_path)
    before = {each: each.read_bytes() for each in (tmp_path / "t-0").iterdir()}
    said = CliRunner().invoke(main, ["repair", str(tmp_path), "--salvage", "--dry-run"])
    assert said.exit_code == 1, said.output
    assert {each: each.read_bytes() for each in (tmp_path / "t-0").iterdir()} == before
    left = "left 74 bytes from position 74: the CRC is wrong"
    behind = path.with_name("00000000000000000008.log")
    assert said.stdout.splitlines() == [
        f"{path}: would take back 2 records in 2 batches, 148 of 222 bytes",
        f"{path}: {left}",
        f"{behind}: would take back 4 records in 4 batches, 298 of 298 bytes",
    ]
    done = CliRunner().invoke(main, ["repair", str(tmp_path), "--salvage"])
    assert done.exit_code == 1, done.output
    assert done.stdout.splitlines() == [
        f"{path}.74.cut: took back 2 records in 2 batches, 148 of 222 bytes",
        f"{path}.74.cut: {left}",
        f"{behind}.cut: took back 4 records in 4 batches, 298 of 298 bytes",
        "1 partition with 12 offsets: 1 of them lacking a part",
    ]
    for options in (["--dry-run"], []):
        done = CliRunner().invoke(main, ["repair", str(tmp_path), "--salvage", *options])
        assert done.exit_code == 1
        assert "nothing to take back" in done.stdout.splitlines()


def test_what_is_cut_is_said_once(tmp_path: Path) -> None:
    path = damaged(tmp_path)
    planned = kafkafs("repair", tmp_path, "--dry-run")
    behind = path.with_name("00000000000000000008.log")
    assert (planned.returncode, planned.stderr) == (1, "")
    assert planned.stdout.splitlines() == [
        f"{path}: would cut 222 bytes from position 74",
        f"{behind}: would cut 298 bytes from position 0",
    ]
    assert not list((tmp_path / "t-0").glob("*.cut"))
    done = kafkafs("repair", tmp_path)
    assert done.returncode == 1
    assert done.stdout == "1 partition with 5 offsets: 1 of them lacking a part\n"
    assert done.stderr.splitlines() == [
        f"{path}: cut 222 bytes from position 74: the CRC is wrong; kept as {path.name}.74.cut",
        f"{behind}: cut 298 bytes from position 0: records before it are missing; "
        f"kept as {behind.name}.cut",
    ]
    planned = kafkafs("repair", tmp_path, "--dry-run")
    assert (planned.returncode, planned.stdout) == (0, "nothing to cut\n")


def test_what_is_whole(tmp_path: Path) -> None:
    fill(tmp_path)
    for options, said in (
        (["--salvage", "--dry-run"], "nothing to take back\n"),
        (["--salvage"], "nothing to take back\n1 partition with 12 offsets: whole\n"),
        ([], "1 partition with 12 offsets: whole\n"),
    ):
        done = CliRunner().invoke(main, ["repair", str(tmp_path), *options])
        assert (done.exit_code, done.output) == (0, said)


def test_as_json(tmp_path: Path) -> None:
    damaged(tmp_path)
    done = CliRunner().invoke(main, ["repair", str(tmp_path), "--json"])
    facts = json.loads(done.stdout)
    lines = facts.pop("lines")
    assert done.exit_code == 1
    assert ["cut" in line for line in lines] == [True, True, False]
    assert facts == {"dry_run": False, "partitions": 1, "lacking": 1, "cannot_be_opened": 0}


def test_a_dry_run_changes_nothing_that_another_option_would(tmp_path: Path) -> None:
    for options in (["--accept-loss"], ["--salvage", "--purge"]):
        arguments = [str(tmp_path), "--dry-run", "--allow-empty", *options]
        said = CliRunner().invoke(main, ["repair", *arguments])
        assert said.exit_code == 2
