"""Lists the faults of `catalogue`, puts them into the code, and runs the tests that must see them.

`scripts/faults` says how it is called.

Each fault is put into a copy of the working tree, so that nothing is left of it here, however the
run ends.  Seen is a fault by which a test *fails* that passes without it: not one that cannot be
collected, and not one whose fixtures fail.

Why not a tool that makes the faults: mutmut and cosmic-ray change any operator and any number and
run the suite for each.  Most of what they make here changes a message or a limit that nobody
promises, none leaves out one fsync of three, and a suite that mounts file systems takes minutes.
"""

from __future__ import annotations

import argparse
import functools
import queue
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.faults import matrix, reach
from tests.faults.catalogue import FAULTS
from tests.faults.copies import Copy, copies
from tests.faults.fault import ROOT, Fault, Misfit
from tests.faults.sample import sample

Found = TypeVar("Found")
WHOLE = ("--stops=1", "-m", "")
"""Options with which pytest also runs what the gate leaves out."""


def see(tests: Sequence[str], fault: Fault, copy: Copy) -> str | None:
    """The test that fails with it and passes without it, and how; None where there is none."""
    with copy.having(fault):
        code, output = copy.test(tests or fault.tests, "-x", "-n", "0", *WHOLE)
    failed = [line for line in output.splitlines() if line.startswith("FAILED ")]
    by = None
    if code == 1 and failed:
        test, _, how = failed[0].removeprefix("FAILED ").partition(" - ")
        code, output = copy.test([test], "-n", "0", *WHOLE)
        if code == 0:
            by = f"{test} ({how})"
        else:
            print(f"{test} fails without {fault.name}, too:\n{output}", flush=True)
    elif code != 0:
        print(f"{fault.name}: its tests do not run with it:\n{output}", flush=True)
    print(f"{fault.name}: {f'seen by {by}' if by else fault.unseen or 'NOT SEEN'}", flush=True)
    return by


def in_copies(
    one: Callable[[Fault, Copy], Found], faults: Sequence[Fault], jobs: int
) -> list[Found]:
    """Call a function for each fault with a copy that no other call has meanwhile."""
    with copies(jobs) as made, ThreadPoolExecutor(jobs) as pool:
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in made:
            free.put(copy)

        def call(fault: Fault) -> Found:
            copy = free.get()
            try:
                return one(fault, copy)
            finally:
                free.put(copy)

        try:
            return list(pool.map(call, faults))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in made:
                copy.stop()
            raise


def run(faults: Sequence[Fault], jobs: int, tests: Sequence[str]) -> int:
    """Say of each fault whether it is seen; 1 where one is not that should be."""
    found = in_copies(functools.partial(see, tests), faults, jobs)
    seen = [by is not None for by in found]
    missing = [fault for fault, is_seen in zip(faults, seen, strict=True) if not is_seen]
    unexplained = [fault.name for fault in missing if not fault.unseen]
    print(f"{len(faults)} faults: {sum(seen)} seen, {len(missing) - len(unexplained)} explained")
    for name in unexplained:
        print(f"not seen: {name}")
    return int(bool(unexplained))


def run_matrix(faults: Sequence[Fault], jobs: int) -> int:
    """Append the result of each pair of a fault and a layer that has none; then sort them all."""
    reached = reach.read(reach.REACHED.read_text())
    costs = matrix.times(reach.TIMES.read_text().splitlines())
    tests = {fault.name: matrix.tests_of(fault, reached, costs) for fault in faults}
    known = matrix.rows(matrix.RESULTS)

    def one(fault: Fault, copy: Copy) -> None:
        checks = {layer: matrix.checksum(fault, each) for layer, each in tests[fault.name].items()}
        missing = {
            layer: each
            for layer, each in tests[fault.name].items()
            if known.get((fault.name, layer), ("", ""))[1] != checks[layer]
        }
        if not missing:
            return
        for layer, result in matrix.judge(fault, copy, missing).items():
            with matrix.RESULTS.open("a") as out:
                out.write(f"{fault.name}\t{layer}\t{result}\t{checks[layer]}\n")
            print(f"{fault.name}: {layer}: {result}", flush=True)

    in_copies(one, faults, jobs)
    found = matrix.rows(matrix.RESULTS)
    matrix.RESULTS.write_text(
        "".join("\t".join((*pair, *found[pair])) + "\n" for pair in sorted(found))
    )
    return 0


def run_reach(faults: Sequence[Fault], options: Sequence[str], parts: Sequence[str]) -> int:
    """Record what the gate reaches; with `parts`, print what these reach."""
    with copies(1) as (copy,):
        text = reach.reach(faults, copy, options, parts)
        if parts:
            print(text, end="")
        else:
            reach.REACHED.write_text(text)
            shutil.copy(copy.root / reach.TIMES.relative_to(ROOT), reach.TIMES)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the faults, what each breaks, and what is to see it")
    for command, text in (("apply", "put a fault into the code here"), ("undo", "take it back")):
        commands.add_parser(command, help=text).add_argument("name")
    runs = commands.add_parser("run", help="put faults into a copy, and run the tests")
    runs.add_argument("names", nargs="*", metavar="NAME", help="all without any")
    runs.add_argument("--jobs", type=int, default=1, help="how many at once")
    runs.add_argument("--tests", nargs="+", default=[], help="these instead of each fault's own")
    runs.add_argument("--matrix", action="store_true", help="find out which layers see each fault")
    reaches = commands.add_parser("reach", help="record which test files reach the faults")
    reaches.add_argument("parts", nargs="*", metavar="PART", help="print what these tests reach")
    reaches.add_argument("-n", dest="processes", default="4", help="processes of pytest")
    samples = commands.add_parser("sample", help="list the faults that a seed makes")
    for each in (runs, reaches, samples):
        needed = each is samples
        each.add_argument("--seed", required=needed, help="also the faults that this seed makes")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    made = sample(given.seed) if getattr(given, "seed", None) is not None else []
    faults = [*FAULTS, *made]
    by_name = {fault.name: fault for fault in faults}
    names = getattr(given, "names", None) or [getattr(given, "name", None)]
    unknown = [name for name in names if name is not None and name not in by_name]
    if unknown:
        parser.error(f"no such fault: {', '.join(unknown)}")
    try:
        if given.command == "apply":
            by_name[given.name].apply()
        elif given.command == "undo":
            by_name[given.name].undo()
        elif given.command == "run":
            chosen = [by_name[name] for name in given.names] or faults
            if given.matrix:
                return run_matrix(chosen, given.jobs)
            return run(chosen, given.jobs, given.tests)
        elif given.command == "reach":
            options = ["-n", given.processes, "--dist", "loadfile", "--no-loadscope-reorder"]
            return run_reach(faults, options, given.parts)
        elif given.command == "sample":
            for fault in made:
                print(f"{fault.name}\n{fault.new}")
        else:
            for fault in FAULTS:
                print(f"{fault.name} ({fault.file}): {fault.breaks}")
                print(f"    {fault.unseen or ' '.join(fault.tests)}")
    except Misfit as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
