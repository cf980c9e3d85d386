"""The two roles as a two-player game: ``agent`` plays, ``world`` analyzes its failures and chooses its next tasks.

An episode of this PettingZoo (AEC) environment spans several games of one Gymnasium environment::

    agent plays a game ── won ────────────────────────────────────────────▶ the next game
           └───────────── failed ──▶ world reflects ──▶ world selects ──▶ the next game, from the selection

Both speak text: ``agent`` an action and predictions, as :mod:`~roleagent.envs.wrappers.tags` reads them, ``world`` the
blocks of :mod:`roleagent.failures.analyst_format`. An observation is ``{"asks": …, "text": …}``, where ``asks`` is
``"action"``, ``"reflection"``, ``"selection"`` or, while it is the other's turn, ``"nothing"``; ``infos`` holds the
same as facts, for policies that are programs. No reply is an error, whatever it is. See ``docs/dual_role.md``.

The rewards of the two roles are named terms, weighted in this one place:

==============  =========  ============  =========================================================================
term            of         when          what
==============  =========  ============  =========================================================================
``task``        ``agent``  every step    what the environment gives for the step
``prediction``  ``agent``  every step    similarity of predicted and real states, summed over horizons; for the log
``valid``       ``world``  every answer  1 as the form demands, 0.5 where it had to be repaired, 0 where it was none
``true``        ``world``  reflections   :func:`true_to`: what can be checked of it against the episode
``useful``      ``world``  later         1 for each game of a selected task that ``agent`` failed at, else 0
==============  =========  ============  =========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from numpy.random import Generator
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import turn_based_aec_to_parallel
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from roleagent.agents.analysts.prompts import AnalystPrompts
from roleagent.curricula.failure_sampler import CurriculumSampler, Learning
from roleagent.curricula.library import FailureLibrary
from roleagent.envs.wrappers.full_info import FullInfo
from roleagent.envs.wrappers.predicted_state import PredictedState
from roleagent.envs.wrappers.tags import Think
from roleagent.envs.wrappers.tool_tags import read_replies
from roleagent.failures.analyst_format import UNREADABLE, read_reflection, read_selection
from roleagent.failures.modes import UNKNOWN, taxonomy
from roleagent.spaces import Unicode, check_render_mode
from roleagent.tasks.split import TaskSplit
from roleagent.types import (
    Analyst,
    Failure,
    Group,
    Prediction,
    Recorder,
    Reflection,
    Selection,
    Task,
    Trajectory,
    Turn,
    reward_terms,
)

WEIGHTS: Mapping[str, float] = {"task": 1.0, "prediction": 0.0, "valid": 0.25, "true": 0.25, "useful": 1.0}
"""Of the terms. A prediction's worth is decided where returns are modulated (paper, Eq. 6), not here."""
_QUOTED = re.compile(r"(?<!\w)(['\"`])(\S(?:[^'\"`]{0,78}\S)?)\1(?!\w)|[“‘]([^”’]{1,80})[”’]")
_COUNTED = (
    "times|steps|turns|places|actions|commands|replies|walks|tries|attempts|searches|queries|pages|products|things"
)
_NUMBERED = re.compile(rf"\b([a-z]{{3,}}) (\d{{1,4}})\b(?! (?:{_COUNTED})\b)")
_COUNTING = re.compile(  # words before a number that say how many or when, not which
    r"about|after|all|and|are|around|at|before|best|both|but|by|exactly|first|for|from|had|has|into|just|last|least"
    r"|made|more|most|nearly|next|not|only|other|out|over|past|steps?|than|that|the|then|these|those|times?|took"
    r"|turns?|under|until|was|were|when|with|within"
)


def total(terms: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The reward: the weighted sum of the terms. A term without a weight is for the log only.

    >>> total({"valid": 0.5, "true": 1.0, "useful": 1.0}, WEIGHTS)
    1.375
    """
    return float(sum(weights.get(name, 0.0) * value for name, value in terms.items()))


def weighing(changed: Mapping[str, float] | None) -> dict[str, float]:
    """The weights, with some of them changed.

    Raises:
        ValueError: there is no such term.
    """
    unknown = sorted(set(changed or {}) - set(WEIGHTS))
    if unknown:
        raise ValueError(f"no such reward term: {', '.join(unknown)}; there are {', '.join(WEIGHTS)}")
    return {**WEIGHTS, **(changed or {})}


def valid(answer: Reflection | Selection | None) -> float:
    """1 for an answer as the form demands, 0.5 for one that had to be repaired, 0 for none.

    >>> valid(Selection((0,), dropped=1)), valid(Selection((), source="fallback")), valid(None)
    (0.5, 0.0, 0.0)
    """
    if answer is None or answer.source == "fallback":
        return 0.0
    repaired = answer.repaired or (isinstance(answer, Selection) and answer.dropped > 0)
    return 0.5 if repaired else 1.0


def things_named(text: str) -> tuple[str, ...]:
    """The verifiable names in a sentence: quoted words and numbered objects.

    >>> things_named("'open drawer 2' failed 3 times, and desk 1 was 2 of the last 4 places")
    ('open drawer 2', 'desk 1')
    """
    quoted = [" ".join((match[2] or match[3]).lower().split()) for match in _QUOTED.finditer(text)]
    rest = _QUOTED.sub(" ", text).lower()
    numbered = [" ".join(match.groups()) for match in _NUMBERED.finditer(rest) if not _COUNTING.fullmatch(match[1])]
    return tuple(dict.fromkeys((*filter(None, quoted), *numbered)))


def claims(reflection: Reflection, trajectory: Trajectory, named_step: int | None) -> list[bool]:
    """The verifiable claims of a reflection, and whether each is true of the episode.

    A thing named in the detail must occur in the episode. A critical step must exist and, where the detail names
    things, be a step at which one of them occurs.

    Args:
        reflection: as it was read.
        trajectory: the episode.
        named_step: the step that the reply names, 0-based, whether or not the episode has it.
    """
    steps = [_words(f"{turn.action} {turn.observation}") for turn in trajectory.turns]
    everything = " ".join((_words(f"{trajectory.task.goal} {trajectory.initial_observation}"), *steps))
    named = [_words(thing) for thing in things_named(reflection.detail)]
    named = [thing for thing in named if thing.strip()]
    found = [thing in everything for thing in named]
    if named_step is not None:
        exists = 0 <= named_step < len(steps)
        found.append(exists and (not named or any(thing in steps[named_step] for thing in named)))
    return found


def true_to(reflection: Reflection, trajectory: Trajectory, named_step: int | None, judged: str | None = None) -> float:
    """The share of a reflection's verifiable claims that are true of the episode, in [0, 1].

    The mean of two parts: the share of its :func:`claims` that hold, and whether its mode is the one that a judge
    found. A part that is missing is left out; where both are, nothing can be checked, which earns 0.

    Args:
        reflection: as it was read.
        trajectory: the episode.
        named_step: the step that the reply names, 0-based, whether or not the episode has it.
        judged: the judge's mode; None without a judge.
    """
    parts = []
    if checked := claims(reflection, trajectory, named_step):
        parts.append(sum(checked) / len(checked))
    if judged is not None:
        parts.append(float(reflection.mode == judged))
    return sum(parts) / len(parts) if parts else 0.0


def _words(text: str) -> str:
    """Words and numbers only, in lower case, with blanks around each: "desk 1" is not in "desk 12"."""
    return " ".join(("", *re.findall(r"[^\W_]+", text.lower()), ""))


Origin = Literal["given", "uniform", "selected"]


@dataclass
class Game:
    """The record of one game; the fields of ``world`` are None if it was not asked.

    Attributes:
        number: of the game within its episode, from 0.
        origin: how it came to be played: demanded by the caller, drawn uniformly, or selected by ``world``.
        record: of what ``agent`` does in it.
        trajectory: all of it, once the game is over.
        reflection: what ``world`` wrote about it; of source ``"fallback"`` where that could not be read.
        selection: what ``world`` selected after it.
        chosen: the tasks that it chose for training.
    """

    number: int
    origin: Origin
    record: Recorder = field(compare=False)  # its trajectory is compared
    trajectory: Trajectory | None = None
    reflection: Reflection | None = None
    selection: Selection | None = None
    chosen: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        """What is played."""
        return self.record.task

    @property
    def turns(self) -> Sequence[Turn]:
        """What was done so far."""
        return self.record.turns

    @property
    def won(self) -> bool:
        """Whether the last step solved it."""
        return self.record.won

    def past(self, exchanges: int) -> Sequence[tuple[str, str]]:
        """The last observations, each with the action that followed, oldest first."""
        seen = [self.record.initial_observation, *(turn.observation for turn in self.turns)]
        done = [turn.action for turn in self.turns]
        return list(zip(seen, done, strict=False))[-exchanges:] if exchanges > 0 else []


def with_past(goal: str, past: Sequence[tuple[str, str]], observation: str) -> str:
    """An observation after the exchanges that led to it, for an agent without a memory.

    Args:
        goal: the task in words.
        past: the last exchanges, oldest first: an observation, and the command given on it.
        observation: the present one.

    >>> print(with_past("find a pen", [("A desk.", "open desk 1")], "A pen."))
    Your task is to: find a pen
    A desk.
    > open desk 1
    A pen.
    """
    lines = [f"Your task is to: {goal}"] if past else []
    for seen, done in past:
        lines += [seen, f"> {done or UNREADABLE}"]
    return "\n".join((*lines, observation))


AGENT, WORLD = "agent", "world"
Asks = Literal["nothing", "action", "reflection", "selection"]
MOST_CHARACTERS = 1_000_000
"""Of any text that a role is given."""
_ROOM = MOST_CHARACTERS // 2  # characters of a prompt
_ANY_STEP = 10**6  # more steps than an episode has: to read which step a reply names, whether or not it exists


class DualRole(AECEnv):
    """Two roles, one text each per turn; reset draws the first task, an episode ends after ``games`` games.

    The terms of a side's rewards since its own last turn are in ``infos[side]["rewards"]``, and
    :func:`~roleagent.agents.dual_role.total` of them is what :meth:`last` returns. After the last game there is
    nothing left to select for, so that ``world`` only reflects.

    Args:
        game: a Gymnasium id, or whatever makes an environment; it needs a ``task_split`` and takes ``task_id`` as a
            reset option.
        game_kwargs: what ``game`` is made with.
        games: in an episode.
        horizon: steps that predictions look ahead; None: 5 % of the game's ``max_steps``.
        think: whether ``agent`` may, must or must not think aloud before its action.
        bare_commands: whether a reply of ``agent`` without any tag counts as a command.
        history: earlier exchanges of the game that ``agent`` is shown above an observation; 0 for agents that remember.
        candidates: most failures that ``world`` is shown to select from; those of the task that has just failed are
            left out.
        most_selected: most tasks of a selection that count; what it names beyond is ignored.
        epsilon: share of the games that play selected tasks, in [0, 1); the others are drawn uniformly.
        weights: of reward terms, where they differ from :data:`~roleagent.agents.dual_role.WEIGHTS`.
        judge: an analyst whose mode the term ``true`` compares ``world``'s with, for instance ``RuleAnalyst()``.
        render_mode: ``"ansi"`` renders what is asked of whom.

    Attributes:
        played: the games of the episode so far, the present one included.

    Raises:
        ValueError: an argument out of range, an unknown reward term, a game without a split.
    """

    metadata = {"name": "dual_role_v0", "render_modes": ["ansi"], "is_parallelizable": False}  # noqa: RUF012

    def __init__(
        self,
        game: str | Callable[..., gymnasium.Env],
        game_kwargs: Mapping[str, Any] | None = None,
        games: int = 8,
        horizon: int | None = None,
        think: Think = "optional",
        bare_commands: bool = False,
        history: int = 0,
        candidates: int = 16,
        most_selected: int = 4,
        epsilon: float = 0.5,
        weights: Mapping[str, float] | None = None,
        judge: Analyst | None = None,
        render_mode: str | None = None,
    ):
        super().__init__()
        counts = {"games": games, "candidates": candidates, "most_selected": most_selected}
        for name, number in counts.items():
            if number < 1:
                raise ValueError(f"{name} must be at least 1, not {number}")
        self.weights = weighing(weights)
        made = gymnasium.make(game, **(game_kwargs or {})) if isinstance(game, str) else game(**(game_kwargs or {}))
        if not made.has_wrapper_attr("task_split"):
            raise ValueError(f"{made} has no task_split, from which the next game could be drawn")
        self._game = PredictedState(FullInfo(made), horizon)
        self.task_split: TaskSplit = made.get_wrapper_attr("task_split")
        self.think: Think = think
        self.horizon, self.bare_commands, self.history = self._game.horizon, bare_commands, history
        self._reader = read_replies(self._game, think, self.horizon).reader
        self.games, self.most_selected = games, most_selected
        self._options = {"epsilon": epsilon, "candidates": candidates}
        self.library = FailureLibrary()
        self.sampler = self._new_sampler(np.random.default_rng())
        self.prompts = AnalystPrompts(len, _ROOM, _ROOM, most=most_selected)
        self.judge, self.render_mode = judge, check_render_mode(render_mode, self.metadata)
        self.modes = taxonomy(self.task_split.env_id)
        self.possible_agents = [AGENT, WORLD]
        self._observation_spaces = {
            side: gymnasium.spaces.Dict(asks=Unicode(16), text=Unicode(MOST_CHARACTERS)) for side in (AGENT, WORLD)
        }
        self._action_spaces = {side: Unicode(MOST_CHARACTERS) for side in (AGENT, WORLD)}
        self._rng: Generator | None = None
        self.agents: list[str] = []
        self.played: list[Game] = []
        self._learning: Learning
        self._candidates: Sequence[Failure] = ()

    def observation_space(self, agent: str) -> gymnasium.Space:
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space:
        return self._action_spaces[agent]

    # --- the turns ---

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begins an episode; ``options["task_id"]`` demands the task of its first game.

        Raises:
            ValueError: the split has no such task.
        """
        if seed is not None or self._rng is None:
            self._rng, _ = seeding.np_random(seed)
        self.agents = list(self.possible_agents)
        self.rewards: dict[str, float] = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards: dict[str, float] = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._observations = {side: {"asks": "nothing", "text": ""} for side in self.agents}
        self._terms: dict[str, dict[str, float]] = {side: {} for side in self.agents}
        self.infos = {side: {"asks": "nothing", "game": 0, "rewards": {}} for side in self.agents}
        self.library.rollback(0)
        self.sampler = self._new_sampler(self._rng)
        self.played = []
        self._begin((options or {}).get("task_id"))

    def step(self, action: Any) -> None:
        """Takes the reply of the side whose turn it is.

        Raises:
            ValueError: the episode is over and the reply is not None (PettingZoo's rule).
        """
        side = self.agent_selection
        if self.terminations[side]:
            self._was_dead_step(action)
            return
        self._clear_rewards()
        self._cumulative_rewards[side] = 0.0
        self._terms[side].clear()
        reply = action if isinstance(action, str) else ""
        answers = {"action": self._play, "reflection": self._reflect, "selection": self._select}
        answers[self._observations[side]["asks"]](reply)
        self._accumulate_rewards()

    def observe(self, agent: str) -> dict[str, str]:
        return dict(self._observations[agent])

    def render(self) -> str | None:
        if self.render_mode != "ansi":
            return None
        asked = self._observations[self.agent_selection]
        return f"[game {len(self.played)} of {self.games}; {self.agent_selection}: {asked['asks']}]\n{asked['text']}"

    def close(self) -> None:
        self._game.close()
        self.library.close()

    def _ask(self, side: str, asks: Asks, text: str, **facts: Any) -> None:
        """Gives the turn to a side; the other one is asked nothing."""
        for name in self.agents:
            self._observations[name] = {"asks": "nothing", "text": ""}
            self.infos[name] = {"asks": "nothing", "game": len(self.played) - 1, "rewards": dict(self._terms[name])}
        self._observations[side] = {"asks": asks, "text": text[:MOST_CHARACTERS]}
        self.infos[side] = {**facts, **self.infos[side], "asks": asks}
        self.agent_selection = side

    def _pay(self, side: str, **terms: float | None) -> None:
        """Adds reward terms, as far as there are any, to those that a side is due."""
        due = {name: float(value) for name, value in terms.items() if value is not None}
        for name, value in due.items():
            self._terms[side][name] = self._terms[side].get(name, 0.0) + value
        self.rewards[side] += total(due, self.weights)

    # --- agent plays ---

    def _begin(self, task_id: str | None = None) -> None:
        """The next game, or the end of the episode."""
        if len(self.played) == self.games:
            self._ask(AGENT, "nothing", "", last_game=self.played[-1])
            self.terminations = dict.fromkeys(self.agents, True)
            return
        assert self._rng is not None
        task_id, origin = self._next_task(task_id)
        text, info = self._game.reset(seed=int(self._rng.integers(2**31)), options={"task_id": task_id})
        record = Recorder(Task.of(self.task_split.env_id, task_id, info), str(text), info)
        self.played.append(Game(len(self.played), origin, record))
        self._ask_agent(info)

    def _ask_agent(self, info: Mapping[str, Any]) -> None:
        game = self.played[-1]
        facts = {**info, "turn": len(game.turns), "origin": game.origin, "horizon": self.horizon}
        if game.number:
            facts["last_game"] = self.played[-2]
        self._ask(AGENT, "action", with_past(game.task.goal, game.past(self.history), game.record.observation), **facts)

    def _play(self, reply: str) -> None:
        if self.bare_commands and "<" not in reply:
            reply = self._reader.write(reply)
        parsed = self._reader.read(reply)
        action = {"command": parsed.command, "predictions": parsed.predictions}
        text, reward, terminated, truncated, info = self._game.step(action)
        info = {**info, "format_error": parsed.error}
        game, prediction = self.played[-1], Prediction((), None, parsed.predictions)
        played = (parsed.command, str(text), float(reward), terminated, truncated, info)
        game.record.add(*played, prediction=prediction)
        self._pay(AGENT, **reward_terms(info, reward))
        if not game.record.over:
            self._ask_agent(info)
            return
        game.trajectory = trajectory = game.record.trajectory()
        if game.origin == "selected":
            self._pay(WORLD, useful=float(not game.won))
        self._learning = self.sampler.learn([Group(game.task, (trajectory,))])
        if next(self._learning, None) is None:  # nothing failed
            self._begin()
        else:
            self._ask(WORLD, "reflection", self.prompts.reflection(trajectory), trajectory=trajectory, modes=self.modes)

    # --- world answers ---

    def _reflect(self, reply: str) -> None:
        game = self.played[-1]
        trajectory = game.trajectory
        assert trajectory is not None
        read = read_reflection(reply, self.modes, len(trajectory.turns))
        true = 0.0
        if read is not None:
            named = read_reflection(reply, self.modes, _ANY_STEP)
            judged = self.judge.reflect([trajectory])[0].mode if self.judge is not None else None
            true = true_to(read, trajectory, named.critical_step if named else None, judged)
        self._pay(WORLD, valid=valid(read), true=true)
        # The failure is known even if its reflection cannot be parsed.
        game.reflection = read or Reflection(UNKNOWN, "", None, "", game.task.goal, "fallback")
        _, (_, [self._candidates]) = self._learning.send([game.reflection])
        if len(self.played) == self.games or not self._candidates:
            self._choose(Selection(()))
            return
        question, shown = self.prompts.selection(game.reflection, self._candidates)
        self._candidates = self._candidates[:shown]
        facts = {"trajectory": trajectory, "reflection": game.reflection, "candidates": self._candidates}
        self._ask(WORLD, "selection", question, **facts, most_selected=self.most_selected)

    def _select(self, reply: str) -> None:
        game = self.played[-1]
        selection = read_selection(reply, len(self._candidates))
        self._pay(WORLD, valid=valid(selection))
        kept = replace(selection, indices=selection.indices[: self.most_selected])
        game.selection = replace(kept, reasons=selection.reasons[: self.most_selected])
        chosen = (self._candidates[index].task.task_id for index in game.selection.indices)
        game.chosen = tuple(dict.fromkeys(chosen))
        self._choose(game.selection)

    # --- the curriculum ---

    def _new_sampler(self, rng: Generator) -> CurriculumSampler:
        """The sampler of the trainer. World gets no credit for a text search, and selected tasks are played as such."""
        options = {**self._options, "overlooked": 0.0, "search": False}
        return CurriculumSampler(self.task_split, self.library, None, rng, **options)

    def _next_task(self, task_id: str | None) -> tuple[str, Origin]:
        """The demanded task, or one that the sampler draws."""
        if task_id is not None:
            return self.task_split.require(task_id), "given"
        before = self.sampler.counters["from_curriculum"]
        [task_id] = self.sampler.sample(1)
        return task_id, "selected" if self.sampler.counters["from_curriculum"] > before else "uniform"

    def _choose(self, selection: Selection) -> None:
        """Gives the sampler its selection, and begins the next game."""
        with suppress(StopIteration):
            self._learning.send([selection])
        self._begin()


def raw_env(**kwargs: Any) -> DualRole:
    """The bare environment; arguments as for :class:`DualRole`."""
    return DualRole(**kwargs)


def env(**kwargs: Any) -> OrderEnforcingWrapper:
    """The environment as it is used: a step before reset is a clear error."""
    return OrderEnforcingWrapper(raw_env(**kwargs))


def parallel_env(**kwargs: Any) -> ParallelEnv:
    """The same with a dictionary of replies per step, of which only that of the side whose turn it is counts."""
    return turn_based_aec_to_parallel(env(**kwargs))
