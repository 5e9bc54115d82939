"""Run all targets with millions of inputs, made from their seeds and from crafted batches.

    python -m tests.fuzz.campaign --inputs=N [--seconds=S] [--seed=WORD] [--found=DIRECTORY]
                                  [TARGET …]

The inputs are divided among the targets so that each takes about the same time; S limits the total
time. Each target runs in a process of its own, which has its current input in shared memory. The
process is killed if it accesses a byte after the end of the input (`tests.guard_page`), if a
sanitizer finds an error, or if one input takes more than CPU_S seconds. If the target fails or the
process is killed, the campaign writes the input to `found-TARGET-N` in the directory, and its exit
status is 1. To repeat the input: `python -m tests.fuzz.run TARGET FILE`.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz import crafted
from tests.fuzz.directories import DIRECTORIES
from tests.fuzz.directory_seeds import directory_seeds
from tests.fuzz.loops import LOOPS
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS, Target, with_right_crcs, with_right_crcs_07

ALL: dict[str, Target] = {**TARGETS, **LOOPS, **DIRECTORIES}
CPU_S = 20
"""The most processor time that one input may take, also under a sanitizer."""
MEMORY = 4 << 30
LARGEST_INPUT = 1 << 20
FINDINGS = 3
"""So many end the run of a target."""
PROBE = 50
POOL = 500
"""So many crafted inputs are kept, to be changed again and again."""
SHARE_OF_LOOPS = 6
"""How much more time than another target a hot loop by itself gets."""

Maker = Callable[[Random], bytes]
_OF_BATCHES = (
    "shown_log", "columns", "found_records", "kept", "kept_of_right_crcs", "staged",
    "cleaned_log", "key_value_text", "json_text", "words_of_a_log",
)  # fmt: skip
_OF_LOGS = (
    "log", "log_of_right_crcs", "dumped_log", "dumped_log_of_right_crcs", "walked",
    "appended_batches", "fetched_batches", "fetched_batches_of_right_crcs",
)  # fmt: skip
_OF_LINES = ("appended_lines", "key_value_lines", "json_lines")
_OF_07 = ("log_07", "log_07_of_right_crcs")


def makers(name: str) -> list[Maker]:
    """Return the functions that make inputs of a target, beside its seeds."""
    if name in _OF_BATCHES:
        return [crafted.plain_log, crafted.plain_log, crafted.log]
    if name in _OF_LOGS:
        return [crafted.log, crafted.plain_log]
    if name in _OF_LINES:
        return [crafted.line]
    if name in _OF_07:
        return [crafted.log_07]
    if name in ("encoded_rows", "found_entries"):
        return [lambda draw: draw.randbytes(draw.randrange(200))]
    return []


def inputs_of(name: str, draw: Random) -> Callable[[], bytes]:
    """A function that makes the target's next input."""
    known = directory_seeds() if name in DIRECTORIES else [] if name in LOOPS else seeds(name)
    made_by = makers(name)
    right = with_right_crcs_07 if name in _OF_07 else with_right_crcs
    is_log = name in _OF_LOGS + _OF_BATCHES + _OF_07

    pool: list[bytes] = []

    def one() -> bytes:
        if made_by and (not known or draw.random() < 0.8):
            if len(pool) < POOL or draw.random() < 0.05:
                pool.append(draw.choice(made_by)(draw))
                if len(pool) > POOL:
                    pool[draw.randrange(POOL)] = pool.pop()
            data = pool[int(draw.random() * len(pool))]
        else:
            data = draw.choice(known)
        data = crafted.mutated(draw, data)
        return right(data) if is_log and draw.random() < 0.5 else data

    return one


@dataclass
class Run:
    """The inputs of one target, and the failures."""

    name: str
    inputs: int = 0
    seconds: float = 0
    found: list[str] = field(default_factory=list)


class Bench:
    """The memory that a target's process shares with its parent: how far it is, and its input."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 16 + LARGEST_INPUT)

    def put(self, done: int, data: bytes) -> None:
        self._shared[:16] = done.to_bytes(8, "big") + len(data).to_bytes(8, "big")
        self._shared[16 : 16 + len(data)] = data

    def count(self, done: int) -> None:
        self._shared[:8] = done.to_bytes(8, "big")

    @property
    def done(self) -> int:
        return int.from_bytes(self._shared[:8], "big")

    @property
    def data(self) -> bytes:
        return self._shared[16 : 16 + int.from_bytes(self._shared[8:16], "big")]


def give(run: Run, count: int, seed: str, until: float, directory: Path) -> None:
    """Give the target `count` more inputs, in processes of its own; ends at `until` (monotonic)."""
    bench = Bench()
    left = count
    while left > 0 and len(run.found) < FINDINGS and time.monotonic() < until:
        bench.put(0, b"")
        began = time.monotonic()
        child = os.fork()
        if not child:
            _work(bench, run, left, f"{seed}-{run.inputs}", until)
        _, status = os.waitpid(child, 0)
        run.seconds += time.monotonic() - began
        run.inputs += bench.done
        left -= bench.done
        if status:
            run.inputs += 1
            left -= 1
            path = directory / f"found-{run.name}-{len(run.found)}"
            path.write_bytes(bench.data)
            run.found.append(f"{path}: {_ended(status)}")
            print(f"FOUND {run.name}: {run.found[-1]}", flush=True)


def _ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.WEXITSTATUS(status)}"


def _work(bench: Bench, run: Run, count: int, seed: str, until: float) -> None:
    """The child's part; never returns."""
    if "asan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    one = inputs_of(run.name, Random(f"{run.name}-{seed}"))
    target = ALL[run.name]
    for done in range(count):
        data = one()[:LARGEST_INPUT]
        bench.put(done, data)
        if not done & 15:
            signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
            if time.monotonic() > until:
                os._exit(0)
        try:
            target(data)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    bench.count(count)
    os._exit(0)


def campaign(names: list[str], inputs: int, seconds: float, seed: str, found: Path) -> list[Run]:
    """Share the inputs among the targets by how fast each is, and give them."""
    found.mkdir(parents=True, exist_ok=True)
    runs = [Run(name) for name in names]
    until = time.monotonic() + seconds
    for run in runs:
        give(run, min(PROBE, max(inputs // len(runs), 1)), f"{seed}-probe", until, found)
    rates = {run.name: run.inputs / max(run.seconds, 0.001) for run in runs}
    shares = {run.name: SHARE_OF_LOOPS if run.name in LOOPS else 1 for run in runs}
    wanted = max(inputs - sum(run.inputs for run in runs), 0)
    each_s = wanted / sum(rates[name] * shares[name] for name in rates)
    left = sum(shares.values())
    for run in runs:
        until_s = (until - time.monotonic()) * shares[run.name] / left
        left -= shares[run.name]
        count = round(rates[run.name] * shares[run.name] * each_s)
        give(run, count, seed, time.monotonic() + until_s, found)
        rate = run.inputs / max(run.seconds, 0.001)
        print(f"{run.name}: {run.inputs} inputs, {rate:.0f}/s, {len(run.found)} found", flush=True)
    return runs


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", default=str(time.time_ns()))
    parser.add_argument("--found", type=Path, default=Path(".cache/fuzz"))
    parser.add_argument("targets", nargs="*", choices=[[], *ALL], metavar="TARGET")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    runs = campaign(
        asked.targets or list(ALL), asked.inputs, asked.seconds, asked.seed, asked.found
    )
    print(f"{sum(run.inputs for run in runs)} inputs, {sum(len(run.found) for run in runs)} found")
    return 1 if any(run.found for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
