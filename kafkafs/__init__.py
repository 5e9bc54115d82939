"""A Kafka-format commit log, mounted as files: the daemon, the tree it shows, the commands."""

import os
from importlib.util import find_spec


def _check_storage() -> None:
    """Raise ImportError if another module has the name of the package `storage` beside this one.

    Python looks beside a script, or in the working directory, first.
    """
    found = find_spec("storage")
    origin = None if found is None else found.origin
    if found is not None and origin is None:
        origin = next(iter(found.submodule_search_locations or ()), None)
    ours = os.path.join(os.path.dirname(__path__[0]), "storage", "__init__.py")
    if origin is not None and os.path.realpath(origin) != os.path.realpath(ours):
        raise ImportError(
            f"{origin} hides the package storage of kafkafs: rename it, or start elsewhere",
            name="storage",
            path=origin,
        )


_check_storage()
