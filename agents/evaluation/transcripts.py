"""The transcripts of an evaluation: every episode turn by turn, in a file beside its records.

A line of JSON is an episode, in those keys of a training run's log (:mod:`roleagent.learners.run.trajectory_log`) that
an evaluation has: ``group`` is the place of the task in the split, and ``member`` the repeat. An attempt's last line
counts. In addition an episode has

===============  ======================================================================================================
``usage``        of a prompted model: answers, tokens and seconds (:class:`~roleagent.agents.episode.Usage`)
``trials``       attempts at the task (Reflexion); ``trial`` of a turn counts them from 1
``error``        why it has no outcome, else ``""``
===============  ======================================================================================================

and a turn of a prompted model ``thoughts``, which a server returned beside its answer, and its ``usage``. Its ``reply``
is all that the model wrote since the turn before. ``tokens`` of a local policy are the sampled ones: text, kind, and
log-probability.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roleagent.agents.episode import EpisodeResult, after_step, short
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.policies.token_texts import decoder, token_texts
from roleagent.files import drop_torn_line, make_folder
from roleagent.types import ACTION, PREDICTION, Prediction, Trajectory, Turn

_ONE_TAG = re.compile(r"\s*<(\w+)>[^<]*</\1>\s*")


class TranscriptFile:
    """The transcripts beside a record file.

    Args:
        records: the path of the record file.
        done: episodes that it has already; with none, transcripts of an earlier evaluation are removed.
    """

    def __init__(self, records: Path, done: int):
        self.path = transcripts_of(records)
        make_folder(self.path.parent)
        if not done:
            self.path.unlink(missing_ok=True)
        self.path.touch()
        drop_torn_line(self.path)

    def append(self, episode: Mapping[str, Any]) -> None:
        """Adds an episode."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(episode) + "\n")


def transcripts_of(records: Path) -> Path:
    """The file of the transcripts of a record file.

    >>> transcripts_of(Path("evaluations/a.b.jsonl")).name
    'a.b.transcripts.ndjson'
    """
    return records.with_name(f"{records.name.removesuffix('.jsonl')}.transcripts.ndjson")


def read_transcripts(records: Path) -> list[dict[str, Any]]:
    """The episodes beside a record file, in the order of the split; none without a file. A partial line is skipped.

    Raises:
        ValueError: the file is damaged.
    """
    path = transcripts_of(records)
    found: dict[tuple[int, int], dict[str, Any]] = {}
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    row = json.loads(line)
                    found[row["member"], row["group"]] = row
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it") from error
    return [found[place] for place in sorted(found)]


def transcript(episode: Trajectory | EpisodeResult, place: int, repeat: int, policy: Policy | None) -> dict[str, Any]:
    """The line of an episode.

    Args:
        place: of its task in the split.
        repeat: of the split.
        policy: decodes the tokens of a trajectory.
    """
    line: dict[str, Any] = {"group": place, "member": repeat}
    if isinstance(episode, EpisodeResult):
        return line | {
            "task_id": episode.task_id,
            "task_type": episode.task_type,
            "goal": episode.goal,
            "stop_reason": episode.stop_reason,
            "won": episode.won,
            "reward": episode.reward,
            "initial_observation": episode.initial_observation,
            "turns": list(episode.turns),
            "usage": asdict(episode.usage) if episode.usage.answers else None,
            "trials": episode.trials,
            "error": episode.error,
        }
    assert policy is not None
    task = episode.task
    return line | {
        "task_id": task.task_id,
        "task_type": task.task_type,
        "goal": task.goal,
        "stop_reason": episode.stop_reason,
        "won": episode.success,
        "reward": episode.outcome,
        **({"lessons": [*episode.lessons]} if episode.lessons else {}),
        "initial_observation": episode.initial_observation,
        "turns": [{**played_turn(turn, policy), "tokens": _tokens(turn, policy)} for turn in episode.turns],
        "usage": None,
        "trials": 1,
        "error": "",
    }


def played_turn(turn: Turn, policy: Policy) -> dict[str, Any]:
    """What happened in a turn of a trajectory."""
    predicted = turn.prediction
    return {
        "action": turn.action,
        "reply": _reply(turn, policy),
        **after_step(turn.observation, turn.info, turn.rewards),
        "predictions": list(predicted.texts) if predicted else [],
        "scores": _scores(predicted) if predicted else [],
    }


def _scores(prediction: Prediction) -> list[float | None]:
    """A score, or None, for each text."""
    known = {score.horizon: short(score.score) for score in prediction.scores}
    return [known.get(horizon) for horizon in range(1, len(prediction.texts) + 1)]


def _reply(turn: Turn, policy: Policy) -> str | None:
    text = policy.decode(turn.completion.token_ids)
    plain = turn.info.get("format_error") is None and _ONE_TAG.fullmatch(text)
    return None if plain else text


def _tokens(turn: Turn, policy: Policy) -> list[tuple[str, int, float]]:
    """The sampled tokens of a turn."""
    sampled = [(ACTION, turn.completion, turn.prompt_ids)]
    if turn.prediction is not None and turn.prediction.completion is not None:
        sampled.append((PREDICTION, turn.prediction.completion, turn.prediction.prompt_ids))
    found: list[tuple[str, int, float]] = []
    for kind, completion, prompt in sampled:
        texts = token_texts(completion.token_ids, decoder(policy), prompt[-4:])
        found += [(text, kind, short(logprob)) for text, logprob in zip(texts, completion.logprobs, strict=True)]
    return found


__all__ = ["TranscriptFile", "played_turn", "read_transcripts", "transcript", "transcripts_of"]
