"""When a test gives up waiting."""

from __future__ import annotations

#: No machine is so loaded that what a test waits for takes as long, in seconds: it hangs.
HANG_S = 300.0
