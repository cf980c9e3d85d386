"""docs/paper_tables.md against a list of the tables and figures of the four papers."""

import re

import pytest
from programs import ROOT

ITEMS = {
    "Role-Agent": {
        "Table 1": ["ALFWorld", "GiGPO", "GRPO", "PPO, RLOO", "3B and 7B", "prompted models", "WebShop"],
        "Table 2": ["search QA", "GiGPO, GRPO", "Search-R1", "R1-Instruct", "ZeroSearch", "StepSearch"],
        "Table 3": ["no Agent-In-World", "no predictive reward", "neither"],
        "Tables 4, 6 and 7": [],
        "Table 5": [],
        "Figure 1": [],
        "Figures 2, 3, 5 and 6": [],
        "Figure 4": [],
        "B.2": [],
        "α of 0.5 and 2": [],
        "H of 10 and 20 %": [],
        "extra seconds": [],
        "the course of the predictive reward": [],
        "the failure modes": [],
    },
    "GenEnv": {
        "Figure 1": [],
        "Table 1": ["ALFWorld", "BFCL", "API-Bank", "Bamboogle", "TravelPlanner", "other models"],
        "ablation *Random*": [],
        "ablation *Static*": [],
        "Gemini-Offline": [],
        "Fig. 5a": [],
        "Fig. 7": [],
        "batches solved always or never": [],
        "tokens of a reply": [],
    },
    "Agent-R": {
        "Table 1": [],
        "Table 2": ["direct revision", "ETO", "prompted"],
        "Table 3": ["optimal paths of GPT-4o"],
        "Table 4": [],
        "Table 5": [],
        "Table 6": [],
        "Tables 7 and 8": [],
        "Figures 1 and 2": [],
        "Figure 3": ["good and optimal paths together", "by iteration"],
        "Figure 4": [],
        "Figure 5": [],
        "Figure 6": [],
    },
    "Agent-R1": {
        "Table 3": ["untrained", "naive RAG", "PPO", "GRPO", "REINFORCE++", "REINFORCE++ with baseline", "RLOO"],
        "Table 4": ["PPO without advantage mask", "PPO without both masks", "GRPO without loss mask"],
    },
}
"""Tables and figures by paper, and the rows of each; where a number is not known, what it shows."""

PAGE = (ROOT / "docs" / "paper_tables.md").read_text("utf-8")


def rows_of(paper):
    """The rows of a paper's table: the name and the cell of published size. ``…`` continues the item above."""
    [section] = re.findall(rf"^## {re.escape(paper)} \(.*?(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [tuple(cell.strip() for cell in line.strip("|").split("|"))[:2] for line in lines]


@pytest.mark.parametrize("paper", ITEMS)
def test_every_table_and_figure_is_named(paper):
    names, item = {}, ""
    for name, _ in rows_of(paper):
        item = item if name.startswith("…") else next((one for one in ITEMS[paper] if name.startswith(one)), name)
        names.setdefault(item, []).append(name)
    assert set(ITEMS[paper]) <= set(names)
    for item, parts in ITEMS[paper].items():
        missing = [part for part in parts if not any(part in name for name in names[item])]
        assert not missing, item


@pytest.mark.parametrize("paper", ITEMS)
def test_every_row_has_its_command_or_the_reason_why_there_is_none(paper):
    """The commands themselves are read by test_commands."""
    rows = rows_of(paper)
    assert rows
    for name, cell in rows:
        own = "(ours)" in name or "no figure" in name
        assert own or "`" in cell or re.match(r"none\b.{10}|the (rows?|evaluations|metrics|run's metrics)\b", cell), (
            name
        )
