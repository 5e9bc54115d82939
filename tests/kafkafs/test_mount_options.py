"""Mount options."""

from __future__ import annotations

import pytest

from kafkafs.mount_options import InvalidMountOption, MountOptions, parse_mount_options


def test_without_options() -> None:
    assert parse_mount_options([]) == MountOptions()
    assert parse_mount_options(["", ","]) == MountOptions()


def test_all_options_in_several_pieces() -> None:
    options = parse_mount_options(["ro,allow_other", "show_dot,uid=1000,gid=0", "umask=027"])
    assert options == MountOptions(
        read_only=True, allow_other=True, show_dot=True, uid=1000, gid=0, umask=0o027
    )


def test_the_last_one_wins() -> None:
    assert not parse_mount_options(["ro", "rw"]).read_only
    assert parse_mount_options(["uid=1,uid=2"]).uid == 2


def test_isolation_and_until() -> None:
    assert MountOptions().isolation == "read_committed"
    options = parse_mount_options(["until=high-watermark,isolation=read_uncommitted", "ro"])
    assert (options.until, options.isolation) == ("high-watermark", "read_uncommitted")
    assert parse_mount_options(["until=high-watermark,until=log-end"]) == MountOptions()


def test_a_high_watermark_is_for_directories_of_others() -> None:
    with pytest.raises(InvalidMountOption, match="until=high-watermark is for read-only mounts"):
        parse_mount_options(["until=high-watermark"])


FLAGS = ["atime", "r", "ro=1", "uid", "umask", "="]
NUMBERS = ["uid=-1", "uid= 1", "uid=1_0", "uid=x", "uid=4294967295", "uid=\u0661"]
MASKS = ["umask=9", "umask=1000", "umask=0o22"]


WORDS = ["isolation=committed", "isolation=", "until=HW", "until"]


@pytest.mark.parametrize("option", FLAGS + NUMBERS + MASKS + WORDS)
def test_what_makes_no_sense_is_refused_and_named(option: str) -> None:
    with pytest.raises(InvalidMountOption) as raised:
        parse_mount_options([f"ro,{option}"])
    assert option in str(raised.value)
