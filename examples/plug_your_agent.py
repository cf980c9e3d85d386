"""Runs your own agent in ALFWorld and scores its predictions, without a trainer, a model or a download."""

import random

import gymnasium

from roleagent.envs import PredictedState, Tags

dice = random.Random(0)


def my_agent(observation: str, info: dict) -> str:
    """Replace this with your agent. It acts at random and predicts an empty place."""
    command = dice.choice(info["admissible_actions"])
    place = command.split(" to ")[-1]
    return f'<action>{command}</action><prediction h="1">On the {place}, you see nothing.</prediction>'


env = Tags(PredictedState(gymnasium.make("RoleAgent/ALFWorld-v0", split="valid_unseen")))
observation, info = env.reset(seed=0)
score, steps, predicted, over = 0.0, 0, [], False
while not over:
    observation, reward, terminated, truncated, info = env.step(my_agent(observation, info))
    score, steps, over = score + float(reward), steps + 1, terminated or truncated
    predicted += [prediction.score for prediction in info["prediction_scores"] if not prediction.absent]
similarity = sum(predicted) / max(1, len(predicted))
print(f"{info['task_id']}: {info['goal']}")
print(f"score {score:.0f} after {steps} steps; {len(predicted)} predictions, mean similarity {similarity:.2f}")
