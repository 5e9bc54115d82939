"""Mount options."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kafkafs.mount_options import (
    OPTIONS,
    InvalidMountOption,
    MountOptions,
    kernel_options,
    parse_mount_options,
)


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


def test_sizes_have_units() -> None:
    for text in ("memory=67108864", "memory=64M", "memory=64MiB", "memory=0.0625 GiB"):
        assert parse_mount_options([text]).memory == 64 << 20


def test_isolation_and_until() -> None:
    assert MountOptions().isolation == "read_committed"
    options = parse_mount_options(["until=high-watermark,isolation=read_uncommitted", "ro"])
    assert (options.until, options.isolation) == ("high-watermark", "read_uncommitted")
    assert parse_mount_options(["until=high-watermark,until=log-end"]) == MountOptions()


def test_a_high_watermark_is_for_directories_of_others() -> None:
    with pytest.raises(InvalidMountOption, match="until=high-watermark requires a read-only mount"):
        parse_mount_options(["until=high-watermark"])


FLAGS = ["sync", "r", "ro=1", "uid", "umask", "=", "noexec=1", "nosuch"]
NUMBERS = ["uid=-1", "uid= 1", "uid=1_0", "uid=x", "uid=4294967295", "uid=\u0661"]
SIZES = ["memory=1023K", "memory=64MB", "memory=-1", "memory=2P", "memory="]
MASKS = ["umask=9", "umask=1000", "umask=0o22"]


USERS = ["setuid", "setuid="]


WORDS = ["isolation=committed", "isolation=", "until=HW", "until"]


@pytest.mark.parametrize("option", FLAGS + NUMBERS + SIZES + MASKS + USERS + WORDS)
def test_what_makes_no_sense_is_refused_and_named(option: str) -> None:
    with pytest.raises(InvalidMountOption) as raised:
        parse_mount_options([f"ro,{option}"])
    assert option in str(raised.value)


def test_what_mount_and_fstab_have_for_others_has_no_effect() -> None:
    theirs = "defaults,auto,noauto,nofail,_netdev,user,user=me,users,nouser,owner,group,relatime"
    more = "strictatime,nodiratime,lazytime,async,comment=words,x-systemd.automount,X-mine=1"
    assert parse_mount_options([theirs, more]) == MountOptions()


def test_the_kernels_own() -> None:
    assert kernel_options(parse_mount_options([])) == {"rw"}
    options = parse_mount_options(["ro,noexec,nosuid,nodev,noatime,allow_root"])
    assert kernel_options(options) == {"ro", "noexec", "noatime", "allow_root"}
    options = parse_mount_options(["noexec,suid,dev,allow_other", "exec"])
    assert kernel_options(options) == {"rw", "suid", "dev", "allow_other"}


def test_two_that_exclude_each_other() -> None:
    with pytest.raises(
        InvalidMountOption, match="allow_root and allow_other cannot be used together"
    ):
        parse_mount_options(["allow_root", "allow_other"])


def test_remount_is_refused() -> None:
    for sloppy in (False, True):
        with pytest.raises(
            InvalidMountOption, match="remount: the options of a mount cannot be changed"
        ):
            # As libmount 2.41 asks, with what the mount table has.
            parse_mount_options(["rw,relatime,user_id=0,ro,remount"], sloppy=sloppy)


def test_sloppy_takes_unknown_options_and_refuses_bad_values() -> None:
    assert parse_mount_options(["nosuch,sync,nosuch=1,ro"], sloppy=True).read_only
    with pytest.raises(InvalidMountOption, match="umask=9"):
        parse_mount_options(["umask=9"], sloppy=True)


def test_each_option_is_described_once_and_sets_what_there_is() -> None:
    names = [option.name for option in OPTIONS]
    assert len(names) == len(set(names))
    assert {option.field for option in OPTIONS} == {field.name for field in fields(MountOptions)}
    for option in OPTIONS:
        assert option.meaning.endswith(".")
        assert bool(option.value) == bool(option.valid)
