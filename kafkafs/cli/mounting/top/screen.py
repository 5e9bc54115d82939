"""Draws `kafkafs top` on the terminal and handles keys. curses restores the terminal at the end."""

from __future__ import annotations

import contextlib
import curses
import os
import textwrap
import time
from collections.abc import Callable, Sequence
from functools import partial

from kafkafs.cli.mounting.top import head
from kafkafs.cli.mounting.top.table import SORTS, Table
from kafkafs.cli.mounting.top.watcher import Watcher
from kafkafs.printable import one_line

#: Milliseconds to wait for a key before checking for new figures.
TURN_MS = 100
#: The numbers of jobs and of events that are shown.
JOBS, EVENTS = 4, 5
#: The least and the greatest time between two readings, in seconds.
DELAYS = 0.5, 60.0
_ESCAPE = 27
_ENTERS = (10, 13, curses.KEY_ENTER)
_BACKSPACES = (8, 127, curses.KEY_BACKSPACE)

HELP = """\
q, Esc          quit
h, ?            show this page; any key closes it
p, Space        pause or continue
t               show topics or partitions
up, down, k, j  scroll by a line; PgUp, PgDn by a page; Home, End (or g G: first, last)
/               filter by a part of the name; Enter applies it, Esc removes it
sort by         i bytes in    r records in    o bytes out    u records out
                s size        c records       l lag          S segments      f open files
                n name        b behind (records of the source that a mirror has not copied)
                press the key again to reverse the order; < and > choose the next column
e               show or hide events
+, -            refresh less often, more often

Records read are estimated from bytes read and the mean record size. Reads from the page
cache of the kernel are not counted. LAG is the lag of the group that is furthest behind.
Each refresh itself causes about twenty requests, which requests and cpu include."""


def show(watcher: Watcher, table: Table) -> None:
    """Show the mount until a key ends the command. Errors: curses.error, KeyboardInterrupt.

    `curses.wrapper` is not used, as it always sets colors, even if no colors are wanted.
    """
    window = curses.initscr()
    try:
        curses.noecho()
        curses.cbreak()
        Screen(window, watcher, table).run()
    finally:
        curses.endwin()


class Screen:
    """Shows the mount on the terminal until `run` returns."""

    def __init__(self, window: curses.window, watcher: Watcher, table: Table) -> None:
        self._window = window
        self._watcher = watcher
        self._table = table
        self._shows_help = self._is_paused = self._is_typing = False
        self._shows_events = True
        self._has_color = _begin_colors()
        self._keys = self._key_table()
        self._height = 1
        self._ends = False

    def run(self) -> None:
        """Show the mount until a key ends the command. Errors: KeyboardInterrupt."""
        self._window.keypad(True)
        self._window.timeout(TURN_MS)
        self._take()
        self._draw()
        while not self._ends:
            key = self._window.getch()
            if key != -1:
                self._press(key)
            is_new = not self._is_paused and self._watcher.step()
            if is_new:
                self._take()
            if is_new or key != -1:
                self._draw()

    def _take(self) -> None:
        if self._watcher.rates is not None:
            self._table.take(self._watcher.rates)

    # -- keys ----------------------------------------------------------------------------------

    def _key_table(self) -> dict[int, Callable[[], None]]:
        table = self._table
        keys: dict[int, Callable[[], None]] = {
            curses.KEY_DOWN: lambda: table.scroll(1, self._height),
            curses.KEY_UP: lambda: table.scroll(-1, self._height),
            curses.KEY_NPAGE: lambda: table.scroll(self._height, self._height),
            curses.KEY_PPAGE: lambda: table.scroll(-self._height, self._height),
            curses.KEY_HOME: lambda: table.scroll(-len(table.rows), self._height),
            curses.KEY_END: lambda: table.scroll(len(table.rows), self._height),
            _ESCAPE: self._escape,
        }
        named = {
            "q": self._flip("_ends"),
            "h": self._flip("_shows_help"),
            "?": self._flip("_shows_help"),
            "p": self._flip("_is_paused"),
            " ": self._flip("_is_paused"),
            "t": self._toggle_partitions,
            "/": self._flip("_is_typing"),
            "e": self._flip("_shows_events"),
            "<": lambda: table.sort_beside(-1),
            ">": lambda: table.sort_beside(1),
            "+": lambda: self._set_delay(2.0),
            "-": lambda: self._set_delay(0.5),
            "j": keys[curses.KEY_DOWN],
            "k": keys[curses.KEY_UP],
            "g": keys[curses.KEY_HOME],
            "G": keys[curses.KEY_END],
        }
        keys |= {ord(name): do for name, do in named.items()}
        keys |= {ord(name): partial(table.sort_by, key) for name, key in SORTS.items()}
        return keys

    def _press(self, key: int) -> None:
        if self._is_typing:
            self._typed(key)
        elif self._shows_help and key != curses.KEY_RESIZE:
            self._shows_help = False
        elif key in self._keys:
            self._keys[key]()

    def _flip(self, flag: str) -> Callable[[], None]:
        """Return a function that turns a flag of the screen on or off."""
        return lambda: setattr(self, flag, not getattr(self, flag))

    def _escape(self) -> None:
        if self._table.filter:
            self._filter("")
        else:
            self._ends = True

    def _toggle_partitions(self) -> None:
        self._table.by_partition = not self._table.by_partition
        self._table.first = 0
        self._take()

    def _set_delay(self, factor: float) -> None:
        least, most = DELAYS
        self._watcher.delay_s = min(max(self._watcher.delay_s * factor, least), most)

    def _typed(self, key: int) -> None:
        """Handle a key while the user types the filter."""
        if key in _ENTERS:
            self._is_typing = False
        elif key == _ESCAPE:
            self._is_typing = False
            self._filter("")
        elif key in _BACKSPACES:
            self._filter(self._table.filter[:-1])
        elif 32 <= key < 127:
            self._filter(self._table.filter + chr(key))

    def _filter(self, text: str) -> None:
        self._table.filter = text
        self._table.first = 0
        self._take()

    # -- drawing -------------------------------------------------------------------------------

    def _draw(self) -> None:
        window = self._window
        window.erase()
        height, width = window.getmaxyx()
        if self._shows_help:
            for number, line in enumerate(HELP.splitlines()[:height]):
                self._put(number, line)
            window.refresh()
            return
        above = self._above(width)[: max(height - 3, 1)]
        below = self._below(height - len(above) - 3)
        for number, (line, attributes) in enumerate(above):
            self._put(number, line, attributes)
        self._height = max(height - len(above) - len(below) - 2, 0)
        for number, (line, is_active) in enumerate(self._table.lines(width, self._height)):
            look = curses.A_REVERSE if not number else curses.A_BOLD if is_active else 0
            self._put(len(above) + number, line.ljust(width) if not number else line, look)
        for number, line in enumerate(below):
            self._put(height - 1 - len(below) + number, line)
        self._put(height - 1, self._status(), curses.A_REVERSE if self._is_typing else 0)
        window.refresh()

    def _above(self, width: int) -> list[tuple[str, int]]:
        """Return the lines about the whole mount, its faults and its jobs, at most `width` wide."""
        return [
            (part, attributes)
            for line, attributes in self._head()
            for part in textwrap.wrap(line, width) or [""]
        ]

    def _head(self) -> list[tuple[str, int]]:
        watcher = self._watcher
        state = ", paused" if self._is_paused else ""
        first = f"kafkafs top {watcher.path}, {time.strftime('%H:%M:%S')}{state}"
        lines = [(first, curses.A_BOLD)]
        alarm = curses.A_BOLD | (curses.color_pair(1) if self._has_color else 0)
        if watcher.trouble:
            lines.append((watcher.trouble, alarm))
        rates = watcher.rates
        if rates is None:
            return lines
        lines += [(line, 0) for line in head.lines(rates)]
        faults = [f"{words}: {count}" for words, count in rates.faults()]
        if faults:
            lines.append((", ".join(faults), alarm))
        jobs = rates.jobs()
        lines += [(head.job_line(job), 0) for job in jobs[:JOBS]]
        if len(jobs) > JOBS:
            lines.append((f"and {len(jobs) - JOBS} more jobs", 0))
        return lines

    def _below(self, room: int) -> Sequence[str]:
        """Return the newest events, as many as fit in half of `room`."""
        rates = self._watcher.rates
        count = min(EVENTS, room // 2)
        if rates is None or not self._shows_events or count < 1:
            return ()
        return rates.now.events[-count:]

    def _status(self) -> str:
        table = self._table
        if self._is_typing:
            return f"filter: {table.filter}"
        last = min(table.first + self._height, len(table.rows))
        seen = f"{min(table.first + 1, last)}-{last} of {len(table.rows)}"
        chosen = f", filter {table.filter!r}" if table.filter else ""
        return f"{seen}{chosen}  q quit  h help  p pause  t topics/partitions  / filter  e events"

    def _put(self, row: int, line: str, attributes: int = 0) -> None:
        """Write a line, cut to the width of the terminal."""
        height, width = self._window.getmaxyx()
        if not 0 <= row < height:
            return
        encoding = self._window.encoding
        shown = one_line(line).encode(encoding, "replace").decode(encoding, "replace")
        # curses cannot move the cursor past the last character of the terminal: an error.
        with contextlib.suppress(curses.error):
            self._window.addnstr(row, 0, shown, width, attributes)


def _begin_colors() -> bool:
    """Turn on colors, and return whether there is a color for faults."""
    if os.environ.get("NO_COLOR") or not curses.has_colors():
        return False
    curses.start_color()
    curses.use_default_colors()
    curses.init_pair(1, curses.COLOR_RED, -1)
    return True
