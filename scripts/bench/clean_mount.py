"""Measures readers and writers of a mount while its daemon cleans a log."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from clean_data import Keyed, copy_to, mark_clean
from mount_peers import Kafkafs

READ, WRITE = "read", "write"


class Busy:
    """A mount with a topic for each cleaning, a large one to read from and one to append to.

    A context manager. `client.c` makes the requests, and the figure is their p99.
    """

    def __init__(self, home: Path, keyed: Keyed, cleanings: int, client: Path) -> None:
        self._kafkafs = Kafkafs(home)
        self._client = client
        self._topics = [f"cleaned-{number}" for number in range(cleanings)]
        for topic in self._topics:
            copy_to(keyed.directory, self._kafkafs.data / f"{topic}-0")
        copy_to(keyed.directory, self._kafkafs.data / "read-0")
        mark_clean(self._kafkafs.data)
        (self._kafkafs.data / "kafkafs.properties").write_text(
            # The daemon cleans a topic only on request.
            f"log.segment.bytes={keyed.segment_bytes}\nlog.initial.task.delay.ms=86400000\n"
        )

    def __enter__(self) -> Busy:
        try:
            self._kafkafs.start()
            (self._kafkafs.mount_point / "appended").mkdir()
            for topic in self._topics:
                config = self._kafkafs.mount_point / topic / ".config"
                config.write_bytes(b"cleanup.policy=compact\n")
            # The view is measured once, so that reads find their positions.
            for topic in ("read", *self._topics):
                self._measured(self._kafkafs.served(topic)[0])
        except BaseException:
            self._kafkafs.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kafkafs.stop()

    def _measured(self, path: Path) -> None:
        """Wait until the file's size is known."""
        subprocess.run(["head", "-c", "1", path], check=True, stdout=subprocess.DEVNULL)

    def idle(self, what: str, count: int) -> float:
        """Return the p99 of the requests, in µs."""
        [place] = self._kafkafs.served("read" if what == READ else "appended")
        arguments = [what, str(count), str(place)]
        if what == READ:
            subprocess.run([self._client, "drop", place], check=True)
        else:
            arguments = [what, str(place), str(count), "100"]
        done = subprocess.run(
            [self._client, *arguments], check=True, capture_output=True, text=True
        )
        words = done.stdout.split()
        return float(words[words.index("p99_us") + 1])

    def while_cleaning(self, what: str, count: int) -> tuple[float, float]:
        """Return the p99 while a topic is cleaned, and 1 if the cleaning ran until their end."""
        topic = self._topics.pop()
        control = self._kafkafs.mount_point / topic / ".control" / "compaction"
        control.write_bytes(b"run\n")
        found = self.idle(what, count)
        state = facts(control)
        self._wait(control)
        ended = facts(control)
        if ended["last_outcome"] != "done":
            raise RuntimeError(f"{topic}: {ended}")
        return found, float(state["state"] == "running")

    def _wait(self, control: Path) -> None:
        while facts(control)["state"] != "idle":
            time.sleep(0.01)


def facts(control: Path) -> dict[str, str]:
    lines = (line.split(None, 1) for line in control.read_text().splitlines())
    return {line[0]: line[1] for line in lines if len(line) == 2}
