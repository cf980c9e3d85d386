"""The renderer of models with a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError

from roleagent.agents.analysts.prompts import PromptKind
from roleagent.agents.policies.protocol import Policy
from roleagent.envs.wrappers.tags import COMMAND_FORM, THOUGHTS, prediction_forms
from roleagent.markers import map_texts

Message = dict[str, Any]


class ChatRenderer:
    """The tokenizer's chat template; the tokens between turns are cut out of a rendered example.

    What :meth:`first_message`, :meth:`next_message` and :meth:`tool_results` return is what the template makes of the
    whole conversation, byte for byte: a template may trim a text, write it as JSON or join several results.
    """

    explains = True

    # Upper and lower case: a template that changes either is found out.
    _FIRST = "\u241fFirst\u241f"
    _REPLY = "\u241fReply\u241f"
    _MESSAGE = "\u241fMessage\u241f"

    def __init__(self, policy: Policy):
        self._policy = policy
        rendered = self._render([*self._example(), {"role": "user", "content": self._MESSAGE}])
        if any(rendered.count(text) != 1 for text in (self._FIRST, self._REPLY, self._MESSAGE)):
            raise ValueError(
                "the tokenizer's chat template rewrites or repeats messages, so that conversations cannot be kept "
                "token for token; remove the template from the tokenizer's folder to prompt in plain lines"
            )

    def _example(self) -> list[Message]:
        return [{"role": "user", "content": self._FIRST}, {"role": "assistant", "content": self._REPLY}]

    def _render(self, messages: list[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        text = self._policy.tokenizer.apply_chat_template(
            messages, tools=list(tools) or None, tokenize=False, add_generation_prompt=True
        )
        assert isinstance(text, str)
        return text

    @cached_property
    def tool_role(self) -> str:
        """``"tool"``, or ``"user"`` if the template has no role for tools."""
        try:
            rendered = self._render([*self._example(), *self._results([self._MESSAGE])])
        except (TemplateError, TypeError, ValueError):
            return "user"
        return "tool" if self._MESSAGE in rendered else "user"

    @staticmethod
    def _results(texts: Sequence[str]) -> list[Message]:
        # Some templates ask for an id of nine characters.
        return [{"role": "tool", "content": text, "tool_call_id": f"{n:09}"} for n, text in enumerate(texts)]

    def _after_reply(self, messages: list[Message], reply: Sequence[int]) -> list[int]:
        ids = self._policy.encode(self._render([*self._example(), *messages]).partition(self._REPLY)[2])
        # A reply with the stop token already has its end token.
        return ids[1:] if reply and ids and reply[-1] == ids[0] else ids

    def literal(self, text: str) -> str:
        return self._policy.literal(text)

    def first_message(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        offered = [map_texts(self.literal, tool) for tool in tools]
        return self._policy.encode(self._render([{"role": "user", "content": text}], offered))

    def next_message(self, text: str, reply: Sequence[int]) -> list[int]:
        return self._after_reply([{"role": "user", "content": text}], reply)

    def tool_results(self, texts: Sequence[str], reply: Sequence[int]) -> list[int]:
        if self.tool_role == "user":
            return self.next_message("\n".join(texts), reply)
        return self._after_reply(self._results(texts), reply)

    def instructions(self, horizon: int, think: str, rules: str, form: str) -> str:
        alone = "Do not think aloud." if form else "Reply with nothing but the command."
        return f"{rules}\n\n{form or COMMAND_FORM} {THOUGHTS.get(think, alone)}"

    def prediction_request(self, horizon: int) -> str:
        steps = "observation" if horizon == 1 else f"{horizon} observations"
        return (
            f"You have not seen yet what your command does. Write down the next {steps} exactly as you expect the "
            f"world to word them: {prediction_forms(horizon)}"
        )

    def analyst_prompt(self, text: str, kind: PromptKind) -> list[int]:
        return self.first_message(self.literal(text))
