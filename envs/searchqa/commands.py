"""Commands of search QA that hold free text."""

from collections.abc import Mapping
from typing import Any

from roleagent.env_card import CommandForm
from roleagent.envs.searchqa.text import read_information


def _searches(observation: str, info: Mapping[str, Any]) -> list[str]:
    return [] if read_information(observation) else [f"search[{' '.join(info['goal'].split())}]"]


def _answers(observation: str, info: Mapping[str, Any]) -> list[str]:
    return [f"answer[{passage.title}]" for passage in read_information(observation)]


COMMAND_FORMS = (
    CommandForm("search", "looks for passages", "search[Silver Harbor]", _searches),
    CommandForm("answer", "gives the answer, which ends the game", "answer[Mara Quill]", _answers),
)
