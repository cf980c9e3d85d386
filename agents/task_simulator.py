"""Task simulators that are language models: a policy of the run, and a model behind a server (GenEnv).

Experimental: they may change or go without notice.

Both read a situation as :func:`simulator_prompt` words it, and answer with lines between ``<tasks>`` and ``</tasks>``.
The texts of episodes stand there in one line each, without tags.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator

from roleagent.agents.chat.types import EndpointError
from roleagent.agents.policies.protocol import Policy, PolicyError
from roleagent.agents.rendering import renderer_of
from roleagent.curricula.simulators import BaseSimulator
from roleagent.failures.analyst_format import plain
from roleagent.tasks.grammar import MAX_LINE, Refused, TaskGrammar, TaskSpec
from roleagent.tasks.simulator import Simulator, SimulatorRecord, Situation
from roleagent.types import Request, Segment

if TYPE_CHECKING:
    from roleagent.agents.chat.endpoint import Endpoint

TASK_TAGS = ("<tasks>", "</tasks>")
ATTEMPTS = 8  # of the wish that a prompt words
_SLACK = 16  # tokens that an answer may be longer than the longest line
_REMARKS = 256  # tokens that an instructed model may write beside its lines
_BULLET = re.compile(r"^(?:[-*•]|\d{1,3}[.)])\s+")

_PURPOSE = """\
You write training tasks for an agent that acts in a world. It learns most from tasks that it solves in some attempts \
and not in others. Write {tasks} of the same world, at the edge of what the agent can do.

{description}"""
_WISH = """\
Wanted: the agent solves a new task in about {wish} of {attempts} attempts. {details} Answer with \
{tasks} in this form, and nothing else:
<tasks>
{form}
</tasks>"""


def simulator_prompt(grammar: TaskGrammar, situation: Situation, n: int = 1, explain: bool = True) -> str:
    """What a simulator reads: the purpose, the fields, the agent's success, a recent task, and the wish.

    Args:
        grammar: names the fields and their values.
        situation: what the simulator knows of the agent.
        n: tasks to write.
        explain: whether to say what is wanted, for models that follow instructions. Without, the prompt is the
            situation alone, for a small model that learned by example how it is answered.
    """
    counts = [f"{plain(name, 200)}: {won} of {tried}" for name, (won, tried) in situation.success.items()]
    seed = situation.seed_task and plain(grammar.write(situation.seed_task), MAX_LINE)
    won, tried = situation.seed_success
    if not explain:
        recent = [f"seed: {won} of {tried}", seed] if seed else []
        return "\n".join([f"target: {situation.target:.2f}", *counts, *recent])
    tasks = "one new task" if n == 1 else f"{n} different new tasks"
    form = grammar.form()
    parts = [_PURPOSE.format(tasks=tasks, description=form.description)]
    if counts:
        parts.append("\n".join(["The agent's recent successes by type of task:", *(f"- {line}" for line in counts)]))
    if seed:
        parts.append(f"A recent task, which the agent solved in {won} of {tried} attempts:\n{seed}")
    wish = _WISH.format(
        wish=f"{ATTEMPTS * situation.target:.3g}",
        attempts=ATTEMPTS,
        details=f"{form.differ} {form.solution}" if seed else form.solution,
        tasks="one line" if n == 1 else f"{n} lines",
        form=form.example,
    )
    return "\n\n".join([*parts, wish])


def read_tasks(reply: str, cut: bool = False) -> list[str]:
    """The lines between ``<tasks>`` and ``</tasks>``; none if the reply has no such block, or several.

    Blanks, empty lines, bullets, the case of the tags and a missing end tag are repaired. What a model thought before
    ``</think>`` does not count.

    Args:
        reply: of the model.
        cut: whether the reply ended at the limit of its tokens: a last line without an end tag is then unfinished.

    >>> read_tasks("<Tasks>\\n 1. kind=heat  item=egg\\n\\n</tasks> Done.")
    ['kind=heat  item=egg']
    >>> read_tasks("<tasks>\\nkind=heat\\nkind=co", cut=True), read_tasks("kind=heat")
    (['kind=heat'], [])
    """
    text = re.split(r"</think(?:ing)?>", reply, flags=re.IGNORECASE)[-1]
    parts = re.split(r"<tasks>", text, flags=re.IGNORECASE)
    if len(parts) != 2:
        return []
    inside, *rest = re.split(r"</tasks>", parts[1], maxsplit=1, flags=re.IGNORECASE)
    lines = [_BULLET.sub("", line.strip()) for line in inside.split("\n")]
    if cut and not rest:
        lines = lines[:-1]
    return [line for line in lines if line]


def write_tasks(lines: Sequence[str]) -> str:
    """The answer that :func:`read_tasks` reads."""
    return "\n".join((TASK_TAGS[0], *lines, TASK_TAGS[1]))


def simulator_examples(grammar: TaskGrammar, count: int, rng: Generator) -> Iterator[tuple[Situation, tuple[str, ...]]]:
    """Situations with made-up success figures, and the values of a base task, which does not depend on them.

    A model that learned from them writes tasks as the base distribution has them. A quarter of the tasks differ from a
    base task in one field, so that it knows the values that base tasks never have, and what stands beside them.

    Args:
        grammar: draws the tasks.
        count: number of examples.
        rng: draws them.
    """
    base = [grammar.base(rng) for _ in range(_POOL)]
    types = sorted({grammar.task_type(spec) for spec in base})

    def solved(most: float) -> tuple[int, int]:
        tried = round(most ** rng.random())  # of all orders of magnitude alike
        return int(rng.integers(tried, endpoint=True)), tried

    for _ in range(count):
        known = [name for name in types if rng.random() < 0.8] if rng.random() < 0.9 else []
        success = {name: solved(_MOST_TRIED) for name in known}
        seed, seed_success = None, (0, 0)
        if rng.random() < 0.7:
            seed, seed_success = base[int(rng.integers(_POOL))], solved(_MOST_TRIED / 10)
        target = 0.5 if rng.random() < 0.5 else int(rng.integers(ATTEMPTS, endpoint=True)) / ATTEMPTS
        spec = grammar.base(rng)
        if rng.random() < _VARIED:
            with contextlib.suppress(Refused):
                spec = grammar.vary(spec, rng)
        yield Situation(success, seed, seed_success, target), spec.values


_MOST_TRIED = 500.0  # attempts of a task type; a tenth of it at one task
_VARIED = 0.25  # share of the tasks with one field changed
_POOL = 200  # base tasks that the seeds of examples are drawn from
_BATCH = 64  # replies that a policy samples side by side


class ModelSimulator:
    """A policy writes tasks, one task per reply.

    A policy that knows a chat template is prompted. One that does not has learned the role by example, and finds behind
    the situation the mark for what is due.

    It learns in a step of its own (:func:`roleagent.learners.genenv.training.update_simulator`), in which every rank
    takes part: :meth:`update` keeps the records for it.

    Args:
        policy: the model. It samples with its own generator, which each call of :meth:`propose` seeds.
        grammar: the tasks that can be written.
        thinks: whether replies may begin with thoughts.
        start: the policy as it was before the first update; None if the model never learns.

    Raises:
        PolicyError: the policy's context has no room for a situation and a task.
    """

    temperature = 1.0  # of sampling

    def __init__(self, policy: Policy, grammar: TaskGrammar, thinks: bool, start: Policy | None = None):
        self.policy, self.grammar = policy, grammar
        self._thinks, self._start, self._records = thinks, start, ()
        self.renderer = renderer_of(policy, thinks)
        closing = policy.single_token(TASK_TAGS[1])
        self._stops = policy.end_ids | ({closing} if closing is not None else set())
        longest = grammar.longest(self._measure)
        self.limit = len(self.answer(longest.values)) + _SLACK + (_REMARKS if self.renderer.explains else 0)
        needed = len(self._tokens_of(Situation({}, longest))) + self.limit
        if needed >= policy.context_length:
            raise PolicyError(
                f"a context of {policy.context_length} tokens has no room for a situation and a task, which take "
                f"{needed}: raise policy.context, or choose another simulator.kind"
            )
        self._tokens = self._seconds = 0.0

    def _measure(self, text: str) -> int:
        return len(self.policy.encode(self.policy.literal(text)))

    def _tokens_of(self, situation: Situation) -> list[int]:
        question = simulator_prompt(self.grammar, situation, explain=self.renderer.explains)
        return self.renderer.analyst_prompt(question, "tasks")

    def prompt(self, situation: Situation) -> tuple[int, ...]:
        """A situation in tokens; of more task types than there is room for, the last ones are left out."""
        names = list(situation.success)
        while True:
            found = self._tokens_of(situation)
            if len(found) + self.limit <= self.policy.context_length or not names:
                return tuple(found)
            del names[len(names) // 2 :]
            situation = replace(situation, success={name: situation.success[name] for name in names})

    def answer(self, values: Sequence[str]) -> list[int]:
        """A task in tokens, with the token that ends the reply."""
        line = self.grammar.write(TaskSpec(tuple(values)))
        ids = self.renderer.write(write_tasks([self.policy.literal(line)]))
        return ids if ids[-1] in self._stops else [*ids, self.policy.eos_id]

    def segment(self, situation: Situation, values: Sequence[str], weight: float = 1.0) -> Segment:
        """A situation and the task that was written for it; the task's tokens have the advantage ``weight``."""
        prompt, answer = self.prompt(situation), self.answer(values)
        written = np.arange(len(prompt) + len(answer)) >= len(prompt)
        return Segment(np.array([*prompt, *answer]), written.astype(np.int8), 0.0 * written, weight * written)

    def propose(self, situations: Sequence[Situation], n: int, rng: Generator) -> list[list[str]]:
        """``n`` tasks for each situation; ``""`` where a reply holds none."""
        started = time.perf_counter()
        self.policy.reseed(int(rng.integers(2**62)))
        asked = iter([self.prompt(situation) for situation in situations for _ in range(n)])
        lines: list[str] = []
        while prompts := list(islice(asked, _BATCH)):
            requests = [Request(prompt, slot, self.limit, self._stops) for slot, prompt in enumerate(prompts)]
            for completion in self.policy.generate(requests, self.temperature):
                self._tokens += len(completion.token_ids)
                reply = self.renderer.read(completion.token_ids)
                [line, *_] = [*read_tasks(reply, completion.finish_reason == "length"), ""]
                lines.append(line)
            self.policy.clear_cache()
        self._seconds += time.perf_counter() - started
        return [lines[start : start + n] for start in range(0, len(lines), n)]

    def update(self, records: Sequence[SimulatorRecord], rng: Generator) -> dict[str, float]:
        """Keeps the records until :meth:`take_records`."""
        self._records = tuple(records)
        return {}

    def take_records(self) -> Sequence[SimulatorRecord]:
        """The records to learn from since the last call."""
        taken, self._records = self._records, ()
        return taken

    def initial(self) -> Simulator:
        """The simulator with the policy as it was before its first update."""
        if self._start is None:
            return self
        return type(self)(self._start, self.grammar, self._thinks)

    def costs(self) -> dict[str, float]:
        """``tokens`` sampled and ``seconds`` of sampling, since the last call."""
        spent = {"tokens": self._tokens, "seconds": self._seconds}
        self._tokens = self._seconds = 0.0
        return spent

    def state_dict(self) -> dict[str, Any]:
        """No state: the weights are the learner's."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to load."""


class EndpointSimulator(BaseSimulator):
    """A frozen model behind an OpenAI-compatible server writes tasks, all of a situation in one reply.

    Trouble with the server stops no run: a situation that stays unanswered has no tasks, and is warned of once.

    Args:
        endpoint: the server.
        grammar: the tasks that can be written.
        temperature: of sampling.
        answer_tokens: most tokens of an answer, and of what a model thinks before it.
        prices: money per million prompt tokens and per million completion tokens.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        grammar: TaskGrammar,
        temperature: float = 1.0,
        answer_tokens: int = 2048,
        prices: tuple[float, float] | None = None,
    ):
        super().__init__(grammar)
        self.endpoint, self.temperature = endpoint, temperature
        self.answer_tokens, self.prices = answer_tokens, prices

    def propose(self, situations: Sequence[Situation], n: int, rng: Generator) -> list[list[str]]:
        """Up to ``n`` tasks for each situation."""
        questions = [simulator_prompt(self.grammar, situation, n) for situation in situations]
        asked = [[{"role": "user", "content": question}] for question in questions]
        try:
            answers = self.endpoint.chat(asked, max_tokens=self.answer_tokens, temperature=self.temperature)
        except EndpointError as error:
            self.endpoint.warn(str(error))
            return [[] for _ in situations]
        return [read_tasks(one.text, one.finish_reason == "length")[:n] if one else [] for one in answers]

    def costs(self) -> dict[str, float]:
        """The costs since the last call.

        ``tokens`` written, ``prompt_tokens``, ``seconds``, ``requests``, ``retries`` and ``failures``, and ``cost`` in
        money where prices were given.
        """
        spent = self.endpoint.settle()
        named = {name: float(getattr(spent, name)) for name in _COSTS}
        cost = {} if self.prices is None else {"cost": spent.price(self.prices)}
        return {"tokens": float(spent.completion_tokens), **named, **cost}


_COSTS = ("prompt_tokens", "seconds", "requests", "retries", "failures", "shortened")

__all__ = [
    "TASK_TAGS",
    "EndpointSimulator",
    "ModelSimulator",
    "read_tasks",
    "simulator_examples",
    "simulator_prompt",
    "write_tasks",
]
