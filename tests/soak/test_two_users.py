"""Users who try everything under any owners and modes: `tests/mount/modes_matrix` for long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.modes_matrix import any_rights, matrix
from tests.mount.mounting import let_others_in, mounted, needs_root

pytestmark = [pytest.mark.soak, needs_root]


def test_any_modes(tmp_path: Path, soak_s: float, figures: Callable[[str, object], None]) -> None:
    let_others_in(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    seed = random.SystemRandom().getrandbits(32)
    draw = random.Random(seed)
    count, ends = 0, time.monotonic() + soak_s
    with mounted(tmp_path, "allow_other") as mount, matrix(mount) as tried:
        while time.monotonic() < ends:
            wrong = tried.try_all(any_rights(draw))
            assert wrong == [], (seed, count)
            count += 1
        figures("owners and modes tried", count)
        figures("answers compared", tried.checks)
