"""What all tests rely on, whoever started them."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """What `nohup` or `&` has us ignore, the daemons that tests start would ignore too."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
