"""Find links, anchors, and commands with their output in the Markdown files of the repository."""

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT

PAGES = sorted(
    path
    for folder in ("nmtkit", "recipes", "tests", ".")
    for path in (ROOT.glob("*.md") if folder == "." else (ROOT / folder).rglob("*.md"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
CONTINUED = " \\"


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def without_blocks(text: str) -> str:
    """Return a page without its fenced blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def links(text: str) -> list[str]:
    """Return the targets of a page's links."""
    lines = (line for line in without_blocks(text).splitlines() if not line.startswith("    "))
    prose = re.sub(r"`[^`\n]*`", "", "\n".join(lines))
    return re.findall(r"\]\(([^)\s]+)\)", prose)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    counts: Counter[str] = Counter()
    names = set()
    for title in re.findall(r"^#+ +(.+?) *$", without_blocks(text), re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "").lower()
        slug = "".join(c for c in words if c.isalnum() or c in " -_").replace(" ", "-")
        names.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return names


@dataclass(frozen=True)
class Block:
    """A command in a block of code (indented or fenced), and the lines of its output."""

    command: str
    output: list[str]


def code_lines(text: str) -> list[str]:
    """Return the lines of all blocks of code, with an empty line between two blocks."""
    lines, fenced = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
            lines.append("")
        elif fenced or line.startswith("    "):
            lines.append(line if fenced else line[4:])
        elif line.strip():
            lines.append("")
    return lines


def sessions(text: str) -> list[Block]:
    """Return the commands in blocks of code (lines that begin with "$ ") with their output."""
    found: list[Block] = []
    open_block = False
    for line in code_lines(text):
        if line.startswith("$ "):
            found.append(Block(line[2:], []))
            open_block = True
        elif not line:
            open_block = False
        elif open_block:
            found[-1].output.append(line)
    return found


def calls(text: str) -> list[list[str]]:
    """Return the arguments of every call of nmtkit in blocks of code.

    A call begins a line, or follows a pipe, torchrun or variables of the shell. A variable of the
    shell becomes 1, or … if it is the value of a setting.
    """
    found = []
    for line in code_lines(text):
        plain = re.split(r"(?:^|\s)#\s", line.removeprefix("$ "))[0].removesuffix(CONTINUED)
        for part in re.split(r"\s(?:\||&&|>)\s|;", plain):
            words = re.match(
                r"\s*(?:\w+=(?:\"[^\"]*\"|\S*)\s+)*(?:torchrun .*?-m (?:-- )?)?nmtkit\s+(.*)", part
            )
            if words and not words[1].startswith("…"):
                found.append(shlex.split(re.sub(r"\$\w+", "1", re.sub(r"=\$\w+", "=…", words[1]))))
    return found
