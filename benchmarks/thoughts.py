"""Measures whether a model that thinks, acts and predicts acts better where it predicts better.

    python benchmarks/thoughts.py --models models/smollm2
    python benchmarks/thoughts.py --models models/qwen05 models/qwen15 --states 100 --threads 2 --out thoughts

World-In-Agent rewards predictions that come true. That helps only if, among the actions of one state, those with the
better prediction are the better ones. This program asks a pretrained model for several replies in the same states:
thoughts and an action with the shipped prompts (style ``window``, ``think: required``), and after it a prediction of
the next observation. States are those of an expert whose commands are wrong in one case of five, in ALFWorld (official
games where ``ALFWORLD_DATA`` names them) and in the toy kitchen.

Small models hardly follow these prompts. With ``--example`` the environment's example stands behind the rules, in the
form of replies and with predictions, and the form of a reply stands once more at the end of the prompt.

- *score*: of the prediction, by the similarity that training uses; an absent prediction has 0.
- *quality*: by how many commands the action shortens the shortest plan from the state, which both worlds compute
  exactly with full knowledge of the game. A reply that cannot be read is a command that does nothing.
- *r*: their correlation after the mean of the state is subtracted from both, with a bootstrap interval over states; of
  all replies, of those with a valid command, and given the command, too.

Replies are kept in ``--out``, a file per model and world: the same command goes on where it was stopped, and only asks
for what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from parts.thought_figures import Row, report, summarize
from rich.console import Console

from roleagent.agents.builders import EnvSplit
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.protocol import PolicyError
from roleagent.agents.rendering import Window
from roleagent.agents.rollout import Rollout
from roleagent.config import load
from roleagent.env_card import Instructions
from roleagent.envs.failures.command_noise import CommandNoise
from roleagent.envs.failures.scripted_episode import ScriptedEpisode
from roleagent.envs.wrappers.predicted_state import score_predictions
from roleagent.options import user_path
from roleagent.similarity import lms
from roleagent.slow_notice import waiting
from roleagent.types import Request

CONFIGS = Path(__file__).parents[1] / "configs"
WORLDS = {
    "alfworld": ("default.yaml", ["env.kwargs.data_dir=null", "env.kwargs.max_steps=50"]),
    "toy": ("toy.yaml", []),
}
PUBLISHED = ["prompt.style=window", "prompt.history=2", "prompt.think=required", "prompt.predictions=followup"]
NOISE = 0.2
_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


class FormLast(Window):
    """A prompt that ends with the form of a reply."""

    def _first_message(self, text: str) -> tuple[int, ...]:
        form = self.renderer.instructions(self.horizon, self.think, "", self.guide.form).strip()
        return super()._first_message(f"{text}\n\n{form}")


class State(NamedTuple):
    """A task, and the commands that lead to the state."""

    task_id: str
    commands: tuple[str, ...]


def open_world(name: str, options: argparse.Namespace) -> EnvSplit:
    """A world with the shipped prompts and a prediction of the next observation."""
    file, settings = WORLDS[name]
    limits = [
        f"rollout.action_tokens={options.action_tokens}",
        f"rollout.prediction_tokens={options.prediction_tokens}",
    ]
    context = [f"policy.context={options.context}", "prompt.horizon=1", "wia=on"]
    return EnvSplit.open(load(CONFIGS / file, [*settings, *PUBLISHED, *limits, *context]), "train")


def with_example(guide: Instructions) -> Instructions:
    """Instructions with their example, in which each reply is followed by a prediction that comes true."""
    lines = ["An example of another task:"]
    for step, after in zip(guide.example, [*guide.example[1:], None], strict=True):
        lines += [step.observation, f"Reply: <think>{step.thought}</think><action>{step.command}</action>"]
        if after is not None:
            lines.append(f'Prediction, when it is asked for: <prediction h="1">{after.observation}</prediction>')
    return replace(guide, rules="\n".join((guide.rules, "", *lines)))


def draw_states(world: EnvSplit, n: int, seed: int) -> list[State]:
    """One state each of ``n`` episodes of different tasks; more of them begin with the same."""
    tasks = np.random.default_rng(seed).permutation(list(world.task_split.task_ids))[:n]
    states = []
    for number, task in enumerate(map(str, tasks)):
        rng = np.random.default_rng([seed, number])
        episode = ScriptedEpisode(world.base, task, rng)
        CommandNoise((), rng).play(episode, NOISE, learn=True)
        commands = [turn.action for turn in episode.turns]
        states.append(State(task, tuple(commands[: int(rng.integers(len(commands)))])))
    return states


def restored(world: EnvSplit, state: State) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The commands up to a state, each with what came back; first of all the beginning, with no command."""
    yield "", *world.base.reset(options={"task_id": state.task_id})
    for command in state.commands:
        observation, _, _, _, info = world.base.step(command)
        yield command, observation, info


def steps_left(world: EnvSplit) -> int:
    """The length of the shortest plan."""
    plan = world.base.get_wrapper_attr("shortest_plan")()
    if plan is None:
        raise ValueError("no plan was found")
    return len(plan)


def ask(world: EnvSplit, rollout: Rollout, states: Sequence[State], replies: int, example: bool) -> Iterator[list[Row]]:
    """The replies to each of some states, all sampled side by side."""
    policy, config = rollout.policy, rollout.config
    talks = []
    for state in states:
        (_, observation, info), *steps = restored(world, state)
        style = FormLast if example else Window
        talk = style(rollout.renderer, 1, "required", observation, info, rollout.prompt.history, rollout.guide)
        for command, seen, what in steps:
            talk.advance((), (), command, seen, what)
        talks += [talk] * replies
    begun = time.perf_counter()
    requests = [
        Request(talk.action_prompt(), slot, config.action_tokens, rollout.action_stops)
        for slot, talk in enumerate(talks)
    ]
    actions = policy.generate(requests, 1.0)
    prompts = [talk.prediction_prompt(action) for talk, action in zip(talks, actions, strict=True)]
    asked = [
        Request(prompt, slot, config.prediction_tokens, rollout.prediction_stops) for slot, prompt in enumerate(prompts)
    ]
    predictions = policy.generate(asked, 1.0)
    policy.clear_cache()
    seconds = (time.perf_counter() - begun) / len(talks)
    for number, state in enumerate(states):
        rows = []
        for slot in range(number * replies, (number + 1) * replies):
            for _ in restored(world, state):
                pass
            before = steps_left(world)
            read = rollout.reader.read(rollout.renderer.read(actions[slot].token_ids))
            predicted = rollout.reader.read(rollout.text_of(actions[slot], predictions[slot])).predictions
            _, _, _, _, info = world.base.step(read.command)
            [[score]] = score_predictions([predicted], [info["state"]], lms)
            text = rollout.renderer.read(actions[slot].token_ids)
            thought = _THOUGHT.search(text)
            rows.append(
                {
                    "task_id": state.task_id,
                    "commands": state.commands,
                    "prompt_tokens": len(requests[slot].prompt_ids),
                    "reply": text,
                    "tokens": len(actions[slot].token_ids),
                    "cut": actions[slot].finish_reason == "length",
                    "thought_tokens": len(policy.encode(thought[1])) if thought else 0,
                    "error": read.error,
                    "command": read.command,
                    "valid": bool(info["valid_action"]),
                    "steps_before": before,
                    "steps_after": steps_left(world),
                    "prediction_reply": rollout.renderer.read(predictions[slot].token_ids),
                    "prediction": predicted[0],
                    "prediction_tokens": len(predictions[slot].token_ids),
                    "state": info["state"],
                    "score": score.score,
                    "seconds": seconds,
                }
            )
        yield rows


def collect(path: Path, world: EnvSplit, rollout: Rollout, options: argparse.Namespace) -> list[list[Row]]:
    """The replies to every state, as far as they are not in the file yet from the model."""
    states = draw_states(world, options.states, options.seed)
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    known = [State(rows[0]["task_id"], tuple(rows[0]["commands"])) for rows in found]
    if known != states[: len(known)] or any(len(rows) != options.replies for rows in found):
        raise ValueError(f"{path} has replies to other states: name another folder with --out")
    size = max(1, options.batch // options.replies)
    with path.open("a", encoding="utf-8") as file:
        while len(found) < len(states):
            rollout.policy.reseed(options.seed * 1_000_003 + len(found))
            part = states[len(found) : len(found) + size]
            with waiting(f"the replies in {len(part)} states, {len(found)} of {len(states)} so far"):
                asked = list(ask(world, rollout, part, options.replies, options.example))
            found += asked
            for rows in asked:
                print(json.dumps(rows, ensure_ascii=False), file=file, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models",
        type=user_path,
        nargs="+",
        help="folders in Hugging Face's format (default: $ROLEAGENT_MODELS/smollm2)",
    )
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--states", type=int, default=2, help="of each world (default 2)")
    parser.add_argument("--replies", type=int, default=4, help="in each state (default 4)")
    parser.add_argument("--batch", type=int, default=64, help="replies sampled side by side (default 64)")
    parser.add_argument(
        "--action-tokens", type=int, default=160, help="most tokens of thought and action (default 160)"
    )
    parser.add_argument("--prediction-tokens", type=int, default=96, help="most tokens of a prediction (default 96)")
    parser.add_argument("--example", action="store_true", help="show an example, and the form at the end")
    parser.add_argument("--context", type=int, default=2048, help="of the model (default 2048)")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=user_path, help="folder of the replies (default: they are not kept)")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    torch.set_num_threads(options.threads)
    models = options.models or [Path(os.environ.get("ROLEAGENT_MODELS", "models")).expanduser() / "smollm2"]

    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for path in models:
                generator = torch.Generator().manual_seed(options.seed)
                policy = HFPolicy.from_path(path, generator, options.dtype, options.context)
                results[path.name] = {}
                for name in options.worlds:
                    world = open_world(name, options)
                    file = folder / f"{path.name}-{name}{'-example' * options.example}.jsonl"
                    rollout = world.rollout(policy)
                    if options.example:
                        rollout.guide = with_example(rollout.guide)
                    states = collect(file, world, rollout, options)
                    results[path.name][name] = summarize(states)
                    print(path.name, name, json.dumps(results[path.name][name]), flush=True)
        except (PolicyError, ValueError, OSError) as error:
            print(f"thoughts.py: {error}", file=sys.stderr)
            return 2
    report(Console(width=150), results)
    print("RESULT", json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
