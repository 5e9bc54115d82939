"""The parts of a daemon that work by the clock, without a kernel, on a clock that a test moves."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, Concatenate, TypeVar

import trio
import trio.testing

from kafkafs.fuse.housekeeping import Housekeeping
from kafkafs.fuse.operations import Operations
from kafkafs.fuse.schedule import Schedule
from kafkafs.fuse.session_loop import Spinner
from kafkafs.fuse.threads import JobThreads
from kafkafs.tree.context import MountContext
from kafkafs.tree.events import Events
from kafkafs.tree.filesystem import FileSystem
from storage.files import Files
from storage.log.log import Log
from storage.manager import LogManager
from tests.storage.logs import write_settings

W = TypeVar("W", bound="World")


class World:
    """A data directory, and the parts of a daemon. A subclass says which of them run, and with
    which settings.
    """

    settings: ClassVar[dict[str, object]] = {}
    rate: ClassVar[float] = 0
    """Of the clock; 1: it goes as fast as the real one."""

    def __init__(
        self, data: Path, clock: trio.testing.MockClock, files: Files | None = None
    ) -> None:
        self.data = data
        self.clock = clock
        self.wall_ms = 1_700_000_000_000
        self.said: list[str] = []
        self.manager = LogManager.open(
            str(data), files=files, clock_ms=self.now_ms, monotonic_ms=self.monotonic_ms
        )
        events = Events(self.now_ms)
        events.forward = self.said.append
        self.tree = FileSystem(
            MountContext(self.manager, events=events, clock_ns=lambda: self.now_ms() * 1_000_000)
        )
        self.operations = Operations(self.tree, Spinner(), lambda: None)
        self.ticks = Housekeeping(self.tree, self.operations)
        self.workers = JobThreads(self.tree.mount, self.operations.turns)
        self.schedule = Schedule(self.tree, self.workers)

    def now_ms(self) -> int:
        return self.wall_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(self.clock.current_time() * 1000)

    async def start(self, nursery: trio.Nursery) -> None:
        raise NotImplementedError

    def topic(self, name: str = "a", **settings: object) -> Log:
        log = self.manager.create_topic(name).partitions[0]
        texts = {key.replace("_", "."): str(value) for key, value in settings.items()}
        self.manager.change_topic_settings(name, texts)
        return log


def in_world(
    make: Callable[[Path, trio.testing.MockClock], W],
    prepare: Callable[[Path], object] = lambda data: None,
    **settings: object,
) -> Callable[[Callable[Concatenate[W, ...], Awaitable[None]]], Callable[..., None]]:
    """Make a test of a coroutine function whose first parameter is the world, and the others
    fixtures. `prepare` may make the data directory.
    """

    def decorated(test: Callable[Concatenate[W, ...], Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(tmp_path: Path, **fixtures: Any) -> None:
            data = tmp_path / "data"
            prepare(data)
            data.mkdir(exist_ok=True)
            write_settings(data, **{**getattr(make, "settings", {}), **settings})
            clock = trio.testing.MockClock(getattr(make, "rate", 0))
            worlds: list[W] = []

            async def main() -> None:
                world = make(data, clock)
                worlds.append(world)
                async with trio.open_nursery() as nursery:
                    await world.start(nursery)
                    await test(world, **fixtures)
                    nursery.cancel_scope.cancel()

            try:
                trio.run(main, clock=clock)
            except BaseException:
                for world in worlds:
                    world.manager.abandon()
                raise
            worlds[0].tree.stop()
            worlds[0].manager.close()

        place = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        fixtures = list(inspect.signature(test).parameters.values())[1:]
        vars(run)["__signature__"] = inspect.Signature([place, *fixtures])
        return run

    return decorated
