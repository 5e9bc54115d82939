"""All faults, durability, order, visibility and permissions first."""

from __future__ import annotations

from tests.faults import (
    content,
    durability,
    loops,
    order,
    permissions,
    service,
    visibility,
)

FAULTS = [
    *durability.FAULTS,
    *order.FAULTS,
    *visibility.FAULTS,
    *permissions.FAULTS,
    *service.FAULTS,
    *content.FAULTS,
    *loops.FAULTS,
]
