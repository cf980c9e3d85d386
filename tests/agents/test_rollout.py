"""Episodes as they are recorded: with a policy that says what it is told, and with a model."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from tiny import TASKS, Script, play, qwen, world_of

from roleagent.agents.builders import (
    check_rollout_backend,
    make_wrapped,
    open_analyst,
    open_rollout_policy,
)
from roleagent.agents.rollout import Rollout
from roleagent.config import ConfigError, load
from roleagent.envs.pool import EnvPool
from roleagent.envs.toy.expert import ToyExpert
from roleagent.learners.batch import segments_of
from roleagent.similarity import lms
from roleagent.types import ACTION, PREDICTION


class Expert:
    """Replies as the toy's expert, with a prediction for every follow-up question."""

    def __init__(self, predict=""):
        self.experts, self.predict, self.seen = {}, predict, {}

    def __call__(self, prompt, slot):
        *_, last = prompt.rstrip("\n").split("\n")
        if prompt.endswith("<|predict|>"):
            return f'<prediction h="1">{self.predict}</prediction>' if self.predict is not None else ""
        if slot not in self.experts:
            self.experts[slot] = ToyExpert()
            self.experts[slot].reset(last.partition("Your task is to: ")[2].rstrip("."), last)
        else:
            self.experts[slot].observe(self.seen[slot], last)
        self.seen[slot] = self.experts[slot].act()
        return f"<action>{self.seen[slot]}</action>"


def always(text, predicted='<prediction h="1">nothing</prediction>'):
    return Script(lambda prompt, slot: predicted if prompt.endswith("<|predict|>") else text)


# --- groups and how episodes end --------------------------------------------------------------------------------------


def test_every_task_gets_its_group_and_the_expert_wins():
    progress = []
    rollout, groups = play(
        Script(Expert()), world_of(), TASKS, copies=3, progress=lambda done, total: progress.append((done, total))
    )
    assert [group.task.task_id for group in groups] == list(TASKS)
    assert [len(group.trajectories) for group in groups] == [3, 3, 3]
    for group in groups:
        assert group.task.goal and group.task.split == "train" and group.task.env_id == "RoleAgent/Toy-v0"
        for trajectory in group.trajectories:
            assert (trajectory.stop_reason, trajectory.terminated, trajectory.truncated) == ("won", True, False)
            assert trajectory.success and trajectory.outcome == 1.0
            assert trajectory.turns[-1].rewards["task"] == 1.0
            assert {turn.rewards["task"] for turn in trajectory.turns[:-1]} == {0.0}
    assert rollout.stats.episodes == 9 and rollout.stats.errors == 0
    assert rollout.stats.turns == sum(len(t.turns) for group in groups for t in group.trajectories)
    assert progress[-1] == (9, 9) and progress == sorted(progress)


@pytest.mark.parametrize(("room", "least", "most"), [(250, 1, 14), (10, 0, 0)])
def test_an_episode_that_outgrows_the_context_stops_there(room, least, most):
    """One whose first prompt is too long has no turns, and keeps its place in the group."""
    policy = always("<action>look</action>")
    policy.context_length = room
    _, [group] = play(policy, world_of())
    assert len(group.trajectories) > 1
    for trajectory in group.trajectories:
        assert (trajectory.stop_reason, trajectory.terminated, trajectory.truncated) == ("context", False, True)
        assert least <= len(trajectory.turns) <= most
        assert all(len(turn.prompt_ids) + 24 <= room for turn in trajectory.turns)


# --- environments that fail -------------------------------------------------------------------------------------------


class Broken:
    """Fails in every second environment: on reset, or on its third step."""

    def __init__(self, where):
        self.where, self.made = where, 0

    def __call__(self, config, split, horizon):
        env = make_wrapped(config, split, horizon)
        self.made += 1
        if self.made % 2 == 0:
            steps = []

            def fail(*_, **__):
                steps.append(1)
                if self.where == "reset" or len(steps) == 3:
                    raise RuntimeError("the simulator\ncrashed")
                return inner(*_, **__)

            inner = getattr(env.unwrapped, self.where)
            setattr(env.unwrapped, self.where, fail)
        return env


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_crash_is_left_out_and_counted_never_a_failure(where):
    world = world_of()
    pool = EnvPool(partial(Broken(where), world.config, "train", 1))
    rollout = Rollout(Script(Expert()), pool, "RoleAgent/Toy-v0", world.config.prompt, world.config.rollout, 1)
    groups = rollout.play(TASKS, 2, 1.0)
    assert [len(group.trajectories) for group in groups] == [1, 1, 1]
    assert all(trajectory.success for group in groups for trajectory in group.trajectories)
    assert (rollout.stats.errors, rollout.stats.episodes) == (3, 3)
    assert rollout.stats.failures.keys() == set(TASKS)
    assert all(one.startswith("RuntimeError: the simulator crashed (") for one in rollout.stats.failures.values())


# --- predictions ------------------------------------------------------------------------------------------------------


def test_predictions_are_scored_where_they_were_made():
    predicted = "You arrive at table. You see nothing. You carry nothing."
    rollout, [group] = play(Script(Expert(predicted)), world_of(), copies=1)
    [trajectory] = group.trajectories
    for number, turn in enumerate(trajectory.turns):
        assert turn.prediction.texts == (predicted,)
        [score] = turn.prediction.scores
        assert (score.turn, score.horizon, score.absent) == (number, 1, False)
        assert score.score == lms(predicted, turn.observation)
        assert turn.prediction.prompt_ids[: len(turn.prompt_ids)] == turn.prompt_ids
    assert rollout.stats.prediction_tokens == sum(len(t.prediction.completion.token_ids) for t in trajectory.turns)


def test_a_detached_prediction_is_scored_and_in_no_later_prompt():
    predicted = "You arrive at table. You see nothing. You carry nothing."
    detached, [group] = play(Script(Expert(predicted)), world_of("prompt.predictions=detached"), copies=1)
    kept, [other] = play(Script(Expert(predicted)), world_of(), copies=1)
    _, [without] = play(Script(Expert()), world_of("wia=off"), copies=1)
    turns, alone = group.trajectories[0].turns, without.trajectories[0].turns
    assert [turn.prompt_ids for turn in turns] == [turn.prompt_ids for turn in alone]
    scores = [[turn.prediction.scores for turn in one.trajectories[0].turns] for one in (group, other)]
    assert scores[0] == scores[1] and detached.stats.prediction_tokens == kept.stats.prediction_tokens
    for turn in turns:
        assert turn.prediction.prompt_ids[: len(turn.prompt_ids)] == turn.prompt_ids
    trained = segments_of(group.trajectories[0], [1.0] * len(turns))
    assert sum((segment.token_kind == PREDICTION).sum() for segment in trained) == detached.stats.prediction_tokens
    assert sum((segment.token_kind == ACTION).sum() for segment in trained) == detached.stats.action_tokens


@pytest.mark.parametrize("style", ["transcript", "window"])
def test_chosen_turns_predict_afterwards_what_they_would_have_predicted_at_once(style):
    policy = qwen(context=1024)
    world = world_of(
        "prompt.predictions=detached", f"prompt.style={style}", "rollout.action_tokens=6", "env.kwargs.max_steps=3"
    )
    _, whole = play(policy, world, TASKS[:2], copies=2, temperature=0.0)
    rollout = world.rollout(policy, plain=True)
    plain = rollout.play(TASKS[:2], 2, 0.0)
    turns = [turn for group in plain for trajectory in group.trajectories for turn in trajectory.turns]
    assert rollout.stats.prediction_tokens == 0 and not any(turn.prediction for turn in turns)
    chosen = [[[0, 2], []], [[], [1]]]
    found = rollout.predict(plain, chosen, 0.0)
    for numbers, at_once, before, after in zip(chosen, whole, plain, found, strict=True):
        rows = zip(numbers, *(group.trajectories for group in (at_once, before, after)), strict=True)
        for some, expected, unasked, row in rows:
            for number, turn in enumerate(row.turns):
                asked, made = expected.turns[number].prediction, turn.prediction
                assert (made is not None) == (number in some)
                if made is not None:
                    assert made.completion.token_ids == asked.completion.token_ids
                    assert replace(made, completion=None) == replace(asked, completion=None)
                assert turn.completion == unasked.turns[number].completion == expected.turns[number].completion
    assert rollout.stats.prediction_tokens == sum(
        len(turn.prediction.completion.token_ids)
        for group in found
        for one in group.trajectories
        for turn in one.turns
        if turn.prediction
    )


def test_late_scores_go_to_the_turns_that_foresaw():
    """Two steps ahead: turn t is scored on s_{t+1} and s_{t+2}; the last turn only on the first."""
    text = '<prediction h="1">one</prediction><prediction h="2">two</prediction>'
    world = world_of("prompt.horizon=2", "env.kwargs.max_steps=4")
    _, [group] = play(always("<action>look</action>", text), world, copies=1)
    [trajectory] = group.trajectories
    states = [turn.observation for turn in trajectory.turns]
    for number, turn in enumerate(trajectory.turns):
        assert turn.prediction.texts == ("one", "two")
        found = {score.horizon: score.score for score in turn.prediction.scores}
        expected = {h: lms(word, states[number + h - 1]) for h, word in ((1, "one"), (2, "two")) if number + h <= 4}
        assert found == expected
        assert {score.turn for score in turn.prediction.scores} == {number}


def test_inline_predictions_come_with_the_action():
    policy = always('<action>look</action><prediction h="1">You look.</prediction>')
    _, [group] = play(policy, world_of("prompt.predictions=inline", "env.kwargs.max_steps=2"), copies=1)
    for turn in group.trajectories[0].turns:
        assert turn.action == "look"
        assert turn.prediction.texts == ("You look.",)
        assert turn.prediction.completion is None and turn.prediction.prompt_ids == ()
        assert len(turn.prediction.scores) == 1


# --- with a model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["transcript", "window"])
def test_a_models_tokens_are_recorded_as_they_were_sampled(style):
    policy = qwen(context=1024)
    tokens = "rollout.action_tokens=6", "rollout.prediction_tokens=5", "env.kwargs.max_steps=3"
    rollout, groups = play(
        policy, world_of(f"prompt.style={style}", "prompt.predictions=followup", *tokens), TASKS[:2], copies=2
    )
    sampled = 0
    for group in groups:
        for trajectory in group.trajectories:
            for turn in trajectory.turns:
                for prompt, said in (
                    (turn.prompt_ids, turn.completion),
                    (turn.prediction.prompt_ids, turn.prediction.completion),
                ):
                    with torch.no_grad():
                        ids = torch.tensor([[*prompt, *said.token_ids]])
                        scores = policy.model(input_ids=ids).logits[0].log_softmax(-1)
                    places = range(len(prompt) - 1, ids.shape[1] - 1)
                    logprobs = [float(scores[i, ids[0, i + 1]]) for i in places]
                    assert said.logprobs == pytest.approx(logprobs, abs=1e-5)
                    sampled += len(said.token_ids)
            segments = segments_of(trajectory, [1.0] * len(trajectory.turns))
            assert len(segments) == (1 if style == "transcript" else len(trajectory.turns))
    assert sampled == rollout.stats.action_tokens + rollout.stats.prediction_tokens


def test_the_seed_of_the_policy_decides_the_episodes():
    policy, world = qwen(context=1024), world_of("env.kwargs.max_steps=2")

    def story(seed):
        policy.generator.manual_seed(seed)
        return [t.completion.token_ids for g in play(policy, world)[1] for e in g.trajectories for t in e.turns]

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_an_analyst_and_a_policy_are_named_by_module_and_class(tmp_path, monkeypatch):
    """Both are searched for in the working directory; what lacks a method is refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "named_here.py").write_text(
        "from roleagent.curricula.rule_analyst import RuleAnalyst\n"
        "class Analyst(RuleAnalyst):\n    pass\n"
        "class Sampler:\n"
        "    def __init__(self, config, policy):\n        self.config, self.policy = config, policy\n"
        "    generate = sync = offload = None.__init__\n"
    )
    config = load(overrides=["curriculum.analyst=named_here:Analyst", "rollout.backend=named_here:Sampler"])
    check_rollout_backend(config)
    policy = qwen()
    sampler = open_rollout_policy(config, policy)
    assert (type(sampler).__name__, sampler.config, sampler.policy) == ("Sampler", config, policy)
    assert type(open_analyst(config, policy)).__name__ == "Analyst"
    with pytest.raises(ConfigError, match="'named_here:Analyst' has no method generate"):
        check_rollout_backend(load(overrides=["rollout.backend=named_here:Analyst"]))
    with pytest.raises(ConfigError, match="cannot load 'named_here:Nobody'"):
        open_analyst(load(overrides=["curriculum.analyst=named_here:Nobody"]), policy)
    with pytest.raises(ConfigError, match="one of local, vllm or module:Class, not 'vlm'"):
        load(overrides=["rollout.backend=vlm"])
