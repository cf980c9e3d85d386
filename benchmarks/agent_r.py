"""Measures Agent-R's search: the cost of the world, restored states, model calls, splices and the rule judge.

    python benchmarks/agent_r.py
    python benchmarks/agent_r.py --trees 1000 --searched 200 --failures 100

A tree of random commands grows in every native environment. Each expansion restores the state of a node and plays
``width`` commands. The same expansions are made by replay, as without snapshots, and every result is compared. Each way
goes first in half of the trees. Times are CPU times of the world alone. The model calls are those of a search in the
toy kitchen.

Then the environment's expert with command noise is searched as a policy: good and bad paths are paired, the rule judge
cuts the bad ones, and the world plays every splice. ``kept_splices`` are those that keep the reward of their good path.
Each is played once more in a fresh environment, command by command: ``kept_that_replay``; the measurement fails if
there is none, or if one does not replay. ``judge_exact`` is the share
of scripted failures with a known step at which the rule judge cuts. ``trees`` is their number over all worlds.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

import roleagent  # noqa: F401 - registers the environments
from roleagent.agents.builders import EnvSplit, make_base
from roleagent.agents.rollout import Rollout
from roleagent.config import load
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.env_card import make_expert
from roleagent.envs.failures import play_failures, scripted_modes
from roleagent.envs.failures.command_noise import CommandNoise
from roleagent.envs.failures.scripted import ScriptedFailure
from roleagent.envs.restoring import RecordedStep, Restorer
from roleagent.envs.toy.env import CONTAINERS, PLACES, TOOLS
from roleagent.failures.verdicts import KINDS, Judge, JudgedPath, transition_point
from roleagent.learners.agent_r.data import RevisionData, TreeData
from roleagent.learners.agent_r.judges import ReflectionJudge
from roleagent.learners.agent_r.search import Node, Search, SearchStats
from roleagent.types import Completion, Request

WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ALFWorld, tiny rooms": ("RoleAgent/ALFWorld-v0", {"data_dir": "generated", "size": "tiny"}),
    "ALFWorld, standard rooms": ("RoleAgent/ALFWorld-v0", {"data_dir": "generated", "size": "standard"}),
    "WebShop": ("RoleAgent/WebShop-v0", {"data_dir": "generated"}),
    "search QA": ("RoleAgent/SearchQA-v0", {"data_dir": "generated"}),
    "TextCraft": ("RoleAgent/TextCraft-v0", {"data_dir": "generated"}),
    "toy kitchen": ("RoleAgent/Toy-v0", {}),
}
SPLICED = ("ALFWorld, standard rooms", "ALFWorld, tiny rooms", "WebShop", "TextCraft")
WIDTH, DEPTH = 4, 20  # as published


@dataclass
class Place:
    """A node of a random tree: how it was reached, what can be done there, and its snapshot."""

    steps: tuple[RecordedStep, ...]
    commands: Sequence[str]
    snapshot: Any


def expansions(restorer: Restorer, task_id: str, count: int, rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    """A random tree; yields what each expansion gave. The draws are the same with and without snapshots."""
    _, info = restorer.env.reset(options={"task_id": task_id})
    places = [Place((), info["admissible_actions"], restorer.save())]
    for _ in range(count):
        place = places[int(rng.integers(len(places)))]
        given = []
        for _ in range(WIDTH):
            commands = place.commands or ("look",)
            command = str(commands[int(rng.integers(len(commands)))]) if rng.random() < 0.95 else "nonsense"
            restorer.restore(place.snapshot, task_id, place.steps)
            text, reward, terminated, truncated, info = restorer.env.step(command)
            ended = bool(terminated or truncated)
            given.append((command, text, float(reward), ended, info["won"], info["state"]))
            if not ended and len(place.steps) + 1 < DEPTH:
                step = RecordedStep(command, text, float(reward), ended)
                places.append(Place((*place.steps, step), info["admissible_actions"], restorer.save()))
        yield tuple(given)


def measure_world(name: str, trees: int, count: int, seed: int) -> dict[str, float]:
    """Expansions per second by snapshot and by replay, and the differences between both."""
    env_id, arguments = WORLDS[name]
    restorers = [
        Restorer(gymnasium.make(env_id, disable_env_checker=True, **arguments), replay) for replay in (False, True)
    ]
    ids = restorers[0].env.get_wrapper_attr("task_split").task_ids
    for restorer in restorers:
        for task_id in ids[:trees]:  # games and pages are read once
            restorer.env.reset(options={"task_id": task_id})
    gc.collect()
    gc.freeze()  # else one collection walks through all libraries, in whose time it happens to fall
    seconds, different = [0.0, 0.0], 0
    for number in range(trees):
        grown: list[list[tuple[Any, ...]]] = [[], []]
        for mode in (0, 1) if number % 2 else (1, 0):  # neither always goes first
            rng = np.random.default_rng((seed, number))
            began = time.process_time()
            grown[mode] = list(expansions(restorers[mode], ids[number % len(ids)], count, rng))
            seconds[mode] += time.process_time() - began
        different += sum(one != other for one, other in zip(*grown, strict=True))
    total = trees * count
    return {
        "per_s": total / max(seconds[0], 1e-9),
        "per_s_replay": total / max(seconds[1], 1e-9),
        "mismatches": float(different),
    }


class RandomCommands:
    """A policy that knows the kitchen's commands and draws them; its tokens are bytes."""

    version, context_length, eos_id, end_ids = 0, 1 << 20, 256, frozenset({256})

    def __init__(self, seed: int):
        self.tokenizer = SimpleNamespace(chat_template=None)
        self._rng = np.random.default_rng(seed)
        self._names = (*CONTAINERS, *PLACES, *(tool for tool, _ in TOOLS.values()))

    def encode(self, text: str, after: str = "") -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token for token in token_ids if token != self.eos_id).decode("utf-8", "replace")

    def literal(self, text: str) -> str:
        return text

    def single_token(self, text: str) -> None:
        return None

    def clear_cache(self) -> None:
        """There is none."""

    def offload(self) -> None:
        """There is nothing to free."""

    def sync(self, weights: object, version: int) -> None:
        """There are no weights."""

    def reseed(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        commands = [f"go to {name}" for name in self._names] + [f"open {name}" for name in CONTAINERS] + ["look"]
        drawn = self._rng.integers(len(commands), size=len(requests))
        replies = [(*self.encode(f"<action>{commands[int(place)]}</action>"), self.eos_id) for place in drawn]
        return [Completion(reply, (0.0,) * len(reply), "stop") for reply in replies]


def measure_calls(trees: int, seed: int) -> SearchStats:
    """Searches tasks of the toy kitchen side by side, as published: 8 simulations, width 4."""
    overrides = ["method=agent_r", "env.id=RoleAgent/Toy-v0", "env.train_split=train", "env.kwargs={max_steps: 20}"]
    split = EnvSplit.open(load(None, overrides), "train")
    search = Search.open(split, RandomCommands(seed))
    rngs = [np.random.default_rng((seed, number)) for number in range(trees)]
    search.search(split.task_split.task_ids[:trees], rngs)
    return search.stats


class NoisyExpert(RandomCommands):
    """A policy whose replies are the expert's command, or, at a rate, a slip in its place.

    Attributes:
        env: of the world that is searched.
        nodes: where each prompt stands in its tree.
    """

    rate = 0.6

    def __init__(self, seed: int, env: gymnasium.Env):
        super().__init__(seed)
        self.env, self.nodes = env, dict[tuple[int, ...], Node]()
        self._noise = CommandNoise((), self._rng)

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        found = []
        for request in requests:
            node, offered = self.nodes[request.prompt_ids], {}
            for one in node.ancestors():
                offered |= dict.fromkeys(one.info["admissible_actions"])
            admissible = node.info["admissible_actions"]
            command = self._noise.replace(self._right(node), self.rate, node.command, admissible, offered)
            reply = (*self.encode(f"<action>{command}</action>"), self.eos_id)
            found.append(Completion(reply, (0.0,) * len(reply), "stop"))
        return found

    def _right(self, node: Node) -> str:
        """What the expert does behind a path that it has seen."""
        root = [*node.ancestors()][-1]
        expert = make_expert(self.env, self._rng)
        expert.reset(root.info["goal"], root.observation)
        for step in node.path():
            expert.observe(step.command, step.observation)
        return expert.act()


class ExpertSearch(Search):
    """A search that shows its policy the node of every prompt."""

    def conversation(self, rollout: Rollout, node: Node) -> Any:
        found = super().conversation(rollout, node)
        self.rollout.policy.nodes[tuple(found.action_prompt())] = node  # type: ignore[attr-defined]
        return found


def measure_splices(name: str, trees: int, seed: int) -> dict[str, float]:
    """Searches tasks, splices what the rule judge cuts, and replays what is kept."""
    env_id, arguments = WORLDS[name]
    overrides = ["method=agent_r", f"env.id={env_id}", "env.train_split=train", f"env.kwargs={json.dumps(arguments)}"]
    split = EnvSplit.open(load(None, [*overrides, "options.search.simulations=4"]), "train")
    policy = NoisyExpert(seed, split.base.unwrapped)
    search = ExpertSearch.open(split, policy)
    judge, data = ReflectionJudge(RuleAnalyst()), None
    made: list[TreeData] = []
    for first in range(0, trees, 16):
        ids = split.task_split.task_ids[first : min(first + 16, trees)]
        rngs = [[np.random.default_rng((seed, stream, first + n)) for n in range(len(ids))] for stream in (0, 1)]
        data = data or RevisionData(split, policy, judge, None, 0.5)
        made += data.make(search.search(ids, rngs[0]), rngs[1])
        policy.nodes.clear()
    counts = {key: sum(one.counts[key] for one in made) for key in ("pairs", "splices", "splice_false")}
    counts |= {key: sum(one.counts[f"splice_{key}"] for one in made) for key in ("same", "valid")}
    for name in {name for one in made for name in one.counts if name.startswith("bad_steps/")}:
        counts[name] = sum(one.counts[name] for one in made)
    env, kept, equal = make_base(split.config, "train"), 0, 0
    for example in (one for tree in made for one in tree.examples if one.part == "revision"):
        env.reset(options={"task_id": example.task_id})
        outcome, kept = 0.0, kept + 1
        for command, _, _ in example.text["steps"]:
            if not command.startswith("revise["):
                outcome += env.step(command)[4]["rewards"].get("task", 0.0)
        equal += abs(outcome - example.text["outcome"]) < 1e-9
    return {**counts, "kept": kept, "replay": equal, "without_good": sum(one.counts["without_good"] for one in made)}


def by_bad_steps(found: dict[str, float]) -> str:
    """The shares of true splices behind 1, 2, 3, 4 to 6 and more bad steps."""
    shown = []
    for low, high in ((1, 1), (2, 2), (3, 3), (4, 6), (7, DEPTH)):
        of = {
            truth: sum(found.get(f"bad_steps/{steps}/{truth}", 0) for steps in range(low, high + 1))
            for truth in ("same", "valid", "false")
        }
        if total := sum(of.values()):
            steps = str(low) if low == high else f"{low}-{high}"
            shown.append(f"{steps}: {of['same'] / total:.0%} ({1 - of['false'] / total:.0%}) of {total:.0f}")
    return "; ".join(shown)


def measure_judge(judge: Judge, failures: Sequence[ScriptedFailure]) -> dict[str, float]:
    """A judge on episodes that failed by one known mistake; those without a single wrong step are passed over.

    Returns:
        ``judged`` episodes; of them the shares ``exact`` (the transition point is the mistake), ``within_one`` and
        ``undecided`` (no bad step); of all verdicts the shares ``good``, ``bad``, ``uncertain`` and ``unread``.
    """
    known = [failure for failure in failures if failure.step is not None]
    edges = count()
    paths = [JudgedPath(one.trajectory, 0, tuple(islice(edges, len(one.trajectory.turns)))) for one in known]
    found = judge.judge(paths)
    points = [transition_point(0, verdicts) for verdicts in found]
    misses = [abs(point - 1 - (one.step or 0)) for point, one in zip(points, known, strict=True) if point is not None]
    said = [verdict for verdicts in found for verdict in verdicts]
    shares = {kind: sum(verdict.kind == kind for verdict in said) / max(1, len(said)) for kind in KINDS}
    n = max(1, len(known))
    return {
        "judged": float(len(known)),
        "exact": sum(miss == 0 for miss in misses) / n,
        "within_one": sum(miss <= 1 for miss in misses) / n,
        "undecided": 1 - len(misses) / n,
        **shares,
        "unread": sum(verdict.source == "fallback" for verdict in said) / max(1, len(said)),
    }


def measure_rules(name: str, count: int, seed: int) -> dict[str, float]:
    """The rule judge on scripted failures, ``count`` of each mode."""
    env_id, arguments = WORLDS[name]
    env = gymnasium.make(env_id, disable_env_checker=True, **arguments)
    failures = [
        failure
        for place, mode in enumerate(scripted_modes(env))
        for failure in play_failures(env, mode, count, np.random.default_rng((seed, place)))
    ]
    return measure_judge(ReflectionJudge(RuleAnalyst()), failures)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=60, help="random trees, over all worlds (default: %(default)s)")
    parser.add_argument("--expansions", type=int, default=100, help="of each tree (default: %(default)s)")
    parser.add_argument("--searched", type=int, default=80, help="trees that are spliced, per world (default: 80)")
    parser.add_argument("--failures", type=int, default=6, help="scripted ones of each mode (default: 6)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: %(default)s)")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {}
    mismatches = 0.0
    for name in WORLDS:
        measured = measure_world(name, max(1, options.trees // len(WORLDS)), options.expansions, options.seed)
        mismatches += measured["mismatches"]
        rates = f"{measured['per_s']:>9,.0f} expansions/s by snapshot, {measured['per_s_replay']:>7,.0f} by replay"
        print(f"{name:<26}{rates}, {measured['mismatches']:.0f} mismatches", flush=True)
        if name == "ALFWorld, standard rooms":
            result |= {"expansions_per_s_world": round(measured["per_s"])}
            result |= {"expansions_per_s_replay": round(measured["per_s_replay"])}
    stats = measure_calls(8, options.seed)
    sequential, batched = stats.requests / stats.trees, stats.calls / stats.trees
    print(
        f"a tree asks for {sequential:.0f} replies; 8 trees side by side make {batched:.1f} calls each; "
        f"UCT decided {stats.uct_share:.1%} of the selections"
    )
    result |= {"calls_per_tree_sequential": round(sequential), "calls_per_tree": round(batched, 1)}
    result |= {"uct_share": round(stats.uct_share, 3)}
    total: dict[str, float] = {}
    judged = exact = 0.0
    for name in SPLICED:
        found = measure_splices(name, options.searched, options.seed)
        total = {key: total.get(key, 0) + number for key, number in found.items()}
        rules = measure_rules(name, options.failures, options.seed)
        judged, exact = judged + rules["judged"], exact + rules["judged"] * rules["exact"]
        shares = [found[key] / max(1, found["splices"]) for key in ("same", "valid", "splice_false")]
        print(
            f"{name:<26}{found['splices']:>5.0f} splices: same {shares[0]:.0%}, valid {shares[1]:.0%}, false "
            f"{shares[2]:.0%}; {found['replay']:.0f} of {found['kept']:.0f} kept ones replay; rule judge exact in "
            f"{rules['exact']:.1%}, within one step in {rules['within_one']:.1%} of {rules['judged']:.0f}",
            flush=True,
        )
        print(f"{'':<26}same (same or valid) by the number of bad steps: {by_bad_steps(found)}", flush=True)
        if name == SPLICED[0]:
            result |= {"false_splice_share": round(shares[2], 3)}
    result |= {"kept_splices": int(total["kept"]), "kept_that_replay": int(total["replay"])}
    result |= {"judge_exact": round(exact / max(1, judged), 3)}
    result |= {"trees": options.trees, "replay_mismatches": int(mismatches)}
    print("RESULT", json.dumps(result))
    return 1 if mismatches or not total["kept"] or total["kept"] != total["replay"] else 0


if __name__ == "__main__":
    sys.exit(main())
