"""Loads recorded episodes: one iteration at a time, or a selection for a report.

A run may have a million turns. At most one iteration is in memory, besides the selection.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roleagent.files import read_json_lines
from roleagent.reports.data.run_schema import Analysis, EpisodeCard, Prediction, TurnCard

MOST_TOKENS = 400_000
"""Most tokens in a report, over all its episodes: about 10 MB."""


class RunDataError(ValueError):
    """A run folder that cannot be loaded; the message is one line."""


class TrajectoryReader:
    """Reads the recorded episodes of a run.

    Args:
        run: the run folder.

    Attributes:
        files: by iteration, in order.
    """

    def __init__(self, run: Path):
        self.files: dict[int, Path] = {}
        for file in sorted(run.glob("trajectories/iteration-*.jsonl*")):
            if found := re.fullmatch(r"iteration-(\d+)\.jsonl(\.gz)?", file.name):
                self.files[int(found[1])] = file

    def cards(self, iteration: int) -> list[EpisodeCard]:
        """All episodes of an iteration; none if the folder does not have it.

        Raises:
            RunDataError: the file is damaged.
        """
        return [card for rows in self.groups(iteration) for card in self._cards(iteration, rows)]

    def select(self, most: int, modes: Mapping[str, int]) -> list[EpisodeCard]:
        """Selects about ``most`` episodes in whole groups: from the newest, the oldest and iterations between.

        Groups with different rewards come first, then groups with tokens. A missing failure mode adds a group of an
        iteration that has it, up to a third of the selection.

        Args:
            modes: failure modes, the most important first, each with an iteration that has it.

        Returns:
            episodes in the order of play.
        """
        if not self.files or most < 1:
            return []
        kept: dict[tuple[int, int], list[EpisodeCard]] = {}
        order = spread(list(self.files))
        size = max(map(len, self.groups(order[0])), default=1)
        room = max(1, most // size)
        wanted = [mode for mode, iteration in modes.items() if iteration in self.files]
        spare = min(len(wanted), room // 3)
        visits = order[: max(2, (room - spare) // 2)] if room - spare > 1 else order[:1]
        for number, iteration in enumerate(visits):
            share = -(-(room - spare - len(kept)) // (len(visits) - number))
            for rows in self._by_information(iteration)[: max(0, share)]:
                kept[iteration, rows[0]["group"]] = self._cards(iteration, rows)
        for mode in wanted:
            seen = {card["analysis"]["mode"] for group in kept.values() for card in group if card["analysis"]}
            if mode not in seen and spare:
                spare -= self._add(kept, modes[mode], mode)
        for iteration in order:  # fill up
            if len(kept) >= room:
                break
            self._add(kept, iteration)
        return _with_tokens_up_to(MOST_TOKENS, [card for place in sorted(kept) for card in kept[place]])

    def groups(self, iteration: int) -> list[list[dict[str, Any]]]:
        """The lines of an iteration (:mod:`roleagent.learners.run.trajectory_log`), group by group.

        Raises:
            RunDataError: the file is damaged.
        """
        groups: dict[int, list[dict[str, Any]]] = {}
        file = self.files.get(iteration)
        with complete(file):
            for row in _rows(file) if file else ():
                groups.setdefault(row["group"], []).append(row)
        return [*groups.values()]

    def _by_information(self, iteration: int) -> list[list[dict[str, Any]]]:
        """The same, the most informative groups first."""
        groups = self.groups(iteration)
        with complete(self.files.get(iteration)):
            return sorted(groups, key=_information_rank)

    def _cards(self, iteration: int, rows: Sequence[Mapping[str, Any]]) -> list[EpisodeCard]:
        """The lines of a group as episodes."""
        with complete(self.files[iteration]):
            sizes = Counter(turn.get("state_group") for row in rows for turn in row["turns"])
            return [episode_card(iteration, member, row, sizes) for member, row in enumerate(rows)]

    def _add(self, kept: dict[tuple[int, int], list[EpisodeCard]], iteration: int, mode: str | None = None) -> bool:
        """Adds one more group of an iteration, with a failure mode if one is given; returns whether there was one."""
        for rows in self._by_information(iteration):
            place = iteration, rows[0]["group"]
            if place in kept:
                continue
            cards = self._cards(iteration, rows)
            if mode is None or any(card["analysis"] and card["analysis"]["mode"] == mode for card in cards):
                kept[place] = cards
                return True
        return False


def spread(numbers: Sequence[int]) -> list[int]:
    """The same numbers, ordered so that every prefix spans the range: last, first, then middles.

    >>> spread([1, 2, 3, 4, 5])
    [5, 1, 3, 2, 4]
    """
    order = [len(numbers) - 1, 0] if len(numbers) > 1 else list(range(len(numbers)))
    gaps = [(0, len(numbers) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [numbers[place] for place in order]


def _information_rank(rows: Sequence[Mapping[str, Any]]) -> tuple[bool, bool, bool]:
    """Sort key of a group: replaced ones last, before them those with equal rewards, then those without tokens."""
    rewards = [row["reward"] for row in rows]
    tokens = any(turn.get("tokens") for row in rows for turn in row["turns"])
    return rows[0].get("replaced", False), max(rewards) - min(rewards) < 1e-9, not tokens


def _with_tokens_up_to(most: int, cards: list[EpisodeCard]) -> list[EpisodeCard]:
    """Removes tokens from the oldest episodes until at most ``most`` are left."""
    for card in reversed(cards):
        most -= sum(len(turn["tokens"] or ()) for turn in card["turns"])
        if most < 0:
            for turn in card["turns"]:
                turn["tokens"] = None
    return cards


@contextlib.contextmanager
def complete(file: Path | None) -> Iterator[None]:
    """Turns errors about missing fields into a :class:`RunDataError` that names the file."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise RunDataError(f"{file} is damaged: an episode in it lacks {error}; remove it") from error


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    try:
        yield from read_json_lines(file)
    except FileNotFoundError:
        return  # a resumed run has removed it
    except (OSError, ValueError) as error:
        raise RunDataError(f"{file} is damaged ({' '.join(str(error).split())}); remove it") from error


def episode_card(iteration: int, member: int, row: Mapping[str, Any], sizes: Mapping[int | None, int]) -> EpisodeCard:
    """A line as an episode. Fields that an older version did not write are None."""
    turns = row["turns"]
    return {
        "id": f"{iteration}/{row['group']}/{member}",
        "iteration": iteration,
        "group": row["group"],
        "member": member,
        "task_id": row["task_id"],
        "task_type": row.get("task_type", ""),
        "goal": row["goal"],
        "stop_reason": row["stop_reason"],
        "won": row.get("won", row["stop_reason"] == "won"),
        "reward": row["reward"],
        "replaced": row.get("replaced", False),
        "chosen_because": row.get("chosen_because"),
        "chosen_reason": row.get("chosen_reason"),
        "lessons": row.get("lessons", []),
        "usage": row.get("usage"),
        "initial_observation": row["initial_observation"],
        "analysis": _analysis(row["analysis"]) if row.get("analysis") else None,
        "whitening": row.get("whitening"),
        "turns": [_turn(turns, number, sizes) for number in range(len(turns))],
    }


def _analysis(row: Mapping[str, Any]) -> Analysis:
    return {
        "mode": row["mode"],
        "detail": row.get("detail", ""),
        "critical_step": row.get("critical_step"),
        "lesson": row.get("lesson", ""),
        "query": row.get("query", ""),
        "source": row.get("source", ""),
        "repaired": row.get("repaired", False),
    }


def _turn(turns: Sequence[Mapping[str, Any]], number: int, sizes: Mapping[int | None, int]) -> TurnCard:
    turn = turns[number]
    group = turn.get("state_group")
    return {
        "action": turn["action"],
        "reply": turn.get("reply"),
        "thoughts": turn.get("thoughts"),
        "usage": turn.get("usage"),
        "trial": turn.get("trial", 1),
        "format_error": turn["format_error"],
        "valid": turn.get("valid"),
        "observation": turn["observation"],
        "calls": turn.get("calls", []),
        "answer": turn.get("answer", ""),
        "rewards": turn.get("rewards", {}),
        "reward": turn.get("reward", {}),
        "predictions": [
            _prediction(turns, number, horizon) for horizon in range(1, len(turn.get("predictions", ())) + 1)
        ],
        "return_task": turn.get("return_task"),
        "return_predictive": turn.get("return_predictive"),
        "return_others": turn.get("return_others"),
        "return_modulated": turn.get("return_modulated"),
        "state_group": group,
        "state_group_size": None if group is None else sizes[group],
        "grouping_state": turn.get("grouping_state"),
        "advantage_state": turn.get("advantage_state"),
        "advantage_outcome": turn.get("advantage_outcome"),
        "advantage_estimate": turn.get("advantage_estimate"),
        "advantage": turn.get("advantage"),
        "tokens": turn.get("tokens"),
    }


def _prediction(turns: Sequence[Mapping[str, Any]], number: int, horizon: int) -> Prediction:
    """One prediction and the actual state ``horizon`` turns later: the observation, unless a state is recorded."""
    scores, text = turns[number]["scores"], turns[number]["predictions"][horizon - 1]
    score = scores[horizon - 1] if horizon <= len(scores) else None
    later = turns[number + horizon - 1] if number + horizon <= len(turns) else {}
    actual = later.get("state", later.get("observation")) if score is not None else None
    return {"horizon": horizon, "text": text, "actual": actual, "score": score}
