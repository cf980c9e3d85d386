"""The pictures of the method: what they show is what the code computes, and everybody can read them."""

import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
from programs import ROOT

from roleagent.curricula.failure_sampler import CurriculumSampler
from roleagent.learners.advantages import grpo, role_agent
from roleagent.learners.returns import EstimatorConfig, modulated_returns, predictive_returns, task_returns
from roleagent.similarity import lms
from roleagent.tasks.split import TaskSplit
from roleagent.types import Completion, Group, Prediction, PredictionScore, Task, Trajectory, Turn

SVG = "{http://www.w3.org/2000/svg}"
TASK = Task("RoleAgent/Toy-v0", "bring-egg-table-1")
GAMMA = EstimatorConfig().gamma


def picture(name):
    return ElementTree.parse(ROOT / "docs" / "pictures" / f"{name}.svg").getroot()


def named(name):
    return {text.get("id"): text.text for text in picture(name).iter(f"{SVG}text") if text.get("id")}


def turn(state, scores, reward, horizon=1):
    scores = tuple(PredictionScore(0, horizon, score) for horizon, score in scores.items())
    prediction = Prediction((), None, ("",) * horizon, scores)
    return Turn((), Completion((), (), "stop"), "look", "", state, prediction, {"task": reward})


def trajectory(*turns):
    return Trajectory(TASK, turns, True, False, "won")


def test_the_predictions_have_the_scores_that_the_picture_says():
    reported = named("turn")
    scores = {name: text for name, text in reported.items() if name.startswith("score-")}
    assert len(scores) == 5
    for name, text in scores.items():
        at, horizon = map(int, name.split("-")[1:])
        assert text == f"{lms(reported[f'predicted-{at}-{horizon}'], reported[f'state-{at + horizon}']):.2f}", name


def test_the_returns_are_modulated_as_the_picture_says():
    reported, texts = named("modulation"), named("turn")
    turns = []
    for at in (1, 2, 3):
        scores = {
            horizon: lms(texts[f"predicted-{at}-{horizon}"], texts[f"state-{at + horizon}"])
            for horizon in (1, 2)
            if f"predicted-{at}-{horizon}" in texts
        }
        turns.append(turn(None, scores, float(at == 3), horizon=2))
    episode = trajectory(*turns)
    alone = Group(TASK, (episode,))
    values = {
        "task": task_returns(episode, GAMMA),
        "predictive": predictive_returns(alone, EstimatorConfig())[0],
        "return": modulated_returns(alone, EstimatorConfig())[0],
    }
    assert reported == {
        f"{name}-{at}": f"{value:.3f}" for name, row in values.items() for at, value in enumerate(row, 1)
    }


def test_the_rollouts_have_the_advantages_that_the_picture_says():
    reported = named("states")
    episodes = []
    for i in range(3):
        turns = sum(name.startswith(f"place-{i}-") for name in reported)
        won = reported[f"outcome-{i}"] == "solved"
        rows = (
            turn(reported[f"place-{i}-{t}"], {1: float(reported[f"prediction-{i}-{t}"])}, float(won and t == turns - 1))
            for t in range(turns)
        )
        episodes.append(trajectory(*rows))
    group, config = Group(TASK, tuple(episodes)), EstimatorConfig()
    joint, outcome = role_agent(group, config), grpo(group, config)
    for i, row in enumerate(modulated_returns(group, config)):
        assert reported[f"outcome-advantage-{i}"] == f"{outcome[i][0]:+.2f}"
        for t, value in enumerate(row):
            assert reported[f"step-return-{i}-{t}"] == f"{value:.2f}"
            assert reported[f"advantage-{i}-{t}"] == f"{joint[i][t]:+.2f}"
            assert reported[f"state-advantage-{i}-{t}"] == f"{joint[i][t] - outcome[i][t]:+.2f}"


def test_the_next_tasks_have_the_probabilities_that_the_picture_says():
    reported = named("library")
    names = [reported[f"task-{i}"] for i in range(6)]
    nobody = SimpleNamespace()  # neither library nor analyst is asked
    task_split, rng = TaskSplit(TASK.env_id, "train", tuple(names)), np.random.default_rng(0)
    sampler = CurriculumSampler(
        task_split, nobody, nobody, rng, learnability=False, overlooked=0.0
    )  # the published rule
    sampler.weights = {name: weight for i, name in enumerate(names) if (weight := float(reported[f"weight-{i}"]))}
    assert [reported[f"p-{i}"] for i in range(6)] == [f"{p:.3f}" for p in sampler.probabilities()]
