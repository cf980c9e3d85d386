"""Plays a text environment of skyrl-gym as SkyRL's generator does, with a random player in place of the model.

python examples/skyrl_env.py
python examples/skyrl_env.py --env RoleAgent/ALFWorld-v0
"""

# The trainer may be missing.
# pyright: reportMissingImports=false
import argparse
import random

import skyrl_gym
from random_player import reply

from roleagent.envs.adapters.skyrl import register, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="RoleAgent/Toy-v0", help="a Gymnasium id (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=4)
    options = parser.parse_args()
    register("world", env=options.env, horizon=None)
    dice, figures = random.Random(0), []
    for row in rows("world", env=options.env, limit=options.tasks):  # the rows of train.parquet
        env = skyrl_gym.make(row["env_class"], env_config={}, extras=row)
        messages, _ = env.init(row["prompt"])
        done = False
        while not done:
            messages.append({"role": "assistant", "content": reply(messages[-1]["content"], dice)})
            step = env.step(messages[-1]["content"])
            messages += step["observations"]
            done = step["done"]
        figures.append(env.get_metrics())
        print(f"{row['task_id']}: {len(messages)} messages, won {figures[-1]['won']:g}")
        env.close()
    means = {name: round(mean, 2) for name, mean in type(env).aggregate_metrics(figures).items()}
    print(f"mean of {len(figures)} episodes: {means}")


if __name__ == "__main__":
    main()
