"""The program `kafkafs`, also `python -m kafkafs`, and what `spark-submit` is given."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line."""
    # If the caller ignores SIGCHLD, no process can learn how its children have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Ctrl-C while the modules are imported ends the program, as it does one that is no Python.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kafkafs.cli import main as command_line

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line()


if __name__ == "__main__":
    main()
