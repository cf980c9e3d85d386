"""Draws the pictures of an experiment's report as SVG, for light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from parts.experiment_figures import Arm, along, growth

_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")  # color-blind safe


def draw(arms: Sequence[Arm], folder: Path, name: str) -> dict[str, Path]:
    """Draws all pictures that have data; returns their files by content."""
    trained = [arm for arm in arms if any(arm.logs.values())]
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Path] = {}

    def picture(what: str, title: str, across: str, up: str) -> tuple[Figure, Axes]:
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.set(title=title, xlabel=across, ylabel=up)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        drawn[what] = folder / f"{name}_{what}.svg"
        return figure, axes

    def done(what: str, figure: Figure, axes: Axes) -> None:
        axes.legend(frameon=False, fontsize="small")
        with matplotlib.rc_context({"svg.hashsalt": "roleagent"}):  # the same picture of the same numbers
            figure.savefig(drawn[what], metadata={"Date": None}, facecolor="white")

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
            axes.fill_between(across, low, high, color=_COLORS[number % len(_COLORS)], alpha=0.08, linewidth=0)
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
    style = _DASHES[(number + number // len(_COLORS)) % len(_DASHES)]  # no pair of color and style repeats
    axes.plot(across, up, color=_COLORS[number % len(_COLORS)], linestyle=style, label=label, linewidth=1.6)
