"""The renderer of models with a chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roleagent.agents.analysts.prompts import PromptKind
from roleagent.agents.chat_template import ChatTemplate, Message, joined, tools_in_words
from roleagent.agents.policies.protocol import INSIDE, Policy
from roleagent.agents.prompt_templates import NO_TEMPLATES
from roleagent.envs.wrappers.tags import COMMAND_FORM, THOUGHTS, prediction_forms
from roleagent.markers import map_texts


class ChatRenderer:
    """The tokenizer's chat template; the tokens between turns are cut out of a rendered example.

    What :meth:`first_message`, :meth:`next_message` and :meth:`tool_results` return is what the template makes of the
    whole conversation, byte for byte: a template may trim a text, write it as JSON or join several results.

    Args:
        policy: its tokenizer has a chat template.
        thinks: see :class:`~roleagent.agents.chat_template.ChatTemplate`.
    """

    explains = True
    templates = NO_TEMPLATES

    # Upper and lower case: a template that changes either is found out.
    _FIRST = "\u241fFirst\u241f"
    _REPLY = "\u241fReply\u241f"
    _MESSAGE = "\u241fMessage\u241f"

    def __init__(self, policy: Policy, thinks: bool = True):
        self._policy, self._template = policy, ChatTemplate(policy.tokenizer, thinks)
        try:
            rendered = self._template.raw([*self._example(), {"role": "user", "content": self._MESSAGE}])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the tokenizer's chat template refuses a conversation ({error}); remove the template from the "
                "tokenizer's folder to prompt in plain lines"
            ) from error
        if any(rendered.count(text) != 1 for text in (self._FIRST, self._REPLY, self._MESSAGE)):
            raise ValueError(
                "the tokenizer's chat template rewrites or repeats messages, so that conversations cannot be kept "
                "token for token; remove the template from the tokenizer's folder to prompt in plain lines"
            )

    def _example(self) -> list[Message]:
        return [{"role": "user", "content": self._FIRST}, {"role": "assistant", "content": self._REPLY}]

    def _after_reply(self, messages: Sequence[Message], reply: Sequence[int]) -> list[int]:
        return self._rest(self._template.raw([*self._example(), *messages]).partition(self._REPLY)[2], reply)

    def _rest(self, rest: str, reply: Sequence[int]) -> list[int]:
        """The tokens of what the template has behind a reply, without the end that the reply has itself."""
        if not reply or reply[-1] not in self._policy.end_ids:
            return self._policy.encode(rest, INSIDE)
        # A reply with an end token needs no other; a turn's end may have blanks before it, and several marks.
        end, turn, text = self._text(reply[-1]), self._text(self._policy.eos_id), rest.lstrip()
        before, found, _ = self._template.turn_end.lstrip().partition(end)
        marks = (before + end if found else end, end, turn if turn in self._template.turn_end else end)
        said = next((mark for mark in marks if text.startswith(mark)), "")
        if not said and self._template.last_end.lstrip().startswith(end):  # gpt-oss ends earlier replies in another way
            said = self._text(self._policy.encode(text, INSIDE)[0])
        if said:
            rest = text.removeprefix(said)
        return self._policy.encode(rest, end)

    def _text(self, token: int) -> str:
        return self._policy.tokenizer.convert_ids_to_tokens(token)

    @property
    def opening(self) -> str:
        """The tag that prompts leave open, such as ``<think>``; ``""`` where there is none."""
        return self._template.opening

    def read(self, reply: Sequence[int]) -> str:
        return self._template.read(self._policy.decode(reply))

    def write(self, text: str) -> list[int]:
        return self._policy.encode(self._template.written(text), INSIDE)

    def literal(self, text: str) -> str:
        return self._policy.literal(text)

    def first_message(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        offered = [map_texts(self.literal, tool) for tool in tools]
        if offered and not self._template.form.tools:
            # First, for they are the same for all tasks: a sampler reads a beginning that prompts share once.
            text, offered = f"{tools_in_words(offered)}\n\n{text}", []
        return self._policy.encode(self._template.raw([{"role": "user", "content": text}], offered))

    def next_message(self, text: str, reply: Sequence[int]) -> list[int]:
        return self._after_reply([{"role": "user", "content": text}], reply)

    def tool_results(self, texts: Sequence[str], reply: Sequence[int], names: Sequence[str] = ()) -> list[int]:
        if self._template.form.results:
            return self._after_reply(self._template.results(texts), reply)
        ends = [self._text(token) for token in self._policy.end_ids]
        rest = self._template.after_calls(names, texts, ends) if names else None
        return self.next_message("\n".join(texts), reply) if rest is None else self._rest(rest, reply)

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], own: Callable[[Message], bool]
    ) -> list[int]:
        """A whole conversation that somebody else keeps, up to where the reply begins.

        Args:
            messages: with texts as contents; the arguments of calls are objects.
            tools: that are offered.
            own: whether a message is a reply of the policy; all others are from outside.

        Raises:
            ValueError: the chat template refuses them.
        """
        said = [message if own(message) else self._outside(message) for message in messages]
        return self._policy.encode(self._template.render(said, map_texts(self.literal, tools)))

    def continuation(self, messages: Sequence[Message], reply: Sequence[int], names: Sequence[str] = ()) -> list[int]:
        """As :meth:`next_message`, for several messages of the user and of tools.

        Args:
            names: of the tools that the reply calls.
        """
        said = [self._outside(message) for message in messages]
        results = [message["content"] for message in said if message["role"] == "tool"]
        if len(results) == len(said):
            return self.tool_results(results, reply, list(map(self.literal, names)))
        if not self._template.form.results:
            said = [{"role": "user", "content": message["content"]} for message in said]
        return self._after_reply(joined(said), reply)

    def _outside(self, message: Message) -> Message:
        """A message whose special tokens are plain letters; its role is ours."""
        return {**map_texts(self.literal, message), "role": message["role"]}

    def instructions(self, horizon: int, think: str, rules: str, form: str) -> str:
        alone = "Do not think aloud." if form else "Reply with nothing but the command."
        form, thoughts = form or COMMAND_FORM, THOUGHTS.get(think, alone)
        own = self.templates.fill("instructions", rules=rules, form=form, thoughts=thoughts)
        return f"{rules}\n\n{form} {thoughts}" if own is None else own

    def prediction_request(self, horizon: int) -> str:
        own = self.templates.fill("prediction", form=prediction_forms(horizon), horizon=horizon)
        if own is not None:
            return own
        steps = "observation" if horizon == 1 else f"{horizon} observations"
        return (
            f"You have not seen yet what your command does. Write down the next {steps} exactly as you expect the "
            f"world to word them: {prediction_forms(horizon)}"
        )

    def analyst_prompt(self, text: str, kind: PromptKind) -> list[int]:
        return self.first_message(self.literal(text))
