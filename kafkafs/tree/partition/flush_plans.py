"""The fsync of several partitions as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafs.tree.handles import FlushPlan
    from kafkafs.tree.partition.partition import Partition


class FlushPlans:
    """What fsync has to do for these partitions.

    OSError where one of them takes nothing since an fsync of it has failed.
    """

    __slots__ = ("plans",)

    def __init__(self, partitions: Iterable[Partition]) -> None:
        self.plans: list[FlushPlan] = []
        try:
            for partition in partitions:
                plan = partition.flush_plan()
                if plan is not None:
                    self.plans.append(plan)
        except BaseException:
            self.finish()
            raise

    def run(self) -> None:
        """All of them, whatever becomes of one; raises what the first one did that failed."""
        failed: Exception | None = None
        for plan in self.plans:
            try:
                plan.run()
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def finish(self) -> None:
        for plan in self.plans:
            plan.finish()


def planned(partitions: Iterable[Partition]) -> FlushPlan | None:
    """The plan for these partitions; None where all is on the disk."""
    plans = FlushPlans(partitions)
    return plans if plans.plans else None
