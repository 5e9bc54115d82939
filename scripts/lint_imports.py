#!/usr/bin/env python3
"""Runs import-linter with the compiled modules in its graph.

import-linter reads only `.py` files. For it, an import of a compiled module is an import of the
root package, and the imports in `.pyx` and `.pxd` files do not exist. This program adds both to the
graph, so that the contracts in the current directory's pyproject.toml hold for every module. The
exit status is 1 if a contract is broken.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
from importlinter import cli
from importlinter.application.app_config import settings
from importlinter.application.ports.building import GraphBuilder

IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+c?import[ \t]+(\([^)]*\)|[^#\n]*)|c?import[ \t]+([\w.]+))",
    re.MULTILINE,
)
COMPILED = (".pyx", ".pxd")
# Headers that come with Cython.
CYTHONS = ("cpython", "cython", "libc")


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path, modules: set[str]) -> Iterator[tuple[str, int, str]]:
    """Yield each module that a file imports or cimports, with its line's number and text."""
    source = path.read_text()
    for match in IMPORT.finditer(source):
        package, names, module = match.groups()
        number = source.count("\n", 0, match.start()) + 1
        found = {module} if module else {f"{package}.{name}" for name in re.findall(r"\w+", names)}
        for each in found:
            yield each if each in modules or module else package, number, match[0].strip()


class Builder(GraphBuilder):
    """Import-linter's graph, with the compiled modules."""

    def build(
        self,
        root_package_names: list[str],
        cache_dir: str | None,
        include_external_packages: bool = False,
        exclude_type_checking_imports: bool = False,
    ) -> grimp.ImportGraph:
        graph = grimp.build_graph(
            *root_package_names,
            cache_dir=cache_dir,
            include_external_packages=include_external_packages,
            exclude_type_checking_imports=exclude_type_checking_imports,
        )
        paths = [path for root in root_package_names for path in Path(root).rglob("*.p*")]
        compiled = {module_of(path) for path in paths if path.suffix in COMPILED}
        for module in compiled:
            graph.add_module(module)
        for path in paths:
            if path.suffix in COMPILED:
                self._add_imports(graph, path)
            elif path.suffix == ".py":
                self._correct_imports(graph, path, compiled)
        return graph

    def _add_imports(self, graph: grimp.ImportGraph, path: Path) -> None:
        importer = module_of(path)
        for name, number, text in imports(path, graph.modules):
            imported = name if name in graph.modules else name.split(".")[0]
            if imported in (importer, *CYTHONS):
                continue
            if imported not in graph.modules:
                graph.add_module(imported, is_squashed=True)
            graph.add_import(
                importer=importer, imported=imported, line_number=number, line_contents=text
            )

    def _correct_imports(self, graph: grimp.ImportGraph, path: Path, compiled: set[str]) -> None:
        """Replace imports of the root package by those of compiled modules."""
        importer = module_of(path)
        found = [each for each in imports(path, compiled) if each[0] in compiled]
        numbers = {number for _, number, _ in found}
        for root in {name.split(".")[0] for name, _, _ in found}:
            taken = graph.get_import_details(importer=importer, imported=root)
            if taken and all(each["line_number"] in numbers for each in taken):
                graph.remove_import(importer=importer, imported=root)
        for imported, number, text in found:
            graph.add_import(
                importer=importer, imported=imported, line_number=number, line_contents=text
            )


if __name__ == "__main__":
    sys.path.insert(0, "")
    settings.configure(GRAPH_BUILDER=Builder())
    sys.exit(cli.lint_imports(no_cache=True, no_logo=True))
