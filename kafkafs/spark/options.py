"""The options of the source."""

from collections.abc import Mapping


def include_headers(options: Mapping[str, str]) -> bool:
    return options.get("includeHeaders", "false").lower() == "true"
