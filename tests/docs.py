"""Reads the Markdown of the project: links, headings, fenced blocks and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.strip().splitlines()[0]}"


def blocks(*languages: str) -> list[Block]:
    """The fenced blocks of all pages in one of the languages."""
    return [
        Block(page=page, language=language, text=text)
        for page in PAGES
        for language, text in FENCE.findall(page.read_text())
        if language in languages
    ]


def commands() -> list[tuple[Block, list[str]]]:
    """Each command of the shell blocks as words; comments, prompts and line ends are undone."""
    return [(block, words) for block in blocks("sh") for words in _commands_of(block.text)]


def _commands_of(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        for separator, words in groupby(lexer, key=lambda word: set(word) <= set(";&|")):
            if not separator:
                yield list(words)


def links(page: Path) -> list[str]:
    """The targets of a page's links, outside fenced blocks."""
    return re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """The fragments that the page's headings answer to."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table_rows(page: str, heading: str = "") -> list[list[str]]:
    """The body rows of the tables on a page (below one heading), cells stripped of backticks."""
    text = (ROOT / page).read_text()
    if heading:
        text = re.split(rf"^#+ {re.escape(heading)}$", text, flags=re.MULTILINE)[1]
        text = re.split(r"^#+ ", text, flags=re.MULTILINE)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    rulers = [i for i, row in enumerate(rows) if all(re.fullmatch(":?-+:?", c) for c in row)]
    heads = {i for ruler in rulers for i in (ruler - 1, ruler)}
    return [row for i, row in enumerate(rows) if i not in heads]


def code_of(cell: str) -> str:
    """The first thing between backticks in a cell, or the cell."""
    found = re.search(r"`([^`]*)`", cell)
    return found[1] if found else cell
