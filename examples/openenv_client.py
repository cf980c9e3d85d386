"""Plays a served environment, with Gymnasium and with OpenEnv's client.

roleagent serve RoleAgent/ALFWorld-v0 --port 8000          # in one terminal
python examples/openenv_client.py http://127.0.0.1:8000    # in another
"""

import argparse
import random

from openenv.core import GenericEnvClient

from roleagent.envs import PredictedState, RemoteEnv, Tags


def as_gymnasium(url: str, dice: random.Random) -> None:
    """Plays an episode as a Gymnasium environment, with wrappers."""
    env = Tags(PredictedState(RemoteEnv(url)))
    _, info = env.reset(seed=0)
    score, steps, over, predicted = 0.0, 0, False, 0
    while not over:
        command = dice.choice(info["admissible_actions"] or ["look"])
        reply = f"<action>{command}</action><prediction>Nothing happens.</prediction>"
        _, reward, terminated, truncated, info = env.step(reply)
        predicted += len(info["prediction_scores"])
        score, steps, over = score + float(reward), steps + 1, terminated or truncated
    print(f"Gymnasium: {info['task_id']}: score {score:g} after {steps} steps, {predicted} predictions scored")
    env.close()


def as_openenv(url: str, dice: random.Random) -> None:
    """Plays an episode with OpenEnv's own client."""
    with GenericEnvClient(base_url=url).sync() as client:
        result = client.reset(seed=0)
        while not result.done:
            commands = result.observation["info"]["admissible_actions"] or ["look"]
            result = client.step({"command": dice.choice(commands)})
        print(f"OpenEnv: {client.state()['task_id']}: reward {result.reward:g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the address that roleagent serve prints")
    url = parser.parse_args().url
    as_gymnasium(url, random.Random(0))
    as_openenv(url, random.Random(0))


if __name__ == "__main__":
    main()
