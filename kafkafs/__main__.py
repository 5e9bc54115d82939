"""`python -m kafkafs`, and what `spark-submit` is given: the command line."""

from __future__ import annotations

from kafkafs.cli import main

if __name__ == "__main__":
    main()
