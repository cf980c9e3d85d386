"""What any number of processes do together for ``test_dealing.py``: deal episodes, update, save and load.

    RANK=0 WORLD_SIZE=3 MASTER_ADDR=… MASTER_PORT=… python tests/any_ranks.py FOLDER [FROM]

Each rank writes ``SIZE-ranks-N.pt`` there. ``FROM`` is another number of ranks, which has saved its learners there.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from tiny import qwen
from together import TRAININGS, learner_of, train, weights_of

from roleagent.agents.builders import EnvSplit
from roleagent.agents.rollout import RolloutStats
from roleagent.config import load
from roleagent.learners.batch import build_batch
from roleagent.learners.critic import open_critic
from roleagent.learners.dealing import play_groups
from roleagent.learners.engine.engine import Learner
from roleagent.learners.method import method_of
from roleagent.learners.run.ranks import Ranks
from roleagent.learners.update import prepared, update
from roleagent.types import Completion, Group, Prediction, Task, Trajectory, Turn

SAVED = [(name, 0) for name in ("fp32 0", "fp32 1", "fp32 2", "fp32 3", "bf16 1", "bf16 2", "bf16 3", "offload 2")]
SAVED += [("offload 3", 0), ("fp32 0", 4), ("bf16 2", 4), ("fp32 3", 4)]
UPDATES = {
    "groups": (),
    "own": ("loss.prediction_credit=own",),
    "imitate": ("loss.prediction_credit=imitate", "loss.imitated_turns=0", "env.id=RoleAgent/Toy-v0"),
    "none": ("loss.prediction_credit=none", "loss.kl=0.1"),
    "turns": ("optim.minibatch_turns=7", "prompt.style=window", "optim.epochs=2"),
    "tokens": ("loss.aggregation=token", "optim.epochs=2", "estimator.whiten=on"),
    "critic": ("method=ppo",),
    "stage 3": ("deepspeed.zero_stage=3", "loss.kl=0.1"),
}


def groups(style="transcript"):
    """Seven groups of three episodes of unequal lengths, always the same; one group teaches nothing."""
    rng = np.random.default_rng(7)
    made = []
    for number in range(7):
        task, trajectories = Task("RoleAgent/Toy-v0", f"task-{number}"), []
        for member in range(3):
            stream, turns = [1, 2, number + 3], []
            length = int(rng.integers(1, 6))
            for turn in range(length):
                prompt = tuple(stream if style == "transcript" else [1, 2, *stream[-4:]])
                said = tuple(map(int, rng.integers(5, 300, 4)))
                reply = Completion(said, (-0.5,) * 4, "stop")
                asked = (*prompt, *said, 4)
                answer = Completion(tuple(map(int, rng.integers(5, 300, 3))), (-0.5,) * 3, "stop")
                won = member == 0 and number and turn == length - 1
                prediction = Prediction(asked, answer, ("?",))
                rewards = {"task": float(won), "prediction": float(rng.random())}
                turns.append(Turn(prompt, reply, "look", "x", f"s{turn}", prediction, rewards, {"won": won}))
                stream += [*said, *map(int, rng.integers(5, 300, 2))]
            trajectories.append(Trajectory(task, tuple(turns), True, False, "won" if member == 0 else "lost"))
        made.append(Group(task, tuple(trajectories)))
    return made


def updates(ranks):
    """Two updates of dealt groups: their metrics, and the weights behind them."""
    for name, options in UPDATES.items():
        small = ("optim.micro_batch_tokens=60", "optim.lr=1e-3", "optim.warmup_steps=1", "optim.minibatches=2")
        config = load(overrides=["method=gigpo", "loss.kl=0", "loss.prediction_credit=advantage", *small, *options])
        policy = qwen(seed=3, context=128)
        reference = qwen(seed=4, context=128).model.requires_grad_(False) if config.loss.kl else None
        critic = open_critic(config, policy)
        learner = Learner(policy, config, config.optim.lr, reference)
        learner.critic = critic
        rollout = EnvSplit.open(config, "train").rollout(policy) if name == "imitate" else None
        own = ranks.share(groups(config.prompt.style))
        metrics = []
        for number in range(2):
            advantages = [method_of(config).estimate(group) for group in own]
            batch = build_batch(own, advantages, config, rollout, np.random.default_rng(0))
            orders = [np.random.default_rng((number, epoch)) for epoch in range(config.optim.epochs)]
            metrics.append(update(learner, prepared(learner, batch), orders))
        yield f"update {name}", {"metrics": metrics, "weights": weights_of(learner)}
        learner.close()
        if critic is not None:
            critic.close()


class Numbered:
    """A rollout whose episodes say which of this rank's they are."""

    def __init__(self):
        self.stats = RolloutStats()

    def play(self, task_ids, copies, temperature, progress=None):
        tasks = [Task("RoleAgent/Toy-v0", task_id) for task_id in task_ids]
        ended = [Trajectory(task, (), True, False, "lost", f"{number}") for number, task in enumerate(tasks)]
        # The environment fails in the third.
        return [
            Group(task, (one,) * (number != 2)) for number, (task, one) in enumerate(zip(tasks, ended, strict=True))
        ]


def episodes(ranks):
    """What a rank has of ten groups of five, and of three that go to the last rank."""
    ids = [f"task-{number}" for number in range(10)]
    for name, homes in (("in turn", None), ("to the last", [ranks.size - 1] * 3)):
        played = play_groups(ranks, Numbered(), ids[: 10 if homes is None else 3], 5, 1.0, homes=homes)
        found = [(group.task.task_id, [one.initial_observation for one in group.trajectories]) for group in played]
        yield f"episodes {name}", found


def saved(ranks, folder):
    """Learners after three updates, saved; and the two updates that follow."""
    for name, adapter in SAVED:
        learner = learner_of(*TRAININGS[name], adapter=adapter)
        train(learner, ranks, range(3))
        learner.save(folder / f"{name} {adapter} {ranks.size}")
        yield f"{name} {adapter}", continued(learner, ranks)


def loaded(ranks, folder, size):
    """The learners that another number of ranks has saved, saved again; and the two updates that follow."""
    for name, adapter in SAVED:
        learner = learner_of(*TRAININGS[name], adapter=adapter)
        learner.load(folder / f"{name} {adapter} {size}")
        learner.save(folder / f"{name} {adapter} {ranks.size}")
        yield f"{name} {adapter}", continued(learner, ranks)


def continued(learner, ranks):
    kept = weights_of(learner)
    train(learner, ranks, (3, 4))
    weights, steps = weights_of(learner), learner.steps
    learner.close()
    return {"kept": kept, "weights": weights, "steps": steps}


def main(folder, size=None):
    torch.set_num_threads(1)
    with Ranks.join() as ranks:
        if size is None:
            cases = [*episodes(ranks), *updates(ranks), *(saved(ranks, folder) if ranks.size == 2 else ())]
        else:
            cases = [*loaded(ranks, folder, size)]
        suffix = "" if size is None else f"-from-{size}"
        torch.save(dict(cases), folder / f"{ranks.size}-ranks{suffix}-{ranks.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
