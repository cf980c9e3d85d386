"""Plays a list of tasks with a Gymnasium vector, one task per environment.

python examples/vector.py                   # in one process
python examples/vector.py --mode async      # each environment in its own process
"""

import argparse
import random
import time

import numpy as np
from gymnasium.vector import AutoresetMode

from roleagent.envs import PredictedState, Tags, make_vector


def reply(admissible: list[str], dice: random.Random) -> str:
    """Replace this with your model. It acts at random and predicts that nothing happens."""
    command = dice.choice(admissible or ["look"])  # WebShop and search list no commands
    return f"<action>{command}</action><prediction>Nothing happens.</prediction>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="RoleAgent/ALFWorld-v0")
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--envs", type=int, default=4, help="environments side by side (default: 4)")
    parser.add_argument("--tasks", type=int, default=12, help="number of tasks, from the split's start (default: 12)")
    options = parser.parse_args()

    # No automatic reset: the loop chooses the task of every episode.
    vector = make_vector(
        options.env,
        options.envs,
        options.mode,
        autoreset=AutoresetMode.DISABLED,
        wrappers=(PredictedState, Tags),
        timeout=120,
    )
    waiting = list(vector.task_split.task_ids[: max(options.tasks, options.envs)])
    playing = [waiting.pop(0) for _ in range(options.envs)]
    dice, begun, steps, won, predicted = random.Random(0), time.perf_counter(), 0, {}, []
    _, infos = vector.reset(options={"task_ids": playing})
    admissible = list(infos["admissible_actions"])
    while any(playing):
        replies = [reply(commands, dice) for commands in admissible]
        _, rewards, terminated, truncated, infos = vector.step(replies)
        admissible = list(infos["admissible_actions"])
        predicted += [score.score for scores in infos["prediction_scores"] for score in scores]
        steps += len(replies)
        over = np.logical_or(terminated, truncated)
        if not over.any():
            continue
        for number in np.flatnonzero(over):
            if playing[number]:
                won[playing[number]] = bool(rewards[number])
            playing[number] = waiting.pop(0) if waiting else ""
        # An idle environment gets a random task, because all environments take every step.
        tasks = [task or None for task in playing]
        _, fresh = vector.reset(options={"task_ids": tasks, "reset_mask": over})
        for number in np.flatnonzero(over):
            admissible[number] = fresh["admissible_actions"][number]
    vector.close()
    seconds = time.perf_counter() - begun
    print(f"{len(won)} tasks, {sum(won.values())} won; {steps} steps in {seconds:.1f} s")
    print(f"{len(predicted)} predictions scored, mean similarity {sum(predicted) / max(1, len(predicted)):.2f}")


if __name__ == "__main__":  # spawned processes import this file
    main()
