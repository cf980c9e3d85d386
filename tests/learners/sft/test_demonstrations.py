"""Demonstrations: the policy learns from exactly the tokens that it would meet if it played so itself."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from tiny import TEMPLATE, Script, plain

from roleagent.agents.builders import EnvSplit
from roleagent.config import ConfigError, load
from roleagent.envs.failures.command_noise import CommandNoise
from roleagent.envs.wrappers.tags import parse
from roleagent.learners import batch
from roleagent.learners.distillation import with_note
from roleagent.learners.sft import demonstrations as tokenization
from roleagent.learners.sft.demonstrations import CorruptedPredictions, demonstrate, plan_of, tokenize_with_plans
from roleagent.learners.sft.imitation import batches
from roleagent.types import ACTION, CONTEXT, PREDICTION

TASK = "heat-fish-tray-2"


def segments_of(*arguments, **options):
    return plain(batch.segments_of(*arguments, **options))


def segments_from(*arguments, **options):
    return plain(tokenization.segments_from(*arguments, **options))


def tokenize(*arguments):
    return plain(tokenization.tokenize(*arguments))


@pytest.fixture(scope="module")
def env():
    return gymnasium.make("RoleAgent/Toy-v0")


def shown(env, noise=0.0, seed=0, task_id=TASK):
    rng = np.random.default_rng(seed)
    slips = CommandNoise(("go to desk 7", "take fish 3 from shelf 1"), rng)
    return demonstrate(env, task_id, noise, slips, rng)


def noisy(env):
    """A won episode with some strange steps in it."""
    for seed in range(50):
        demonstration = shown(env, 0.4, seed)
        if demonstration is not None and not all(step.imitated for step in demonstration.steps):
            return demonstration
    raise AssertionError("no such episode in fifty")


def predicted(states):
    return "".join(f'<prediction h="{h}">{state}</prediction>' for h, state in enumerate(states, start=1))


def played(demonstration, *overrides, corrupted_predictions=None, chat_template=None):
    """A rollout in which the policy says what the demonstration shows; the world it was played in, and its record."""
    settings = ("env.id=RoleAgent/Toy-v0", "rollout.action_tokens=400", "rollout.prediction_tokens=400")
    world = EnvSplit.open(load(overrides=[*settings, *overrides]), "train")
    states = demonstration.states
    prompt = world.config.prompt
    replies, answers = [], []
    for number, step in enumerate(demonstration.steps):
        ahead = states[number + 1 : number + 1 + world.horizon]
        wrong = corrupted_predictions.draw(step.command, len(ahead)) if corrupted_predictions else None
        answer = predicted(ahead if wrong is None else wrong)
        action = f"<action>{step.command}</action>"
        replies.append(action + answer if prompt.predictions == "inline" else action)
        if world.horizon and (prompt.style, prompt.predictions) == ("transcript", "detached"):
            answers.append(answer)  # all questions come after the episode
        elif world.horizon and prompt.predictions != "inline":
            replies.append(answer)
    replies = iter(replies + answers)
    rollout = world.rollout(Script(lambda prompt, slot: next(replies), chat_template=chat_template))
    [group] = rollout.play([demonstration.task.task_id], 1, 1.0)
    [trajectory] = group.trajectories
    assert next(replies, None) is None and trajectory.success
    return rollout, trajectory


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["plain", "chat"])
@pytest.mark.parametrize("style", ["transcript", "window"])
@pytest.mark.parametrize(
    "asked",
    ["prompt.predictions=followup", "prompt.horizon=2", "prompt.predictions=inline", "prompt.horizon=1", "wia=off"],
)
def test_a_demonstration_is_what_a_rollout_would_have_recorded(env, template, style, asked):
    demonstration = noisy(env)
    rollout, trajectory = played(demonstration, asked, f"prompt.style={style}", chat_template=template)
    advantages = [float(step.imitated) for step in demonstration.steps]
    expected = segments_of(trajectory, advantages)
    found = segments_from(demonstration, rollout)
    assert [segment.token_ids for segment in found] == [segment.token_ids for segment in expected]
    assert [segment.token_kind for segment in found] == [segment.token_kind for segment in expected]
    assert [segment.advantages for segment in found] == [segment.advantages for segment in expected]
    # After the last step nothing follows, and a detached prediction needs no segment of its own.
    one = style == "transcript" and "horizon" not in asked
    assert len(found) == (1 if one else len(demonstration.steps))


@pytest.mark.parametrize("style", ["transcript", "window"])
def test_a_plan_stands_where_a_teacher_will_read_it(env, style):
    demonstration = noisy(env)
    rollout, trajectory = played(demonstration, "wia=off", f"prompt.style={style}")
    world = EnvSplit.open(load(overrides=["env.id=RoleAgent/Toy-v0", "wia=off", f"prompt.style={style}"]), "train")
    plan = plan_of(demonstration, world.reader)
    assert plan.splitlines()[1:] == [step.command for step in demonstration.steps if step.imitated]
    expected = segments_of(with_note(trajectory, rollout, plan), [float(step.imitated) for step in demonstration.steps])
    found = plain(tokenize_with_plans(world, rollout.policy, [demonstration]))
    assert [one._replace(sampler_logprobs=()) for one in found] == [
        one._replace(sampler_logprobs=()) for one in expected
    ]


def test_a_detached_prediction_is_asked_for_once_and_changes_nothing_else(env):
    demonstration = noisy(env)
    rollout, _ = played(demonstration, "prompt.predictions=detached")
    plain, _ = played(demonstration, "wia=off")
    [alone] = segments_from(demonstration, plain)
    for number, step in enumerate(demonstration.steps[:-1]):
        beside, whole = sorted(segments_from(demonstration, rollout, only=number), key=lambda one: len(one.token_ids))
        assert whole == alone
        predicted = [t for t, kind in zip(beside.token_ids, beside.token_kind, strict=True) if kind != CONTEXT]
        assert rollout.policy.decode(predicted) == f'<prediction h="1">{step.observation}</prediction>'
        assert {kind for kind in beside.token_kind if kind != CONTEXT} == {PREDICTION}


@pytest.mark.parametrize("horizon", [1, 2])
def test_a_detached_prediction_that_would_be_cut_off_tells_how_the_pages_begin(env, horizon):
    demonstration = noisy(env)
    rollout, _ = played(demonstration, "prompt.predictions=detached", f"prompt.horizon={horizon}")
    whole, limit = segments_from(demonstration, rollout, only=0), 20 * horizon
    rollout.config = replace(rollout.config, prediction_tokens=limit)
    cut = segments_from(demonstration, rollout, only=0)
    beside, before = (next(s for s in found if ACTION not in s.token_kind) for found in (cut, whole))
    reported = [token for token, kind in zip(beside.token_ids, beside.token_kind, strict=True) if kind == PREDICTION]
    assert beside.token_kind.count(PREDICTION) < before.token_kind.count(PREDICTION)
    assert limit / 2 < len(reported) <= 0.75 * limit + 1  # and the end of the reply
    found = parse("<action>look</action>" + rollout.policy.decode(reported), horizon=horizon).predictions
    states = demonstration.states[1 : 1 + horizon]
    assert len(found) == horizon and all(map(str.startswith, states, found)) and "" not in found


@pytest.mark.parametrize("horizon", [1, 2])
def test_corrupted_predictions_are_read_but_not_trained(env, horizon):
    demonstration = shown(env)
    others = [shown(env, task_id=task_id) for task_id in env.unwrapped.task_split.task_ids[:30]]

    def drawn():
        return CorruptedPredictions([demonstration, *others], horizon, 0.5, np.random.default_rng(3))

    options = "prompt.predictions=followup", f"prompt.horizon={horizon}"
    rollout, trajectory = played(demonstration, *options, corrupted_predictions=drawn())
    [segment] = segments_from(demonstration, rollout, drawn())
    [expected] = segments_of(trajectory, [1.0] * len(demonstration.steps))
    # A rollout's segment ends with its last trained token, and so may be longer by a corrupted prediction at the end.
    assert segment.token_ids == expected.token_ids[: len(segment.token_ids)]
    said = [rollout.policy.decode(turn.prediction.completion.token_ids) for turn in trajectory.turns]
    states, draws = demonstration.states, drawn()
    kept = []
    for number, (step, text) in enumerate(zip(demonstration.steps, said, strict=True)):
        ahead = states[number + 1 : number + 1 + horizon]
        if draws.draw(step.command, len(ahead)) is None:
            assert text == predicted(ahead)
            kept.append(text)
    assert 0 < len(kept) < len(said)
    trained = [t for t, kind in zip(segment.token_ids, segment.token_kind, strict=True) if kind == PREDICTION]
    assert rollout.policy.decode(trained) == "".join(kept)
    assert segment.token_kind.count(ACTION) == expected.token_kind.count(ACTION)


def test_demonstrations_beyond_the_context_are_refused_if_they_are_most(env):
    world = EnvSplit.open(load(overrides=["env.id=RoleAgent/Toy-v0", "wia=off"]), "train")
    demonstrations = [shown(env, seed=seed) for seed in range(3)]
    policy = Script(lambda prompt, slot: "")
    policy.context_length = 20
    rng = np.random.default_rng(0)
    assert tokenization.tokenize(world, policy, demonstrations, rng) == []  # of a round of corrections
    with pytest.raises(ConfigError, match=r"3 of 3 demonstrations do not fit into policy.context=20: the longest has"):
        tokenization.tokenize(world, policy, demonstrations, rng, most_fit=True)


def test_an_epoch_holds_every_segment_once_in_another_order(env):
    rollout, _ = played(shown(env))
    segments = [
        segment
        for task_id in env.unwrapped.task_split.task_ids[:20]
        for segment in segments_from(shown(env, task_id=task_id), rollout)
    ]
    epoch = list(batches(segments, 1000, np.random.default_rng(0)))
    assert sorted(map(id, (segment for batch in epoch for segment in batch))) == sorted(map(id, segments))
    sizes = [sum(len(one.token_ids) for one in part) for part in epoch]
    assert all(1000 <= size < 1000 + max(map(len, segments)) for size in sizes[:-1])
    again = [len(batch) for batch in batches(segments, 1000, np.random.default_rng(0))]
    assert again == [len(batch) for batch in epoch]
    other = list(batches(segments, 1000, np.random.default_rng(1)))
    assert [id(segment) for segment in other[0]] != [id(segment) for segment in epoch[0]]
