"""Draws docs/pictures/forest.svg from the table of docs/results.md, so that both have the same numbers.

python docs/building/forest.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
MOST = 30.0
"""Points at both ends of the axis. A longer interval ends in an arrow."""
LEFT, WIDTH, TOP, ROW = 455.0, 390.0, 64.0, 21.0
Effect = tuple[float, ...]
"""A difference in points, and the ends of its interval where the table has one."""


def effect(cell: str) -> Effect:
    """The numbers of a cell; empty without any.

    >>> effect("+9.0 (+5.8 to +12.2)"), effect("−1.5 (p = 0.002)"), effect("–")
    ((9.0, 5.8, 12.2), (-1.5,), ())
    """
    return tuple(float(number.replace("−", "-")) for number in re.findall(r"[+−]\d+\.\d", cell))


def published(cell: str) -> float | None:
    """The published difference, of one number or two; None without one, or with one on another scale (``*``).

    >>> round(published("90.9, 86.7"), 1), published("5.8"), published("78, 26 *"), published("–")
    (4.2, 5.8, None, None)
    """
    numbers = [float(number) for number in re.findall(r"\d+\.?\d*", cell)]
    if not numbers or "*" in cell:
        return None
    return numbers[0] - sum(numbers[1:])


def rows() -> list[list[str]]:
    """The cells of the table's rows, without its head."""
    lines = (DOCS / "results.md").read_text("utf-8").partition("| claim |")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def at(points: float) -> float:
    """Where a number of points lies on the axis, in pixels.

    >>> at(0.0), at(99.0)
    (650.0, 845.0)
    """
    return LEFT + WIDTH * (max(-MOST, min(MOST, points)) + MOST) / (2 * MOST)


def interval(numbers: Effect, y: float, mark: str) -> Iterator[str]:
    """A dot with its interval."""
    if numbers[1:]:
        low, high = numbers[1:]
        begin = ' marker-start="url(#tip)"' if low < -MOST else ""
        end = ' marker-end="url(#tip)"' if high > MOST else ""
        yield f'<path class="line" d="M{at(low):.1f} {y}H{at(high):.1f}"{begin}{end}/>'
    if numbers:
        yield f'<circle class="{mark}" cx="{at(numbers[0]):.1f}" cy="{y}" r="3.4"/>'


def picture(table: list[list[str]]) -> str:
    """The forest plot as SVG, in the style of the other pictures."""
    loop = (DOCS / "pictures" / "loop.svg").read_text("utf-8")
    style, defs = (re.search(rf"<{tag}>.*?</{tag}>", loop, re.DOTALL) for tag in ("style", "defs"))
    assert style and defs
    bottom = TOP + ROW * len(table)
    size = f'viewBox="0 0 860 {bottom + 46:.0f}"'
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="t d">',
        '<title id="t">Differences in points with 95 % intervals over seeds</title>',
        '<desc id="d">One line per row of the table: a filled dot at temperature 1, an open one for greedy success, '
        "each with its interval, and a tick for the published difference. Most intervals include zero.</desc>",
        style[0].replace(
            "</style>",
            "  .c{font-size:11px} .w{font-size:10px} .hollow{fill:none;stroke:#7f8f8c;stroke-width:1.6}\n</style>",
        ),
        defs[0],
        f'<rect class="paper" width="860" height="{bottom + 46:.0f}" rx="10"/>',
        '<circle class="bar" cx="30" cy="22" r="3.4"/><text class="soft s" x="42" y="26">temperature 1</text>',
        '<circle class="hollow" cx="150" cy="22" r="3.4"/><text class="soft s" x="162" y="26">greedy</text>',
        '<path class="dash" d="M230 15V29"/><text class="soft s" x="240" y="26">published</text>',
    ]
    for tick in range(-30, 31, 10):
        name = f"{tick:+d}".replace("-", "−") if tick else "0"
        faint = "" if tick == 0 else ' opacity="0.2"'
        body.append(f'<path class="line"{faint} d="M{at(tick)} {TOP - 8}V{bottom}"/>')
        body.append(f'<text class="soft s" x="{at(tick)}" y="{TOP - 14}" text-anchor="middle">{name}</text>')
    for i, (claim, world, _, paper, sampled, _, greedy, *_) in enumerate(table):
        y = TOP + ROW * (i + 0.5)
        body.append(f'<text class="ink c" x="20" y="{y + 4}">{escape(claim)}</text>')
        body.append(f'<text class="soft w" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(world)}</text>')
        body += interval(effect(sampled), y - 4, "bar")
        body += interval(effect(greedy), y + 4, "hollow")
        if (known := published(paper)) is not None:
            body.append(f'<path class="dash" d="M{at(known):.1f} {y - 8}V{y + 8}"/>')
    body.append(f'<text class="soft s" x="{at(0)}" y="{bottom + 26}" text-anchor="middle">points</text>')
    return "\n".join([*body, "</svg>\n"])


if __name__ == "__main__":
    (DOCS / "pictures" / "forest.svg").write_text(picture(rows()), "utf-8")
