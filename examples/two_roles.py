"""Runs both roles in the toy kitchen, with one policy and with two, without a trainer, a model or a download.

A policy is a function (observation, info) -> reply. ``observation["asks"]`` names the kind of question,
``observation["text"]`` contains it, and ``info`` has the same content as data. ``speaking`` turns a language model, a
function text -> text, into a policy:

    model = lambda text: client.chat.completions.create(...).choices[0].message.content
    play(speaking(model), speaking(another_model), seed=0, games=12)
"""

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from roleagent.agents.dual_role import env as dual_role
from roleagent.curricula import RuleAnalyst
from roleagent.envs.toy.env import TOOLS
from roleagent.envs.toy.expert import ToyExpert
from roleagent.failures.analyst_format import write_reflection, write_selection

Policy = Callable[[dict, dict], str]


class Cook:
    """An expert that forgets to heat, cool or clean an object until it has failed twice because of it."""

    def __init__(self):
        self.expert, self.command, self.failures = ToyExpert(), "", Counter()

    def __call__(self, observation: dict, info: dict) -> str:
        if info["turn"]:
            self.expert.observe(self.command, info["state"])
        else:
            last = info.get("last_game")
            if last is not None and not last.won:
                self.failures[last.task.task_type] += 1
            forgets = info["task_type"] in TOOLS and self.failures[info["task_type"]] < 2
            goal = re.sub(r"\ba \w+ (?=\w+ on)", "the ", info["goal"]) if forgets else info["goal"]
            self.expert.reset(goal, info["state"])
        self.command = self.expert.act()
        place = re.match(r"go to (.*)", self.command)
        predicted = f"You arrive at {place[1]}. You see nothing. You carry nothing." if place else "Nothing happens."
        return f'<action>{self.command}</action><prediction h="1">{predicted}</prediction>'


def critic(observation: dict, info: dict) -> str:
    """The environment role by an analyst, from ``info``."""
    analyst = RuleAnalyst()
    if observation["asks"] == "reflection":
        return write_reflection(analyst.reflect([info["trajectory"]])[0])
    return write_selection(analyst.select([info["reflection"]], [info["candidates"]])[0])


def reader(observation: dict, info: dict) -> str:
    """The environment role from the text alone: it blames the last step and selects the last candidate."""
    if observation["asks"] == "reflection":
        step, command = re.findall(r"^(\d+)> (.*)$", observation["text"], re.MULTILINE)[-1]
        return (
            f'<reflection>\nDOMINANT_TYPE: premature_give_up\nDETAIL: the game ended with "{command}".\n'
            f"CRITICAL_STEP: {step}\nCORE_LESSON: Try something else.\nRETRIEVAL_QUERY: {command}\n</reflection>"
        )
    number = re.findall(r"^(\d+)\. ", observation["text"], re.MULTILINE)[-1]
    return f"<selected_tasks>\n{number}: it has waited longest\n</selected_tasks>"


def one_mind(cook: Policy, analyst: Policy) -> Policy:
    """One policy for both roles."""
    return lambda observation, info: (cook if observation["asks"] == "action" else analyst)(observation, info)


def speaking(model: Callable[[str], str]) -> Policy:
    """A language model as a policy for either role. The agent's questions get a description of the format."""

    def policy(observation: dict, info: dict) -> str:
        if observation["asks"] != "action":
            return model(observation["text"])
        form = '<action>your command</action><prediction h="1">what you will see then</prediction>'
        return model(f"{observation['text']}\n\nCommands: {', '.join(info['admissible_actions'])}\nAnswer: {form}")

    return policy


def play(agent: Policy, world: Policy, seed: int, games: int) -> None:
    """Plays an episode and prints the games and rewards."""
    env = dual_role(game="RoleAgent/Toy-v0", games=games, history=10, judge=RuleAnalyst())
    env.reset(seed=seed)
    policies = {"agent": agent, "world": world}
    rewards: dict[str, float] = defaultdict(float)
    terms: dict[str, float] = defaultdict(float)
    for side in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        rewards[side] += reward
        for name, term in info["rewards"].items():
            terms[name] += term
        env.step(None if terminated or truncated else policies[side](observation or {}, info))
    dual: Any = env.unwrapped
    for game in dual.played:
        outcome = "won" if game.won else "failed"
        steps = f"{len(game.turns)} step{'s' * (len(game.turns) != 1)}"
        print(f"game {game.number + 1}, {game.origin}: {game.task.goal}: {outcome} after {steps}")
        if game.reflection is not None:
            print(f"    world: {game.reflection.mode}: {game.reflection.detail}")
            print(f"    lesson: {game.reflection.lesson}")
        if game.selection is not None:
            print(f"    world selects: {', '.join(game.chosen) or 'nothing'}")
    for side, names in (("agent", ("task", "prediction")), ("world", ("valid", "true", "useful"))):
        shares = ", ".join(f"{name} {terms[name]:.2f}" for name in names)
        print(f"{side}: reward {rewards[side]:.2f} (terms: {shares})")
    env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--games", type=int, default=12, help="games in the episode (default: 12)")
    options = parser.parse_args()
    print("--- one policy in both roles ---")
    both = one_mind(Cook(), critic)
    play(both, both, options.seed, options.games)
    print("\n--- two policies ---")
    play(Cook(), reader, options.seed, options.games)


if __name__ == "__main__":
    main()
