"""Docstrings as the pages show them: a griffe extension that turns what reads well in code into Markdown.

The code's docstrings have tables drawn with ``=``, doctests, literal blocks behind ``::`` and references such as
``:class:`~roleagent.types.Task```. Markdown knows none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import griffe

_BORDER = re.compile(r"=+(?:  +=+)+")
_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`(~?)([\w.]+)`")


class PlainDocstrings(griffe.Extension):
    """Applies :func:`markdown` to every docstring of the package."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Called by griffe for each object, once all of them are known."""
        if obj.docstring is None:
            return

        def page_of(name: str) -> str | None:
            """The full name under which something has an entry on a page; None if it has none."""
            for candidate in (name, _resolved(obj, name)):
                try:
                    found = loader.modules_collection[candidate]
                except (KeyError, ValueError):
                    continue
                if found.is_alias or found.docstring is None or "._" in found.path:
                    return None
                return found.path
            return None

        obj.docstring.value = markdown(obj.docstring.value, page_of)


def _resolved(obj: griffe.Object, name: str) -> str:
    head, _, rest = name.partition(".")
    if head in obj.members:
        return f"{obj.path}.{name}"
    try:
        return f"{obj.resolve(head)}.{rest}".rstrip(".")
    except griffe.NameResolutionError:
        return name


def markdown(text: str, page_of: Callable[[str], str | None] = lambda name: None) -> str:
    """A docstring in Markdown.

    Args:
        text: the docstring, without its common indentation.
        page_of: the full name of what a reference names, None if nothing can be linked to.

    >>> print(markdown("See :func:`~a.b`.", lambda name: name))
    See [`b`][a.b].
    >>> print(markdown("See :func:`~a.b`\\\\ s and :mod:`a`."))
    See `b`s and `a`.
    """
    lines = _fenced(text.split("\n"))
    lines = _tables(lines)

    def link(match: re.Match[str]) -> str:
        short, name = match.groups()
        shown, target = (name.rpartition(".")[2] if short else name), page_of(name)
        return f"[`{shown}`][{target}]" if target else f"`{shown}`"

    return re.sub(r"(?<=[)\]`])\\ (?=\w)", "", _ROLE.sub(link, "\n".join(lines)))  # ``:class:`Turn`\ s`` is one word


def _fenced(lines: list[str]) -> list[str]:
    """Doctests and literal blocks as fenced code; underlined headings as bold lines.

    >>> print(*_fenced(["Twice:", "", ">>> 1 + 1", "2", "", "End."]), sep="|")
    Twice:||```pycon|>>> 1 + 1|2|```||End.
    """
    out: list[str] = []
    place = 0
    while place < len(lines):
        line = lines[place]
        indent = line[: len(line) - len(line.lstrip())]
        if line.lstrip().startswith(">>> "):
            end = place
            while end < len(lines) and lines[end].strip():
                end += 1
            out += [*([""] if out and out[-1].strip() else []), f"{indent}```pycon", *lines[place:end], f"{indent}```"]
            place = end
        elif line.rstrip().endswith("::"):
            end = place + 1
            while end < len(lines) and (not lines[end].strip() or lines[end].startswith(f"{indent}    ")):
                end += 1
            block = [inner.removeprefix(f"{indent}    ") for inner in lines[place + 1 : end]]
            while block and not block[-1].strip():
                block.pop()
            while block and not block[0].strip():
                block.pop(0)
            out += [
                line.rstrip()[:-1],
                "",
                f"{indent}```text",
                *(indent + inner for inner in block),
                f"{indent}```",
                "",
            ]
            place = end
        elif out and out[-1].strip() and re.fullmatch(r"-{4,}", line.strip()):
            out[-1] = f"**{out[-1].strip()}**"
            out.append("")
            place += 1
        else:
            out.append(line)
            place += 1
    return out


def _tables(lines: list[str]) -> list[str]:
    """Tables drawn with ``=`` as Markdown's. The first row is the head where a border follows it.

    >>> print(*_tables(["==  ==", "a   b", "==  ==", "1   2", "    3", "==  =="]), sep="!")
    !| a | b |!| --- | --- |!| 1 | 2 3 |!
    """
    out: list[str] = []
    place = 0
    while place < len(lines):
        border = lines[place].strip()
        if not _BORDER.fullmatch(border):
            out.append(lines[place])
            place += 1
            continue
        indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
        starts = [len(indent) + match.start() for match in re.finditer("=+", border)]
        rows: list[list[str]] = []
        borders, place = 1, place + 1
        head: int | None = None
        while place < len(lines) and lines[place].strip():
            line = lines[place]
            place += 1
            if _BORDER.fullmatch(line.strip()):
                borders += 1
                head = len(rows) if borders == 2 else head
                if borders == 3:
                    break
                continue
            cells = _cells(line, starts)
            if cells[0] or not rows:
                rows.append(cells)
            else:  # a row goes on
                rows[-1] = [f"{above} {below}".strip() for above, below in zip(rows[-1], cells, strict=True)]
        if borders == 2:  # no head: the second border was the end
            head = None
        titles = rows.pop(0) if head == 1 else [""] * len(starts)
        table = [titles, ["---"] * len(starts), *rows]
        out += ["", *(f"{indent}| {' | '.join(row)} |" for row in table), ""]
    return out


def _cells(line: str, starts: list[int]) -> list[str]:
    """A row's text by column; what runs across a column's beginning stays in the column before."""
    cells = [""] * len(starts)
    column = 0
    begin = starts[0]
    for following in [*range(1, len(starts)), None]:
        end = len(line) if following is None else starts[following]
        if following is not None and len(line) > end and line[end - 1] != " ":
            continue
        cells[column] = line[begin:end].strip().replace("|", r"\|")
        if following is not None:
            column, begin = following, end
    return cells
