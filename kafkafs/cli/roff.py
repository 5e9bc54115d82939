"""Writes roff, in which manual pages are kept: of text, and of documents in Markdown."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

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
def parsed(text: str) -> list[Token]:
    """Markdown, without `([why](x.md))` and paragraphs that begin with `More:`."""
    text = re.sub(r"\s*\(\[[^\]]+\]\([^)]+\)\)|^More: (.+\n)+", "", text, flags=re.M)
    return MarkdownIt("commonmark").enable("table").parse(text)


def section(path: Path, title: str) -> list[Token]:
    """The tokens below a heading of the second level; none if there is no such heading."""
    tokens = parsed(path.read_text(encoding="utf-8"))
    starts = [i for i, token in enumerate(tokens) if token.type == "heading_open"]
    for begin in starts:
        if tokens[begin].tag == "h2" and tokens[begin + 1].content == title:
            later = (i for i in starts if i > begin and tokens[i].tag == "h2")
            return tokens[begin + 3 : next(later, len(tokens))]
    return []


def inline(token: Token) -> str:
    """The text of a paragraph or a cell. Of links, which lead to other documents, the words."""
    parts = []
    for each in token.children or ():
        if each.type == "code_inline":
            parts.append(bold(each.content))
        elif each.type in ("softbreak", "hardbreak"):
            parts.append(" ")
        elif each.type in ("strong_open", "em_open"):
            parts.append("\\fB" if each.type == "strong_open" else "\\fI")
        elif each.type in ("strong_close", "em_close"):
            parts.append("\\fR")
        else:
            parts.append(plain(each.content))
    return "".join(parts)


def blocks(tokens: Sequence[Token]) -> Iterator[str]:
    """The blocks of a document, except its title and its table of contents."""
    at = 0
    while at < len(tokens):
        token = tokens[at]
        end = _end(tokens, at) if token.nesting == 1 else at
        inside = tokens[at + 1 : end]
        if token.type == "heading_open" and token.tag != "h1":
            text = _words(inside[0])
            yield heading(text) if token.tag == "h2" else f'.SS "{plain(text)}"'
        elif token.type == "paragraph_open":
            yield from (".PP", line(inline(inside[0])))
        elif token.type in ("fence", "code_block"):
            yield from verbatim(token.content)
        elif token.type == "bullet_list_open" and not _is_contents(inside):
            yield from _bullets(inside)
        elif token.type == "table_open":
            yield from _table(rows(inside))
        at = end + 1


def rows(tokens: Sequence[Token]) -> list[list[Token]]:
    """The cells of the tables among these; a table's first row has the names of its columns."""
    found: list[list[Token]] = []
    in_row = False
    for token in tokens:
        if token.type in ("tr_open", "tr_close"):
            in_row = token.type == "tr_open"
            if in_row:
                found.append([])
        elif in_row and token.type == "inline":
            found[-1].append(token)
    return found


def _end(tokens: Sequence[Token], begin: int) -> int:
    """Where the block ends that begins there."""
    return next(i for i in range(begin + 1, len(tokens)) if tokens[i].level == tokens[begin].level)


def _words(token: Token) -> str:
    return re.sub(r"[`*]", "", token.content)


def _table(cells: list[list[Token]]) -> Iterator[str]:
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


def _items(names: list[str], cells: list[list[Token]]) -> Iterator[str]:
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


def _bullets(tokens: Sequence[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type == "inline":
            yield from (".IP \\(bu 2", line(inline(token)))


def _is_contents(tokens: Sequence[Token]) -> bool:
    text = "".join(token.content for token in tokens if token.type == "inline")
    return re.fullmatch(r"(\[[^\]]+\]\(#[^)]*\)[:, ]*)+", text) is not None
