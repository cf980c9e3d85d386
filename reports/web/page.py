"""The report as one self-contained HTML document.

Text of a run may be hostile (products of a shop, a model's replies). It is embedded as JSON that cannot close its own
element, and the page's scripts put it into text nodes only. A Content-Security-Policy allows the scripts by their
hashes and nothing else; a live report may also ask its own server.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from roleagent.reports.data.run_groups import group_runs
from roleagent.reports.data.run_schema import RunData

SCRIPTS = (
    "page_dom.js",
    "page_groups.js",
    "page_evaluation.js",
    "page_runs.js",
    "page_charts.js",
    "page_plots.js",
    "page_curves.js",
    "page_tasks.js",
    "page_revisions.js",
    "page_predictions.js",
    "page_turns.js",
    "page_list.js",
    "page_episodes.js",
    "page.js",
)
"""In loading order; the last one starts the page."""

_NAMED = 3  # most runs that the title names
_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def as_json(value: Any) -> str:
    """JSON that is safe inside an HTML document.

    Infinite numbers and NaN become null. Everything outside of ASCII is escaped, also lone surrogates and the line
    separators U+2028 and U+2029.

    >>> as_json({"loss": float("nan"), "text": "</script>"})
    '{"loss": null, "text": "\\\\u003c/script\\\\u003e"}'
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), allow_nan=False)
    return text.translate(_ESCAPES)


def report_data(runs: Sequence[RunData]) -> dict[str, Any]:
    """The data of a page: the ``runs``, and their ``groups``."""
    return {"runs": list(runs), "groups": group_runs(runs)}


def render(runs: Sequence[RunData], live: str = "") -> str:
    """The page about one run, or about several in comparison.

    Args:
        runs: at least one; curves are overlaid in this order, and differences are relative to the first. Runs that
            differ in nothing but their seed are one curve with a band.
        live: the relative address of new data: ``data.json`` answers :func:`report_data`, and
            ``episodes/<iteration>.json`` beside it a list of the first run's episodes. Empty: the page is static.

    Raises:
        ValueError: ``runs`` is empty.
    """
    if not runs:
        raise ValueError("a report needs at least one run")
    from plotly.offline import get_plotlyjs  # here: --help does not need it

    plotly = get_plotlyjs()
    script = "\n".join(["(() => {", '"use strict";', *map(_asset, SCRIPTS), "})();"])
    values = {
        "title": html.escape(_title(runs)),
        "policy": html.escape(_policy([plotly, script], bool(live))),
        "style": _asset("page.css"),
        "data": as_json({"live": live, **report_data(runs)}),
        "plotly": plotly,
        "script": script,
    }
    # In one pass: inserted text is not searched for placeholders.
    document = re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _asset("page.html"))
    return document.encode("utf-8", "replace").decode("utf-8")


def _title(runs: Sequence[RunData]) -> str:
    if len(runs) > _NAMED:
        return f"{len(runs)} runs"
    return " and ".join(run["name"] for run in runs)


def _policy(scripts: Sequence[str], live: bool) -> str:
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    return "; ".join(
        [
            "default-src 'none'",
            "script-src " + " ".join(f"'sha256-{digest}'" for digest in hashes),
            "style-src 'unsafe-inline'",  # plotly adds its own rules
            "img-src data:",
            f"connect-src {chr(39)}{'self' if live else 'none'}{chr(39)}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _asset(name: str) -> str:
    return resources.files("roleagent.reports.web").joinpath(name).read_text(encoding="utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


__all__ = ["as_json", "render", "report_data"]
