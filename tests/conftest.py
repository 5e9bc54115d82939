"""What all tests rely on, whoever started them."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# How fast a machine is, and what else it does, is nothing that a test is about.
settings.register_profile("kafkafs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kafkafs")


def pytest_configure() -> None:
    """What `nohup` or `&` has us ignore, the daemons that tests start would ignore too."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
