"""Writes roff, in which manual pages are kept: of text, and of documents in Markdown."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

# --- text ------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Text as roff prints it as it is, wherever it stands in a line but at its beginning."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = text.replace("^", "\\(ha").replace("~", "\\(ti")
    return "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)


def bold(text: str) -> str:
    return f"\\fB{plain(text)}\\fR"


def line(roff: str) -> str:
    """A line of text, which is no request even if it begins with a dot."""
    return f"\\&{roff}" if roff[:1] in (".", "'") else roff


def heading(text: str) -> str:
    """The heading of a section: in capitals, as in all manual pages, except file names."""
    words = (word if word.startswith(".") else word.upper() for word in text.split())
    return f'.SH "{plain(" ".join(words))}"'


def item(tag: str, body: str) -> Iterator[str]:
    """A term and its explanation, both roff."""
    yield from (".TP", line(tag), line(body) if body else "\\&")


def verbatim(text: str) -> Iterator[str]:
    yield from (".PP", ".RS 4", ".nf")
    yield from (line(plain(each)) if each else "\\&" for each in text.rstrip("\n").split("\n"))
    yield from (".fi", ".RE")


# --- Markdown --------------------------------------------------------------------------------


@functools.cache
def parsed(text: str) -> list[SyntaxTreeNode]:
    """Blocks of Markdown, without `([why](x.md))` and paragraphs that begin with `More:`."""
    text = re.sub(r"\s*\(\[[^\]]+\]\([^)]+\)\)|^More: (.+\n)+", "", text, flags=re.M)
    return SyntaxTreeNode(MarkdownIt("commonmark").enable("table").parse(text)).children


def section(path: Path, title: str) -> list[SyntaxTreeNode]:
    """The blocks below a heading of the second level; none if there is no such heading."""
    found = []
    is_inside = False
    for node in parsed(path.read_text(encoding="utf-8")):
        if node.tag == "h2":
            is_inside = node.children[0].content == title
        elif is_inside:
            found.append(node)
    return found


def inline(node: SyntaxTreeNode) -> str:
    """The text of a paragraph or a cell. Of links, which lead to other documents, the words."""
    if node.type == "code_inline":
        return bold(node.content)
    if node.type in ("softbreak", "hardbreak"):
        return " "
    if not node.children:
        return plain(node.content)
    font = {"strong": "\\fB", "em": "\\fI"}.get(node.type)
    text = "".join(map(inline, node.children))
    return text if font is None else f"{font}{text}\\fR"


def blocks(nodes: Sequence[SyntaxTreeNode]) -> Iterator[str]:
    """The blocks of a document, except its title and its table of contents."""
    for node in nodes:
        if node.type == "heading" and node.tag != "h1":
            text = _words(node.children[0])
            yield heading(text) if node.tag == "h2" else f'.SS "{plain(text)}"'
        elif node.type == "paragraph":
            yield from (".PP", line(inline(node)))
        elif node.type in ("fence", "code_block"):
            yield from verbatim(node.content)
        elif node.type == "bullet_list" and not _is_contents(node):
            for each in _texts(node):
                yield from (".IP \\(bu 2", line(inline(each)))
        elif node.type == "table":
            yield from _table(node)


def _texts(node: SyntaxTreeNode) -> list[SyntaxTreeNode]:
    """The texts in a block: of its paragraphs, or of its cells."""
    return [each for each in node.walk() if each.type == "inline"]


def _words(text: SyntaxTreeNode) -> str:
    return re.sub(r"[`*]", "", text.content)


def _table(table: SyntaxTreeNode) -> Iterator[str]:
    cells = [_texts(row) for part in table.children for row in part.children]
    texts = [[_words(cell) for cell in row] for row in cells]
    if len(texts[0]) > 3 and max(len(text) for row in texts for text in row) < 60:
        yield from _columns(texts)
    else:
        yield from _items(texts[0], cells[1:])


def _columns(texts: list[list[str]]) -> Iterator[str]:
    """A table of short cells, as lines."""
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in texts)
    yield from verbatim("\n".join(each.rstrip() for each in lines))


def _items(names: list[str], cells: list[list[SyntaxTreeNode]]) -> Iterator[str]:
    """Make an item of each row, with its first cell as the tag.

    The cell of the column without a name comes first. Other cells follow with the names of their
    columns.
    """
    if len(names) == 2:
        names = ["", ""]
    for tag, *others in cells:
        found = [
            (name, inline(cell))
            for name, cell in zip(names[1:], others, strict=True)
            if cell.content
        ]
        told = [text for name, text in found if not name]
        told += [f"{plain(name[:1].upper() + name[1:])}: {text}" for name, text in found if name]
        yield from item(inline(tag), ". ".join(told))


def _is_contents(node: SyntaxTreeNode) -> bool:
    text = "".join(each.content for each in _texts(node))
    return re.fullmatch(r"(\[[^\]]+\]\(#[^)]*\)[:, ]*)+", text) is not None
