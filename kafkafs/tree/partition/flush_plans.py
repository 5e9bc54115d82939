"""The fsync of several partitions as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafs.tree.handles import FlushPlan
    from kafkafs.tree.partition.partition import Partition


class FlushPlans:
    """The flush plans of several partitions. OSError where one refuses, after a failed fsync."""

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
        """Run all plans, also after one has failed; then raise the first error."""
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
    """The plan for these partitions; None where all of it is flushed."""
    plans = FlushPlans(partitions)
    return plans if plans.plans else None
