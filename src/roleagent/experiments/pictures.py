"""The pictures of an experiment as SVG and PNG, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roleagent.agents.evaluation.statistics import Estimate
from roleagent.experiments.figures import ArmRuns, Difference, along, growth

_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")  # color-blind safe
_MARKS = "oDs^v"
FOREST_LIMIT = 30.0
"""The widest axis of a forest plot, in points; longer intervals end in arrows."""


class ForestRow(NamedTuple):
    """One line of a forest plot.

    Attributes:
        label: what is compared.
        note: in smaller type beside it.
        effects: differences with their intervals, in points, by the name of an evaluation; an interval of NaN is none.
        published: the published difference, in points, or None.
    """

    label: str
    note: str
    effects: Mapping[str, Estimate]
    published: float | None = None


def forest(rows: Sequence[ForestRow], *files: Path) -> None:
    """Draws differences with their intervals, one line per row.

    Args:
        files: the pictures to write; a suffix names the format, e.g. ``.svg``.
    """
    series = list(dict.fromkeys(name for row in rows for name in row.effects))
    known = [abs(x) for row in rows for effect in row.effects.values() for x in effect if math.isfinite(x)]
    limit = min(FOREST_LIMIT, 5.0 * math.ceil(1.05 * max([*known, 1.0]) / 5.0))
    figure = Figure(figsize=(8.6, 1.1 + 0.26 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0.0, color="#444444", linewidth=1.0)
    places = np.linspace(-0.2, 0.2, len(series)) if len(series) > 1 else [0.0]
    for number, (name, place) in enumerate(zip(series, places, strict=True)):
        color = COLORS[number % len(COLORS)]
        axes.plot([], [], _MARKS[number % len(_MARKS)], color=color, markersize=4, label=name)
        for line, row in enumerate(rows):
            if name not in row.effects:
                continue
            value, low, high = row.effects[name]
            y = line + place
            axes.plot(np.clip([low, high], -limit, limit), [y, y], color=color, linewidth=1.2)
            for beyond, at, mark in ((low < -limit, -limit, "<"), (high > limit, limit, ">")):
                if beyond:
                    axes.plot([at], [y], mark, color=color, markersize=4, clip_on=False)
            axes.plot([min(max(value, -limit), limit)], [y], _MARKS[number % len(_MARKS)], color=color, markersize=4)
    published = [(row.published, line) for line, row in enumerate(rows) if row.published is not None]
    if published:
        x, y = zip(*published, strict=True)
        axes.plot(x, y, "|", color="black", markersize=11, markeredgewidth=1.4, label="published")
    noted = any(row.note for row in rows)
    axes.set_yticks(range(len(rows)), [f"{row.label}   ({row.note})" if noted else row.label for row in rows])
    axes.tick_params(axis="y", length=0, labelsize="small")
    axes.set(xlim=(-limit, limit), ylim=(len(rows) - 0.4, -0.6), xlabel="points, with 95 % intervals")
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=len(series) + 1, frameon=False, fontsize="small")
    save(figure, *files)


def forest_rows(differences: Sequence[Difference], measure: str) -> list[ForestRow]:
    """The compared arms of an experiment as rows of a forest plot; those of a single seed have no interval."""
    effects: dict[str, dict[str, Estimate]] = {}
    for one in differences:
        if one.measure == measure:
            name = f"temperature {one.evaluation.temperature:g}"
            points = Estimate(*(100 * x for x in one.mean))
            effects.setdefault(f"{one.arm} over {one.over}", {})[name] = points
    return [ForestRow(label, "", found) for label, found in effects.items()]


def save(figure: Figure, *files: Path) -> None:
    """Writes a picture; text stays text, and the same numbers give the same file."""
    with matplotlib.rc_context({"svg.hashsalt": "roleagent", "svg.fonttype": "none"}):
        for file in files:
            metadata = {"Date": None} if file.suffix == ".svg" else None
            figure.savefig(file, dpi=200, metadata=metadata, facecolor="white")


def draw(arms: Sequence[ArmRuns], differences: Sequence[Difference], folder: Path) -> dict[str, Path]:
    """Draws all pictures that have data; returns their SVG files by content."""
    trained = [arm for arm in arms if any(arm.logs.values())]
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Path] = {}
    if rows := forest_rows(differences, arms[0].measure):
        drawn["forest"] = folder / "forest.svg"
        forest(rows, drawn["forest"], drawn["forest"].with_suffix(".png"))
    if not trained:
        return drawn

    def picture(what: str, title: str, across: str, up: str) -> tuple[Figure, Axes]:
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.set(title=title, xlabel=across, ylabel=up)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        drawn[what] = folder / f"{what}.svg"
        return figure, axes

    def done(what: str, figure: Figure, axes: Axes) -> None:
        axes.legend(frameon=False, fontsize="small")
        save(figure, drawn[what], drawn[what].with_suffix(".png"))

    measure = arms[0].measure
    figure, axes = picture("success", f"{measure.capitalize()} on the split", "environment steps", f"{measure}, %")
    for number, arm in enumerate(trained):
        courses = arm.courses.values()
        across = np.linspace(0, min(course.points[-1].steps for course in courses), 60)
        steps, reached = ([[point[place] for point in course.points] for course in courses] for place in (0, 1))
        rows = [np.interp(across, *row) for row in zip(steps, reached, strict=True)]
        _line(axes, number, arm.name, across, 100 * np.mean(rows, axis=0))
        if len(rows) > 1:
            low, high = 100 * np.min(rows, axis=0), 100 * np.max(rows, axis=0)
            axes.fill_between(across, low, high, color=COLORS[number % len(COLORS)], alpha=0.08, linewidth=0)
    done("success", figure, axes)

    for what, title, up in (
        ("prediction_score", "Predictive reward", "mean similarity of prediction and state"),
        ("zero_variance_groups", "Zero-variance groups", "groups of an iteration"),
    ):
        shown = [arm for arm in trained if any(along(arm, what)[1])]
        if shown:
            figure, axes = picture(what, title, "iteration", up)
            for arm in shown:
                _line(axes, trained.index(arm), arm.name, *along(arm, what))
            done(what, figure, axes)

    for arm in trained:
        modes = growth(arm)
        if modes:
            figure, axes = picture("library", f"Failure library of {arm.name}", "iteration", "tasks under the mode")
            most = sorted(modes, key=lambda mode: -max(max(row) for row in modes[mode].values()))
            for number, mode in enumerate(most):
                rows = list(modes[mode].values())
                length = min(map(len, rows))
                mean = np.mean([row[:length] for row in rows], axis=0)
                _line(axes, number, mode, np.arange(1, length + 1), mean)
            done("library", figure, axes)
            break
    return drawn


def _line(axes: Axes, number: int, label: str, across: npt.ArrayLike, up: npt.ArrayLike) -> None:
    style = _DASHES[(number + number // len(COLORS)) % len(_DASHES)]  # no pair of color and style repeats
    axes.plot(across, up, color=COLORS[number % len(COLORS)], linestyle=style, label=label, linewidth=1.6)


__all__ = ["FOREST_LIMIT", "ForestRow", "draw", "forest", "forest_rows"]
