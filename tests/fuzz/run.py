"""Runs one target: on files, or on what a coverage-guided fuzzer (Atheris) makes of its seeds.

    python -m tests.fuzz.run TARGET FILE…
    python -m tests.fuzz.run TARGET --corpus=DIRECTORY [libFuzzer's options …]

Where the target fails, the bytes that it failed on are left beside the corpus, as `found-*`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

_CORPUS = "--corpus="


def main() -> None:
    """See the module."""
    name, *arguments = sys.argv[1:]
    corpora = [word.removeprefix(_CORPUS) for word in arguments if word.startswith(_CORPUS)]
    if not corpora:
        target, _ = _find(name)
        for path in arguments:
            target(Path(path).read_bytes())
        return
    import atheris

    with atheris.instrument_imports(include=["storage", "kafka_client", "kafkafs"]):
        target, seeds = _find(name)
    corpus = Path(corpora[0]) / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [word for word in arguments if not word.startswith(_CORPUS)]
    found = f"-artifact_prefix={corpus.parent}/found-{name}-"
    atheris.Setup([sys.argv[0], *options, found, str(corpus)], target)
    atheris.Fuzz()


def _find(name: str) -> tuple[Callable[[bytes], None], list[bytes]]:
    """A target by its name, and its seeds."""
    from tests.fuzz.directories import DIRECTORIES
    from tests.fuzz.directory_seeds import directory_seeds
    from tests.fuzz.loops import LOOPS
    from tests.fuzz.seeds import seeds
    from tests.fuzz.targets import TARGETS

    if name in DIRECTORIES:
        return DIRECTORIES[name], directory_seeds()
    if name in LOOPS:
        return LOOPS[name], []
    return TARGETS[name], seeds(name)


if __name__ == "__main__":
    main()
