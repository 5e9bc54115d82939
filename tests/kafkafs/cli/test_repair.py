"""`kafkafs repair --salvage --dry-run`: what would be taken back, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from kafkafs.cli import main
from tests.storage.log.test_salvage import damage
from tests.storage.recovery.test_recovery import fill


def test_a_dry_run_says_what_salvage_takes_and_leaves(tmp_path: Path) -> None:
    fill(tmp_path)
    path = sorted((tmp_path / "t-0").glob("*.log"))[1]
    damage(path, 140)
    before = {each: each.read_bytes() for each in (tmp_path / "t-0").iterdir()}
    said = CliRunner().invoke(main, ["repair", str(tmp_path), "--salvage", "--dry-run"])
    assert said.exit_code == 0, said.output
    assert {each: each.read_bytes() for each in (tmp_path / "t-0").iterdir()} == before
    assert "would take back 2 records in 2 batches" in said.output
    assert f"{path}: left " in said.output
    assert ": the CRC is wrong" in said.output
    done = CliRunner().invoke(main, ["repair", str(tmp_path), "--salvage"])
    assert done.exit_code == 0, done.output
    assert "took back 2 records in 2 batches" in done.output


def test_a_dry_run_is_salvage_s(tmp_path: Path) -> None:
    for options in ([], ["--salvage", "--purge"]):
        arguments = [str(tmp_path), "--dry-run", "--allow-empty", *options]
        said = CliRunner().invoke(main, ["repair", *arguments])
        assert said.exit_code == 2
