"""A query fails at records that a log lacks by its manifest: none is left out in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.errors import CorruptRecord
from tests.spark.reading import batch, batch_parts, read
from tests.storage.logs import log_file
from tests.storage.state.test_segment_manifest import LINES, fill


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("left", [None, 0, 74])
def test_a_segment_is_gone_or_shorter(tmp_path: Path, left: int | None, splits: int) -> None:
    fill(tmp_path)
    path = log_file(tmp_path, 3)
    if left is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:left])
    first = 3 + (left or 0) // 74
    options: dict[str, object] = {"subscribe": "t", "minPartitions": splits}
    with pytest.raises(CorruptRecord) as caught:
        batch(tmp_path, **options)
    assert (caught.value.path, caught.value.offset) == (str(path), first)
    options["startingOffsets"] = '{"t": {"0": 6}}'
    assert [row.value for row in batch(tmp_path, **options)] == LINES[6:]
    del options["startingOffsets"]
    options["endingOffsets"] = json.dumps({"t": {"0": first}})
    assert [row.value for row in read(batch_parts(tmp_path, **options))] == LINES[:first]
