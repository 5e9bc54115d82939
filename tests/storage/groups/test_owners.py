"""The owners of groups are stored in a file; if it is damaged, every request is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptCheckpoint
from storage.files import Files
from storage.groups.owners import GroupOwners

files = Files()
OWNER = (54321, 65432, 0o2750)


def owners(path: Path) -> GroupOwners:
    return GroupOwners(files, str(path))


@pytest.mark.parametrize("name", ["g", "a b", 'quo"te', "back\\slash", "line\nend", "é", "\udcff"])
def test_what_is_set_is_kept(tmp_path: Path, name: str) -> None:
    owners(tmp_path).set(name, OWNER, set())
    assert owners(tmp_path).get(name) == OWNER
    text = (tmp_path / "kafkafs.groups").read_text()
    assert text == f"54321:65432:2750 {json.dumps(name)}\n"


@given(
    st.dictionaries(
        st.text(st.characters(), min_size=1),
        st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 0o7777)),
    )
)
def test_any_groups(
    tmp_path_factory: pytest.TempPathFactory, given_to: dict[str, tuple[int, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("data")
    for name, owner in given_to.items():
        owners(path).set(name, owner, set(given_to))
    found = owners(path)
    assert {name: found.get(name) for name in given_to} == given_to


def test_lines_of_groups_that_are_gone_go_with_the_next_change(tmp_path: Path) -> None:
    known = owners(tmp_path)
    for name in ("a", "b", "c"):
        known.set(name, OWNER, {"a", "b", "c"})
    known.set("c", (0, 0, 0o700), {"a", "c"})
    assert [known.get(name) for name in "abc"] == [OWNER, None, (0, 0, 0o700)]
    assert len((tmp_path / "kafkafs.groups").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "line",
    [
        "rubbish",
        "",
        "1:2:0755",
        '1:2:755 "g"',
        '1:2:0855 "g"',
        '-1:2:0755 "g"',
        '1:2:0755 "g',
        "\0",
    ],
)
def test_a_damaged_file_gives_nothing_to_anybody(tmp_path: Path, line: str) -> None:
    path = tmp_path / "kafkafs.groups"
    path.write_text(f'1:2:0755 "g"\n{line}\n')
    before = path.read_bytes()
    with pytest.raises(CorruptCheckpoint, match="UID:GID:MODE") as refused:
        owners(tmp_path).get("g")
    assert refused.value.line == 2
    with pytest.raises(CorruptCheckpoint):
        owners(tmp_path).set("g", OWNER, {"g"})
    assert path.read_bytes() == before
