"""CRC-32C for Python code, by the package crc32c. The loops in C have their own (`_crc`).

Importing the package takes 40 ms, for argparse and importlib.metadata. Its extension module alone
takes 0.4 ms.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

_package = PathFinder.find_spec("crc32c")
_places = None if _package is None else _package.submodule_search_locations
_spec = PathFinder.find_spec("crc32c._crc32c", _places) if _places else None
if _spec is not None and _spec.loader is not None:
    _library: Any = module_from_spec(_spec)
    _spec.loader.exec_module(_library)
else:
    import crc32c as _library


def crc32c(data: Any, crc: int = 0) -> int:
    """Return the CRC-32C of a buffer, or of bytes whose own is `crc` and a buffer after them."""
    return int(_library.crc32c(data, crc))
