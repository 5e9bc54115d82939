"""Reads the figures of a mount repeatedly, without waiting for the daemon.

A child process makes each reading. If the daemon hangs, only the child waits, not the terminal. The
next reading begins after the last one has ended, so there is never more than one. It also begins at
the earliest `REST` times the duration of the last reading after that one began. So readings of a
mount with many partitions do not keep its daemon busy.
"""

from __future__ import annotations

import errno
import os
import shlex
import time
from functools import partial

from kafkafs.child import Child, NoAnswer
from kafkafs.cli.common.serving import as_its_user, force_line, has_gone, stopped_text
from kafkafs.cli.mounting.top.figures import Sample, look
from kafkafs.cli.mounting.top.rates import Rates
from kafkafs.fuse import mount_point
from kafkafs.mount_table import TYPE, find

REST = 20
#: Seconds after which the command reports that a reading got no answer.
PATIENCE_S = 3.0


class Watcher:
    """Reads the mount at a path every `delay_s` seconds. `rates`: from the last two readings."""

    def __init__(self, path: str, delay_s: float) -> None:
        self.path = path
        self.delay_s = delay_s
        self.rates: Rates | None = None
        self.trouble = ""
        """The reason why there are no newer figures; empty if there is none."""
        self._child: Child[Sample] | None = None
        self._began_s = self._next_s = 0.0
        self._at_s = 0.0

    def step(self, patience_s: float = 0.0) -> bool:
        """Begin a reading if one is due, and take the result of a reading that has ended.

        Return whether anything has changed.
        """
        trouble = self.trouble
        now_s = time.monotonic()
        if self._child is None:
            if now_s < self._next_s:
                return False
            self._next_s = now_s + self.delay_s
            mounted = find(self.path)
            if mounted is None or mounted.type != TYPE:
                self.trouble = f"{self.path}: not a kafkafs mount"
                return self.trouble != trouble
            self._began_s = now_s
            self._child = Child(partial(look, self.path))
        try:
            sample = self._child.result(patience_s)
        except NoAnswer:
            if self._child.has_ended:
                self._child = None
            elif time.monotonic() - self._began_s > PATIENCE_S:
                self.trouble = self._why_silent()
            return self.trouble != trouble
        except OSError as error:
            self._child = None
            self.trouble = self._why_failed(error)
            return self.trouble != trouble
        self._child = None
        self.trouble = ""
        self.rates = Rates(None if self.rates is None else self.rates.now, sample)
        rest_s = max(self.delay_s, REST * sample.took_s)
        self._next_s = self._began_s + rest_s
        return True

    def wait(self, patience_s: float) -> bool:
        """Wait for figures. Return False if there are none in time, or there can be none."""
        until_s = time.monotonic() + patience_s
        before = self.rates
        while time.monotonic() < until_s:
            self.step(max(min(0.1, until_s - time.monotonic()), 0))
            if self.rates is not before:
                return True
            if self.trouble and self._child is None:
                return False
            if self._child is None:
                time.sleep(max(min(self._next_s - time.monotonic(), 0.1), 0))
        return False

    def close(self) -> None:
        """Abandon a reading that has not ended."""
        if self._child is not None:
            self._child.leave()
            self._child = None

    def _why_failed(self, error: OSError) -> str:
        clear = f"kafkafs umount {shlex.quote(self.path)}"
        if has_gone(error):
            return f"{self.path}: the daemon has exited. To remove the dead mount: {clear}"
        if error.errno == errno.EACCES:
            why = (
                f"{self.path}: only the user who mounted it and the group of its data may "
                "read its metrics"
            )
            mounted = find(self.path)
            return why if mounted is None else f"{why}. Try: {as_its_user(mounted)}"
        return f"{self.path}: {error.strerror}"

    def _why_silent(self) -> str:
        mounted = find(self.path)
        silent_s = int(time.monotonic() - self._began_s)
        why = stopped_text(None if mounted is None else mount_point.find_daemon(mounted)[0])
        if why is None:
            why = f"to end the mount: {force_line(self.path)}"
        return f"{self.path}: no answer for {silent_s} s; {why}"


def resolved(path: str) -> str:
    """Return the mount at a path, or the mount that shows the data directory there.

    Errors: MountError.
    """
    from kafkafs.cli.common.addresses import check_no_address
    from kafkafs.cli.common.mounts import mount_that_writes
    from kafkafs.mount_table import find_around

    for where in (os.path.abspath(path), mount_point.resolve(path)):
        around = find_around(where)
        if around is not None and around.type == TYPE:
            return around.path
    check_no_address(path)
    shown = mount_that_writes(where)
    if shown is None:
        raise mount_point.MountError(f"{path}: not a kafkafs mount")
    return shown
