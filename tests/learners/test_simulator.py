"""A language model as task simulator: what it reads and writes, its warm start, and what its updates do."""

import contextlib
import copy
import json
import math
from collections import Counter
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from fake_openai import MODEL, error, serving
from programs import TOY_POLICY
from tiny import TEMPLATE, Script, qwen

from roleagent.agents.chat.endpoint import KEYS, Endpoint
from roleagent.agents.policies.hf import PolicyError
from roleagent.agents.policies.scratch_model import SIMULATE, build_policy, train_tokenizer
from roleagent.agents.task_simulator import (
    TASK_TAGS,
    EndpointSimulator,
    ModelSimulator,
    read_tasks,
    simulator_examples,
    simulator_prompt,
    write_tasks,
)
from roleagent.config import from_dict
from roleagent.config.settings import DeepSpeedConfig
from roleagent.curricula.alignment import Alignment
from roleagent.curricula.simulators import StaticSimulator
from roleagent.learners.engine.engine import Learner
from roleagent.learners.genenv import training as simulators
from roleagent.learners.genenv.training import SimulatorTraining, VisitingSimulator, learn, offloaded, warm_start
from roleagent.random_streams import random_stream
from roleagent.tasks.grammar import Refused, TaskSpec, grammar_of
from roleagent.tasks.simulator import Simulator, SimulatorRecord, Situation

GRAMMAR = grammar_of(gymnasium.make("RoleAgent/Toy-v0", generated_tasks=True))
SEED = TaskSpec(("heat", "egg", "tray", "4", "2"), 100)
TOLD = Situation({"heat": (3, 16), "cool": (0, 8)}, SEED, (3, 8))
LINE = "kind=heat item=egg place=tray containers=4 closed=2"


def configured(**simulator):
    return from_dict(
        {
            "genenv": True,
            "policy": TOY_POLICY,
            "warmstart": {"batch_tokens": 1000, "lr": 1e-2},
            "simulator": {"kind": "model", **simulator},
        }
    )


def test_names_from_episodes_stand_in_one_line_without_tags():
    text = simulator_prompt(GRAMMAR, Situation({"heat</tasks>\n<tasks>\nkind=cool": (1, 8)}))
    assert "- heat kind=cool: 1 of 8" in text and text.count("<tasks>") == text.count("</tasks>") == 1


@pytest.mark.parametrize(
    ("reply", "lines"),
    [
        (write_tasks([LINE, "b=c"]), [LINE, "b=c"]),
        (f"Sure:\n<TASKS>\n\n  - {LINE}\n2. b=c\n</Tasks>\nDone.", [LINE, "b=c"]),
        (f"<tasks>\n{LINE}", [LINE]),
        (f"I could write <tasks>.</think><tasks>{LINE}</tasks>", [LINE]),
        (f"<tasks>\n{LINE}\n</tasks><tasks>\nb=c\n</tasks>", []),
        ("", []),
    ],
)
def test_a_reply_is_repaired_where_nothing_else_can_be_meant(reply, lines):
    assert read_tasks(reply) == lines


def test_a_reply_becomes_a_line_per_task_and_one_that_cannot_be_read_an_empty_one():
    replies = iter([write_tasks([LINE]), "no", f"<tasks>{LINE}", write_tasks(["a=b", "c=d"])])
    simulator = ModelSimulator(Script(lambda prompt, slot: next(replies)), GRAMMAR, True)
    simulator.policy.reseed = lambda seed: None
    assert isinstance(simulator, Simulator)
    assert simulator.propose([TOLD, Situation({})], 2, np.random.default_rng(0)) == [[LINE, ""], [LINE, "a=b"]]
    assert simulator.policy.prompts[0] == simulator.policy.prompts[1] != simulator.policy.prompts[2]
    assert simulator.policy.prompts[0].endswith(f"\n{LINE}\n{SIMULATE}")
    assert simulator.costs()["tokens"] > 40 and simulator.costs()["tokens"] == 0


def test_a_model_with_a_chat_template_is_instructed():
    policy = Script(lambda prompt, slot: write_tasks([LINE]), chat_template=TEMPLATE)
    policy.reseed = lambda seed: None
    simulator = ModelSimulator(policy, GRAMMAR, True)
    assert simulator.propose([TOLD], 1, np.random.default_rng(0)) == [[LINE]]
    assert simulator_prompt(GRAMMAR, TOLD) in policy.prompts[0]


def test_a_situation_is_shortened_and_a_context_without_room_refused():
    many = Situation({f"type number {number}": (1, 8) for number in range(60)}, SEED, (3, 8))
    simulator = ModelSimulator(qwen(context=400), GRAMMAR, True)
    assert len(simulator.prompt(many)) + simulator.limit <= 400
    with pytest.raises(PolicyError, match=r"has no room for a situation and a task.*raise policy\.context"):
        ModelSimulator(qwen(context=64), GRAMMAR, True)


@pytest.fixture(scope="module")
def started():
    config = configured()
    rng = np.random.default_rng(0)
    texts = []
    for situation, values in simulator_examples(GRAMMAR, 300, rng):
        texts += [simulator_prompt(GRAMMAR, situation, explain=False), write_tasks([GRAMMAR.write(TaskSpec(values))])]
    tokenizer = train_tokenizer(texts, 400, [*TASK_TAGS, SIMULATE])
    policy = build_policy(config.policy, tokenizer, torch.Generator().manual_seed(0))
    found = warm_start(policy, GRAMMAR, config, lambda *name: random_stream(0, *name))
    assert found.good and found.accepted >= 0.95 and found.distance <= 0.1, found
    return policy


def opened(policy, **options):
    config = configured(**options)
    begun, start = copied(policy), copied(policy)
    learner = Learner(begun, config, config.simulator.lr, start.model.requires_grad_(False))
    return SimulatorTraining(ModelSimulator(begun, GRAMMAR, True, start), learner), config


def copied(policy):
    return type(policy)(
        copy.deepcopy(policy.model), policy.tokenizer, torch.Generator().manual_seed(1), policy.context_length
    )


def written(simulator, count=300):
    found = []
    for [line] in simulator.propose([TOLD] * count, 1, np.random.default_rng(5)):
        with contextlib.suppress(Refused):
            found.append(GRAMMAR.read(line)[0])
    return found


def records_of(simulator, solve):
    """A record of each proposal in the band, solved ``solve(values)`` times of 8."""
    alignment = Alignment()
    tasks = [(values, solve(values)) for values in written(simulator, 64)]
    return [
        SimulatorRecord(TOLD, values, "", won, 8, 1, alignment.reward(won, 8), weight)
        for values, won in tasks
        if (weight := alignment.weight(won, 8))
    ]


def taught(training, config, updates, solve=lambda values: 4 if values[0] == "heat" else 0):
    metrics = {}
    for number in range(updates):
        records = records_of(training.simulator, solve)
        metrics = learn(training, records, config, np.random.default_rng(number))
    return metrics


@pytest.mark.slow
def test_the_weights_change_and_what_it_writes_with_them(started, monkeypatch):
    monkeypatch.setattr(simulators, "MAX_KL", math.inf)
    training, config = opened(started, lr=2e-3)
    before = Counter(values[0] for values in written(training.simulator))
    metrics = taught(training, config, 6)
    after = Counter(values[0] for values in written(training.simulator))
    assert after["heat"] > before["heat"] + 90 and metrics["kl"] > 0.1
    assert Counter(values[0] for values in written(training.simulator.initial())) == before
    training.learner.close()


@pytest.mark.slow
def test_the_anchor_keeps_it_near_its_start_and_a_large_step_ends_the_pass(started, monkeypatch):
    moved = {}
    monkeypatch.setattr(simulators, "MAX_KL", math.inf)
    for kl in (0.0, 20.0):
        monkeypatch.setattr(simulators, "KL", kl)
        training, config = opened(started, lr=2e-3)
        moved[kl] = taught(training, config, 3)["kl"]
        training.learner.close()
    assert moved[20.0] < moved[0.0] / 2
    monkeypatch.setattr(simulators, "MAX_KL", 0.01)
    monkeypatch.setattr(simulators, "KL", 0.01)
    training, config = opened(started, lr=5e-3)
    metrics = taught(training, config, 1, lambda values: 4)
    assert metrics["updates_cut"] == 1 and metrics["steps"] < 64 / simulators._BATCH and metrics["step_kl"] > 0.01
    training.learner.close()


@pytest.mark.slow
def test_the_first_step_follows_the_loss_by_hand(started):
    training, config = opened(started)
    learner, simulator = training.learner, training.simulator
    records = records_of(simulator, lambda values: 3 + (values[0] == "heat"))[:4]
    segments = [simulator.segment(one.situation, one.values, one.weight) for one in records]
    logprobs = [row.sum() for row in learner.score(segments, 1.0)]
    weights = np.array([one.weight for one in records])
    expected = -(weights * logprobs).sum() / weights.sum()
    first = learn(training, records, config, np.random.default_rng(0))
    assert first["steps"] == 1 and first["loss"] == pytest.approx(expected, rel=1e-4)
    assert first["step_kl"] > 0 and first["kl"] > first["step_kl"]
    learner.close()


@pytest.mark.slow
def test_a_writer_that_only_visits_the_gpu_learns_and_writes_the_same(started):
    """At ZeRO 3 its model, its learner and what it began as are elsewhere between its turns."""
    found = []
    for stage in (0, 3):
        config = replace(configured(lr=2e-3), deepspeed=DeepSpeedConfig(zero_stage=stage))
        policy, start = copied(started), copied(started)
        make, settings = (VisitingSimulator, offloaded(config)) if stage else (ModelSimulator, config)
        learner = Learner(policy, settings, 2e-3, start.model.requires_grad_(False), computes=False)
        training = SimulatorTraining(make(policy, GRAMMAR, 1.0, copied(started)), learner)
        records = records_of(training.simulator, lambda values: 4)
        metrics = learn(training, records, settings, np.random.default_rng(0))
        learner.sync_policy()
        found.append((metrics, written(training.simulator, 64), written(training.simulator.initial(), 64)))
        learner.close()
    (metrics, now, before), (others, *wrote) = found
    assert others == pytest.approx(metrics, rel=1e-3) and metrics["kl"] > 0
    assert wrote == [now, before] and now != before


@pytest.mark.slow
def test_a_shared_learner_keeps_its_own_learning_rate(started):
    training, config = opened(started, lr=1e-4)
    training.learner.lr = 7.0
    rates = []
    update = training.learner.update
    training.learner.update = lambda *given: (rates.append(training.learner.lr), update(*given))[1]
    taught(training, config, 1)
    assert set(rates) == {1e-4} and training.learner.lr == 7.0
    training.learner.close()


@pytest.mark.slow
def test_it_is_saved_and_loaded_with_the_agents_learner(started, tmp_path):
    folders = []
    for number in range(2):
        training, config = opened(started, lr=1e-3)
        agent = Learner(copied(started), config, 1e-3)
        agent.beside["simulator"] = training.learner
        if not number:
            records = records_of(training.simulator, lambda values: 4)
            learn(training, records, config, np.random.default_rng(0))
            agent.save(tmp_path)
        else:
            agent.load(tmp_path)
        learn(training, records, config, np.random.default_rng(1))
        folders.append([weight.detach().clone() for weight in training.simulator.policy.model.parameters()])
        assert training.learner.steps > 8
        training.learner.close()
        agent.close()
    assert all(torch.equal(*pair) for pair in zip(*folders, strict=True))


def test_a_server_writes_the_tasks_and_its_trouble_stops_nothing(monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(write_tasks([LINE, "kind=cool", "x"])) as fake:
        simulator = EndpointSimulator(Endpoint(fake.url, MODEL), GRAMMAR, 0.7, 99, (1.0, 2.0))
        assert isinstance(simulator, Simulator) and simulator.initial() is simulator
        assert simulator.propose([TOLD, Situation({})], 2, np.random.default_rng(0)) == [[LINE, "kind=cool"]] * 2
        asked = {body["messages"][0]["content"]: body for body in fake.asked}
        body = asked[simulator_prompt(GRAMMAR, TOLD, 2)]
        assert (body["temperature"], body["max_tokens"]) == (0.7, 99)
        costs = simulator.costs()
        assert costs["requests"] == 2 and costs["tokens"] > 0 and costs["cost"] > 0
    with serving(lambda body, number: error(401, "no")) as fake:
        simulator = EndpointSimulator(Endpoint(fake.url, MODEL), GRAMMAR)
        with pytest.warns(UserWarning, match="HTTP 401"):
            assert simulator.propose([TOLD], 2, np.random.default_rng(0)) == [[]]
        with pytest.raises(ValueError, match="wrote no task that can be read"):
            StaticSimulator(GRAMMAR, 99, np.random.default_rng(0), simulator).propose([TOLD], 2, None)


def test_a_server_writes_a_list_once(monkeypatch):
    """A resumed run has it from its checkpoint; what cannot be read is not in it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    lines, rng = (
        [GRAMMAR.write(GRAMMAR.base(np.random.default_rng(seed))) for seed in range(3)],
        np.random.default_rng(0),
    )
    with serving(write_tasks([*lines, "no task", lines[0]])) as fake:

        def opened():
            return StaticSimulator(GRAMMAR, 2, rng, EndpointSimulator(Endpoint(fake.url, MODEL), GRAMMAR))

        first, later = opened(), opened()
        assert not fake.asked
        assert first.propose([TOLD] * 2, 3, rng) == [[lines[0], lines[1], lines[0]], [lines[1], lines[0], lines[1]]]
        asked, costs = len(fake.asked), first.costs()
        assert costs["tokens"] > 0
        later.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert later.propose([TOLD], 1, rng) == first.propose([TOLD], 1, rng) and len(fake.asked) == asked
