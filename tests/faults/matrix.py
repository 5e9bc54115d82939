"""Finds out which layer of tests sees which fault; `matrix.tsv` keeps the results.

A row has a fault, a layer, the result, and a checksum of the fault and of the test files. The
result of a pair is the test that fails, "unseen", "not known" if the tests were cut short or fail
without the fault too, or "no code" if the fault does not compile. The next call runs only pairs
that have no row with their checksum.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.faults.copies import Copy
from tests.faults.fault import ROOT, Fault, Misfit
from tests.faults.functions import changed
from tests.faults.reach import Reached

RESULTS = ROOT / "tests/faults/matrix.tsv"
PAIR_S = 60
UNSEEN, NOT_KNOWN, NO_CODE = "unseen", "not known", "no code"
LAYERS = {
    "tests/storage": "storage",
    "tests/kafka_client": "client",
    "tests/kafkafs": "tree",
    "tests/kafkafs/cli": "cli",
    "tests/kafkafs/dump": "views",
    "tests/kafkafs/fuse": "fuse",
    "tests/kafkafs/schemas": "views",
    "tests/kafkafs/spark": "spark",
    "tests/kafkafs/views": "views",
    "tests/mount": "mount",
    "tests/mount/contract": "contract",
    "tests/interop": "interop",
    "tests/crash": "crash",
    "tests/property": "property",
    "tests/spark": "spark",
}
"""The layer of the tests in a folder and in the folders below it."""


def layer_of(test: str) -> str | None:
    folders = map(str, Path(test.partition("::")[0]).parents)
    return next((LAYERS[folder] for folder in folders if folder in LAYERS), None)


def times(table: Iterable[str]) -> dict[str, float]:
    """Return the processor time of each test file."""
    return {
        row["file"]: float(row["own_s"]) + float(row["children_s"])
        for row in csv.DictReader(table)
        if not row["test"]
    }


def layers(
    named: Iterable[str], reaching: Iterable[str], costs: Mapping[str, float]
) -> dict[str, list[str]]:
    """Return the tests of each layer: the named ones first, then the cheapest file."""
    chosen: dict[str, list[str]] = defaultdict(list)
    for test in [*named, *sorted(reaching, key=lambda file: (costs.get(file, 0.0), file))]:
        layer = layer_of(test)
        if layer is not None and test not in chosen[layer]:
            chosen[layer].append(test)
    return dict(chosen)


def tests_of(fault: Fault, reached: Reached, costs: Mapping[str, float]) -> dict[str, list[str]]:
    """Return the tests of each layer; Misfit if `reach` has not recorded a function."""
    functions = [str(each) for each in changed(fault, ROOT)]
    if not reached.keys() >= set(functions):
        raise Misfit(f"{fault.name}: reach.txt lacks its function: run scripts/faults reach")
    files = {file for each in functions for file in reached[each]}
    existing = [file for file in files if (ROOT / file).exists()]
    return layers(fault.tests, existing, costs)


def checksum(fault: Fault, tests: Iterable[str]) -> str:
    found = hashlib.sha256(repr((fault.file, fault.old, fault.new)).encode())
    for file in sorted({test.partition("::")[0] for test in tests}):
        found.update(file.encode() + (ROOT / file).read_bytes())
    return found.hexdigest()[:12]


def rows(results: Path) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the last result and checksum of each pair."""
    lines = results.read_text().splitlines() if results.exists() else []
    fields = [line.split("\t") for line in lines]
    return {(fault, layer): (result, check) for fault, layer, result, check in fields}


def judge(fault: Fault, copy: Copy, tests: Mapping[str, list[str]]) -> dict[str, str]:
    """Run the tests of these layers with a fault; return the result of each layer."""
    results, failed = {}, {}
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(copy.having(fault))
        except Misfit:
            return dict.fromkeys(tests, NO_CODE)
        for layer, files in tests.items():
            code, output = copy.test(files, "-x", "-n", "0", timeout_s=PAIR_S)
            found = [line for line in output.splitlines() if line.startswith("FAILED ")]
            if code == 1 and found:
                failed[layer] = found[0].removeprefix("FAILED ").partition(" - ")[0]
            elif code is not None and code < 0:  # only the fault kills pytest by a signal
                results[layer] = f"signal {-code}"
            else:  # 5: the gate leaves all of these tests out
                results[layer] = UNSEEN if code in (0, 5) else NOT_KNOWN
    for layer, test in failed.items():
        code, _ = copy.test([test], "-n", "0", timeout_s=PAIR_S)
        results[layer] = test if code == 0 else NOT_KNOWN
    return results
