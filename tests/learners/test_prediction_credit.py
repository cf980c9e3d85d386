"""What trains predictions: four rules, their gradients against plain forward passes, and what they leave alone."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from estimators import estimator
from tiny import qwen
from together import watched_gradients

from roleagent.agents.builders import EnvSplit
from roleagent.config import ConfigError, load
from roleagent.learners.advantages import prediction_advantages, prediction_mean
from roleagent.learners.batch import build_batch, whiten, with_true_states
from roleagent.learners.critic import Critic, critic_advantages
from roleagent.learners.engine.engine import Engine, Learner
from roleagent.learners.loss import PREDICTION_WEIGHT
from roleagent.learners.method import method_of
from roleagent.learners.run.conflicts import check_learning
from roleagent.learners.update import prepared, update
from roleagent.types import (
    ACTION,
    CONTEXT,
    PREDICTION,
    Completion,
    Group,
    Prediction,
    PredictionScore,
    Task,
    Trajectory,
    Turn,
)

TASK = Task("RoleAgent/Toy-v0", "boil-egg-1")
FIRST = "You are in a kitchen. There are: basket, cupboard 1, drawer 2."
FAILED, CLOSED, OPEN = "Nothing happens.", "You arrive at cupboard 1. It is closed.", "You see egg, potato."
RULES = ("advantage", "own", "imitate", "none")
WEIGHT = PREDICTION_WEIGHT
RNG = np.random.default_rng(0)
# Action, what came, what was predicted, its score. The lost episode knows that its first command fails.
LOST = [("take egg", FAILED, FAILED, 1.0), ("go to stove", FAILED, CLOSED, 0.2), ("heat egg", FAILED, OPEN, 0.1)]
WON = [("go to cupboard 1", CLOSED, OPEN, 0.4), ("open cupboard 1", OPEN, OPEN, 1.0)]


def configured(*options):
    base = ["env.id=RoleAgent/Toy-v0", "method=gigpo", "loss.kl=0"]
    small = ["loss.imitated_turns=0", "optim.minibatches=1", "optim.lr=1e-2", "optim.max_grad_norm=1e9"]
    small.append("optim.warmup_steps=1")
    return load(overrides=[*base, *small, "rollout.prediction_tokens=60", *options])


def reply(policy, text):
    ids = tuple(policy.encode(text))
    return Completion(ids, (-0.5,) * len(ids), "stop")


def episode(rollout, steps, won, task=TASK):
    policy, conversation = rollout.policy, rollout.open(FIRST, {"goal": "put a hot egg on the table"})
    state, turns = FIRST, []
    for number, (command, came, predicted, score) in enumerate(steps):
        prompt, action = conversation.action_prompt(), reply(policy, f"<action>{command}</action>")
        asked = conversation.prediction_prompt(action)
        answer = reply(policy, f'<prediction h="1">{predicted}</prediction>')
        prediction = Prediction(asked, answer, (predicted,), (PredictionScore(number, 1, score, not predicted),))
        last = number == len(steps) - 1
        info = {"state": came, "valid_action": came != FAILED, "won": won and last, "goal": "put a hot egg"}
        rewards = {"task": float(won and last)}
        text = "A code." if came is None else came  # a state that nobody could know
        turns.append(Turn(prompt, action, command, text, state, prediction, rewards, info))
        conversation.advance((*prompt, *action.token_ids), action.token_ids, command, text, info)
        state = came
    return Trajectory(task, tuple(turns), True, False, "won" if won else "lost", FIRST)


class Stage:
    """A small policy that learns by a rule, and what it played."""

    def __init__(self, *options, episodes=((LOST, False), (WON, True)), groups=1):
        self.config = configured(*options)
        self.policy = qwen(context=512)
        self.rollout = EnvSplit.open(self.config, "train").rollout(self.policy)
        reference = qwen(context=512, seed=7).model.requires_grad_(False) if self.config.loss.kl else None
        self.learner = Learner(self.policy, self.config, self.config.optim.lr, reference)
        self.reference = reference
        one = Group(TASK, tuple(episode(self.rollout, steps, won) for steps, won in episodes))
        self.groups = [one] * groups
        self.credits = [method_of(self.config).estimate(group) for group in self.groups]
        self.batch = build_batch(self.groups, self.credits, self.config, self.rollout, np.random.default_rng(0))
        # The sampler is the learner; nobody sampled a state that came.
        rows = zip(self.batch.segments, self.learner.score(self.batch.segments, 1.0), strict=True)
        imitates = self.config.loss.prediction_credit == "imitate"
        silent = (CONTEXT, PREDICTION) if imitates else (CONTEXT,)
        self.batch.columns["sampler"] = [np.where(np.isin(one.token_kind, silent), 0.0, row) for one, row in rows]

    def update(self):
        return update(self.learner, prepared(self.learner, self.batch), [np.random.default_rng(0)])

    def gradients(self):
        found = {}
        with watched_gradients(self.learner, found):
            self.update()
        return found

    def loglikelihood(self, prompt, text, model=None):
        ids = self.policy.encode(text) if isinstance(text, str) else list(text)
        logits = (model or self.policy.model)(input_ids=torch.tensor([[*prompt, *ids]])).logits[0]
        scores = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        return scores.gather(1, torch.tensor(ids)[:, None])[:, 0]

    def expected(self, kl=0.0):
        model, rule = self.policy.model, self.config.loss.prediction_credit
        total, count = torch.zeros(()), sum(len(group.trajectories) for group in self.groups)
        for group, one in zip(self.groups, self.credits, strict=True):
            for trajectory, row, own in zip(group.trajectories, one.values, one.prediction, strict=True):
                tokens = {ACTION: [], PREDICTION: []}
                for turn, advantage, score in zip(trajectory.turns, row, own, strict=True):
                    action = self.loglikelihood(turn.prompt_ids, turn.completion.token_ids)
                    tokens[ACTION].append(advantage * action)
                    if kl:
                        with torch.no_grad():
                            held = self.loglikelihood(turn.prompt_ids, turn.completion.token_ids, self.reference)
                        away = held - action
                        tokens[ACTION][-1] = tokens[ACTION][-1] - kl * (away.exp() - away - 1)
                    text = f'<prediction h="1">{turn.info["state"]}</prediction>'
                    shown = turn.prediction.completion.token_ids if rule in ("advantage", "own") else text
                    worth = {"advantage": advantage, "own": score, "imitate": 1.0, "none": 0.0}[rule]
                    tokens[PREDICTION].append(worth * self.loglikelihood(turn.prediction.prompt_ids, shown))
                for kind, weight in ((ACTION, 1.0), (PREDICTION, WEIGHT)):
                    total = total - weight * torch.cat(tokens[kind]).mean() / count
        names, weights = zip(*model.named_parameters(), strict=True)
        return dict(zip(names, torch.autograd.grad(total, weights), strict=True))


def assert_same(found, expected):
    assert found.keys() == expected.keys() and any(value.abs().max() > 1e-4 for value in expected.values())
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=2e-6, rtol=1e-4, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("style", ["transcript", "window"])
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_has_its_gradient_however_the_batch_is_split(rule, style):
    options = [f"loss.prediction_credit={rule}", f"prompt.style={style}"]
    whole = Stage(*options)
    expected = whole.expected()
    assert_same(whole.gradients(), expected)
    assert_same(Stage(*options, "optim.micro_batch_tokens=60").gradients(), expected)


@pytest.mark.parametrize("method", ["grpo", "role_agent", "reinforce_pp", "ppo"])
@pytest.mark.parametrize("rule", ["own", "imitate"])
def test_the_estimator_does_not_matter_to_predictions(rule, method):
    options = [f"method={method}", f"loss.prediction_credit={rule}", "prompt.style=window"]
    stage, alone = Stage(*options), Stage(f"loss.prediction_credit={rule}", "prompt.style=window")
    batch = stage.batch
    if method == "ppo":
        critic = Engine(Critic(qwen(context=512).model, shares=True), stage.config, 1e-3, 0)
        batch = critic_advantages(batch, critic, stage.config)
    batch = whiten(batch, True)
    for segment, row, other in zip(
        batch.segments, batch.columns["advantages"], alone.batch.columns["advantages"], strict=True
    ):
        kept = segment.token_kind == PREDICTION
        assert row[kept].tolist() == other[kept].tolist()
        assert rule == "own" or not row[kept].any()


def test_imitation_is_not_pulled_to_the_reference():
    stage = Stage("loss.prediction_credit=imitate", "loss.kl=0.5")
    expected = stage.expected(kl=0.5)
    assert_same(stage.gradients(), expected)


def test_statistics_are_over_sampled_tokens_alone():
    kl = "loss.kl=0.1"
    plain, imitating = Stage("loss.prediction_credit=none", kl), Stage("loss.prediction_credit=imitate", kl)
    for stage in (plain, imitating):  # a sampler that is off by 0.4 nats on action tokens
        pairs = list(zip(stage.batch.segments, stage.batch.columns["sampler"], strict=True))
        stage.batch.columns["sampler"] = [row - 0.4 * (segment.token_kind == ACTION) for segment, row in pairs]
    without, found = plain.update(), imitating.update()
    assert without["clip_fraction"] > 0 and without["mismatch"] == pytest.approx(0.4, abs=1e-5)
    for name in ("tokens", "clip_fraction", "ratio", "kl", "logprob_gap", "entropy", "mismatch", "importance"):
        assert found[name] == pytest.approx(without[name], rel=1e-4), name
    imitated = sum((segment.token_kind == PREDICTION).sum() for segment in imitating.batch.segments)
    assert found["imitated_tokens"] == imitated > 0
    assert {"prediction_loss", "imitated_tokens"} == found.keys() - without.keys()


def test_where_all_ended_alike_states_are_imitated_and_nothing_else_is_said():
    lost = ((LOST, False), (LOST, False))
    assert "tokens" not in Stage("loss.prediction_credit=none", episodes=lost).update()
    stage = Stage("loss.prediction_credit=imitate", episodes=lost)
    expected = stage.expected()
    assert_same(stage.gradients(), expected)
    metrics = Stage("loss.prediction_credit=imitate", episodes=lost).update()
    assert metrics["tokens"] == 0 and metrics["imitated_tokens"] > 0 and metrics["prediction_loss"] > 0
    assert not {"entropy", "logprob_gap", "mismatch", "ratio"} & set(metrics), "no sampled token was trained"


def imitated(stage, trajectory):
    turns = with_true_states(trajectory, stage.rollout, 0, RNG).turns
    decode = stage.policy.decode
    return [None if turn.prediction is None else decode(turn.prediction.completion.token_ids) for turn in turns]


def test_states_that_came_are_tokenized_as_in_the_warm_start():
    stage = Stage("loss.prediction_credit=imitate", "prompt.horizon=2", "prompt.style=window")
    lost, _ = stage.groups[0].trajectories
    two = f'<prediction h="1">{FAILED}</prediction><prediction h="2">{FAILED}</prediction>'
    assert [text.removesuffix("<|end|>") for text in imitated(stage, lost)] == [two, two, two[: len(two) // 2]]


def test_states_that_came_are_imitated_where_nothing_was_sampled():
    stage = Stage("loss.prediction_credit=imitate")
    lost, _ = stage.groups[0].trajectories
    unasked = replace(lost, turns=tuple(replace(turn, prediction=None) for turn in lost.turns))
    assert imitated(stage, unasked) == [None] * len(lost.turns)  # it was played with predictions, and these had no room
    sampled = imitated(stage, lost)
    stage.rollout = EnvSplit.open(stage.config, "train").rollout(stage.policy, plain=True)
    assert imitated(stage, unasked) == sampled != [None] * len(lost.turns)


def predicting(state, *scores, horizons=2):
    """A turn in a state with the scores of horizons 1, 2, …; None: it could not be scored."""
    known = tuple(PredictionScore(0, h, s, s == 0) for h, s in enumerate(scores, start=1) if s is not None)
    return Turn((), Completion((), (), ""), "look", "x", state, Prediction((), None, ("",) * horizons, known))


def test_a_predictions_own_advantage_by_hand():
    rows = [
        [predicting("a", 1.0, 0.0), predicting("b", 0.5, 0.5)],  # means with γ = ½: 2/3; ½
        [predicting("a", None, 0.5), predicting("b", None, None)],  # ½; none
        [predicting("a", 0.0, 0.0), predicting("c", 0.9), predicting(None, 0.3)],  # absent: 0
    ]
    group = Group(TASK, tuple(Trajectory(TASK, tuple(row), True, False, "lost") for row in rows))
    states = [[0, 1], [0, 1], [0, 2, -1]]
    means = [[prediction_mean(turn, 0.5) for turn in row] for row in rows]
    assert [value for row in means for value in row] == pytest.approx([2 / 3, 0.5, 0.5, None, 0.0, 0.9, 0.3])
    values = np.array([2 / 3, 1 / 2, 0.0])
    for norm, scale in (("mean", 1.0), ("std", values.std())):
        found = prediction_advantages(group, states, estimator(gamma=0.5, norm=norm))
        assert [row[0] for row in found] == pytest.approx((values - values.mean()) / scale, rel=1e-4)
        # One of its group has no score, the other is alone then; so are the rest.
        assert [value for row in found for value in row[1:]] == [0.0] * 4
    flat = Group(TASK, group.trajectories[:1] * 2)
    assert not any(itertools.chain(*prediction_advantages(flat, [[0, 1]] * 2, estimator())))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["prompt.predictions=inline"], "has both in one reply: set loss.prediction_credit=advantage"),
        (["prompt.predictions=followup"], "keeps the sampled prediction in the transcript: set prompt.predictions="),
        (
            ["rollout.predicted_turns=compared", "loss.prediction_credit=own"],
            "=own needs all of them: set rollout.pred",
        ),
        (["rollout.predicted_turns=compared", "prompt.predictions=followup"], "=followup needs all of them: set roll"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_in_one_line(options, words):
    with pytest.raises(ConfigError, match=words) as refused:
        check_learning(load(overrides=options))
    assert "\n" not in str(refused.value)
    check_learning(load(overrides=[*options, "wia=off"]))
    check_learning(load(overrides=[*options, "method=sft", "train.tokens=1"]))


def test_one_turn_of_each_episode_is_imitated_and_every_second_one_is_a_failure():
    once = [("take egg", FAILED, FAILED, 1.0), *WON, *WON, *WON]
    stage = Stage("loss.prediction_credit=imitate", "loss.imitated_turns=1", episodes=[(once, True)], groups=200)
    taught = [segment for segment in stage.batch.segments if PREDICTION in segment.token_kind]
    assert len(taught) == 200 and len({tuple(segment.token_ids) for segment in taught}) > 5
    texts = [
        stage.policy.decode([t for t, kind in zip(s.token_ids, s.token_kind, strict=True) if kind == PREDICTION])
        for s in taught
    ]
    assert 85 < sum(FAILED in text for text in texts) < 145  # a half, and its seventh of the other half
