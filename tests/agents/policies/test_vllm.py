"""vLLM as the sampler of a run, on the CPU or a GPU: what it says is what the local policy would have said.

The tests of engines skip where vLLM cannot work; .ci/vllm runs them in an environment of their own. One engine of each
kind serves all tests, since starting one costs most of the time.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from queue import Queue

import pytest
import torch
import yaml
from programs import ROOT, default_signals, run
from tiny import tokenizer
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from roleagent.agents.episode import Ask
from roleagent.agents.policies.hf import HFPolicy, PolicyError
from roleagent.agents.policies.model_check import check_sampler
from roleagent.agents.policies.scratch_model import build_policy
from roleagent.agents.policies.vllm import processes
from roleagent.agents.policies.vllm.engine import (
    LocalEngine,
    check_model,
    keep_description,
    set_environment,
    sleep_level,
)
from roleagent.agents.policies.vllm.policy import check, open_vllm
from roleagent.agents.policies.vllm.requests import PROTOCOL, SampleRequest, model_shape
from roleagent.agents.policies.vllm.server import Service, application
from roleagent.agents.policies.vllm.sync import BrokenChannelError, Channel, join_store, open_store, send_weights
from roleagent.config import ConfigError, load
from roleagent.config.settings import LoRAConfig, PolicyConfig
from roleagent.learners.engine.lora import ModuleWeights, adapt
from roleagent.learners.run.checkpoints import save_policy
from roleagent.types import Request

NEEDS_VLLM = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed (.ci/vllm)")
CONTEXT = 192
OPTIONS = [f"policy.context={CONTEXT}", "vllm.extra={kv_cache_memory_bytes: 53687091}", "vllm.memory=0.1"]
SIZES = PolicyConfig(hidden_size=64, layers=2, heads=2, kv_heads=1, mlp_size=64, context=CONTEXT)
NEVER = frozenset({-1})


def small(seed=0):
    return build_policy(SIZES, tokenizer(), torch.Generator().manual_seed(seed))


def prompts(n=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(10, 300, (3 + 11 * row,), generator=generator).tolist() for row in range(n)]


def ask(actor, texts, temperature=1.0, n=12, stops=NEVER, seed=3):
    actor.reseed(seed)
    return actor.generate([Request(tuple(text), slot, n, stops) for slot, text in enumerate(texts)], temperature)


def alike(ones, others):
    """The same tokens; a server computes side by side what happens to have come, and sums of floats depend on that."""
    return [one.token_ids for one in ones] == [other.token_ids for other in others] and all(
        one.logprobs == pytest.approx(other.logprobs, abs=1e-5) for one, other in zip(ones, others, strict=True)
    )


@torch.no_grad()
def gap(policy, texts, answers, temperature=1.0):
    """The largest difference between the sampler's log-probabilities and the learner's."""
    worst = 0.0
    for text, answer in zip(texts, answers, strict=True):
        logits = policy.model(input_ids=torch.tensor([[*text, *answer.token_ids]])).logits[0, len(text) - 1 : -1]
        scores = torch.log_softmax(logits.float() / (temperature or 1.0), -1)
        known = scores.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        worst = max(worst, float((known - torch.tensor(answer.logprobs)).abs().max()))
    return worst


def train_a_little(policy, seed=1):
    """What an update does to weights, enlarged: every one of them moves."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * parameter.std(correction=0) * torch.randn(parameter.shape, generator=generator))
    policy.clear_cache()


# --- without vLLM -----------------------------------------------------------------------------------------------------


def test_what_samples_from_another_model_is_refused():
    policy = small()
    check_sampler(policy.model, policy.known, small())
    with pytest.raises(PolicyError, match=r"nats from those of .* own forward, so it computes another model"):
        check_sampler(policy.model, policy.known, small(seed=9))


def test_what_cannot_work_is_refused_in_one_line(monkeypatch):
    with pytest.raises(ConfigError, match="need a server"):
        check(load(overrides=["vllm.extra={tensor_parallel_size: 2}"]))
    with pytest.raises(ConfigError, match=r"vllm\.engines starts engines on this machine: choose one"):
        load(overrides=["vllm.engines=2", "vllm.url=http://127.0.0.1:9"])
    with pytest.raises(PolicyError, match=r"no vLLM server answers at http://127\.0\.0\.1:9"):
        open_vllm(load(overrides=["vllm.url=http://127.0.0.1:9"]), small())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PolicyError, match=r"pip install .vllm"):
        check(load(overrides=["rollout.backend=vllm"]))


def test_the_path_that_vllm_compiles_for_stays_the_same(tmp_path, monkeypatch):
    """Its compile cache is looked up by the model's path: another one at each start would compile for minutes again."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    first, resumed = small(), small()
    resumed.model.config._name_or_path = "runs/a/checkpoints/step-500003/policy"
    train_a_little(resumed)
    assert keep_description(first) == keep_description(resumed)
    assert [path.name for path in (tmp_path / "roleagent").iterdir()] == [keep_description(first).name]
    other = build_policy(PolicyConfig(hidden_size=64, heads=2, kv_heads=2), tokenizer(), torch.Generator())
    assert keep_description(other) != keep_description(first)


def test_on_a_gpu_the_engine_of_a_server_is_a_new_process(monkeypatch):
    """A forked one could not use CUDA, because this one has asked for it before."""
    variables: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    set_environment(own_processes=True)
    assert variables["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


class Sleeper:
    """vLLM's engine as far as its sleep is concerned."""

    def __init__(self):
        self.done = []

    def sleep(self, level):
        self.done.append(f"sleep {level}")

    def wake_up(self, tags):
        self.done.append(f"wake {tags[0]}")

    def reset_prefix_cache(self):
        return True

    def collective_rpc(self, name, args):
        self.done.append(name)


@pytest.mark.parametrize(("options", "level"), [([], 2), (["lora.rank=4"], 1), (["vllm.sleep=off"], 0)])
def test_what_vllm_gives_back_for_an_update(options, level):
    engine = LocalEngine.__new__(LocalEngine)
    engine._llm, engine._asleep, engine._empty = Sleeper(), set(), False
    engine._level = sleep_level(load(overrides=options))
    engine.offload()
    if level == 2:  # another model's answers would come from what the memory happens to hold
        with pytest.raises(PolicyError, match="vLLM has no weights"):
            engine.submit(0, [], 1.0)
    if level:
        engine.load_weights([])
    engine.offload()  # nothing was sampled since: only the weights woke
    once = [f"sleep {level}", "wake weights", "copy_weights", f"sleep {level}"]
    assert engine._llm.done == (once if level else [])


def test_an_update_leaves_an_engine_alone_that_does_not_sleep():
    """With rollout.async_level=1 it samples meanwhile, and vLLM cannot drop what is in use."""
    engine = LocalEngine.__new__(LocalEngine)
    engine._llm, engine._asleep, engine._empty, engine._level = Sleeper(), set(), False, 0
    engine._llm.reset_prefix_cache = lambda: False
    engine.offload()
    assert engine._llm.done == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="only the kernels for the CPU are particular")
def test_heads_that_would_crash_vllm_are_refused():
    with pytest.raises(PolicyError, match="this policy's are of 16"):
        check_model(
            build_policy(PolicyConfig(hidden_size=32, heads=2, kv_heads=2), tokenizer(), torch.Generator()).model.config
        )


def test_weights_of_all_types_and_shapes_arrive_whole():
    """Two receivers, threads here; the second time the sender fails in the middle."""
    cpu = torch.device("cpu")
    store = open_store("127.0.0.1")
    sent = [
        ("a", torch.randn(3, 5)),
        ("b", torch.arange(7).bfloat16()),
        ("c", torch.tensor(2.0)),
        ("d", torch.ones(1, 9).half().T),
    ]
    got, broken = {1: {}, 2: {}}, []

    def receiver(rank):
        channel = Channel(join_store("127.0.0.1", store.port, rank), rank, 3, "gloo", cpu, "127.0.0.1")
        got[rank] = dict(channel.receive())
        try:
            list(channel.receive())
        except BrokenChannelError:
            broken.append(rank)

    threads = [threading.Thread(target=receiver, args=(rank,)) for rank in (1, 2)]
    [thread.start() for thread in threads]
    ways = {"one": (Channel(store, 0, 3, "gloo", cpu, "127.0.0.1"), lambda: None)}
    assert send_weights(ways, iter(sent)) == {}

    def failing():
        yield sent[0]
        raise KeyError("in the middle")

    with pytest.raises(KeyError, match="in the middle"):
        send_weights(ways, failing())
    [thread.join(30) for thread in threads]
    for rank in (1, 2):
        assert list(got[rank]) == [name for name, _ in sent]
        assert all(torch.equal(got[rank][name], weight) for name, weight in sent)
        assert all(got[rank][name].dtype == weight.dtype for name, weight in sent)
    assert sorted(broken) == [1, 2]


SMALL = small().model.config
QUESTION = {"prompt_ids": [5, 6], "max_tokens": 3, "stop_ids": [-1], "seed": 1, "known": SMALL.vocab_size}
DESCRIPTION = {
    "protocol": PROTOCOL,
    "context": CONTEXT,
    "dtype": "float32",
    "model": model_shape(SMALL),
    "devices": ["cpu"],
    "instance": "a",
    "lora_rank": 0,
}


class Untouchable:
    """An engine that nothing must reach."""

    def __getattr__(self, name):
        raise AssertionError(f"the engine was asked to {name}")


@pytest.fixture
def service():
    testing = pytest.importorskip("starlette.testclient")
    service = Service(Untouchable(), DESCRIPTION)
    service._has_weights = True
    with testing.TestClient(application(service)) as client:
        yield service, client


@pytest.mark.parametrize(
    "damage",
    [
        {"prompt_ids": []},
        {"prompt_ids": [SMALL.vocab_size]},
        {"prompt_ids": [5, -1]},  # vLLM looks at the largest alone
        {"prompt_ids": ["5"]},
        {"prompt_ids": [5] * CONTEXT},
        {"prompt_ids": None},
        {"max_tokens": CONTEXT - 1},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"stop_ids": [2**70]},
        {"seed": 2**63},
        {"seed": None},
        {"known": SMALL.vocab_size + 1},
        {"known": 0},
    ],
    ids=str,
)
def test_a_damaged_question_never_reaches_the_engine(service, damage):
    answer = service[1].post("/generate", json={"requests": [QUESTION | damage], "temperature": 1.0})
    assert answer.status_code == 400 and "\n" not in answer.text


@pytest.mark.parametrize("body", ["", "{", "[]", '{"requests": [], "temperature": NaN}', "[" * 10**5, "{}"])
@pytest.mark.parametrize("path", ["/generate", "/join"])
def test_a_damaged_body_is_told(service, path, body):
    answer = service[1].post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and len(answer.text) < 200


def test_what_any_page_could_send_and_what_is_too_long_is_refused(service, monkeypatch):
    assert service[1].post("/weights", content="{}", headers={"content-type": "text/plain"}).status_code == 415
    monkeypatch.setattr("roleagent.agents.policies.vllm.server._LARGEST", 100)
    assert service[1].post("/weights", json={"adapter": "x" * 100}).status_code == 413


def test_half_of_the_weights_is_not_sampled_from(service):
    """The trainer failed in the middle: what the workers have now is no model."""

    class Half(Untouchable):
        async def collective_rpc(self, name, args=()):
            return ["", "BrokenChannelError: the trainer failed"]

    service[0].engine = Half()
    assert service[1].post("/weights", json={}).status_code == 409
    refused = service[1].post("/generate", json={"requests": [QUESTION], "temperature": 1.0})
    assert (refused.status_code, refused.text) == (409, "no weights have come yet")


# --- a pool of servers ------------------------------------------------------------------------------------------------


class StandIn:
    """In place of vLLM's ``AsyncLLM``, with one worker: it receives weights, and what it says depends on them."""

    def __init__(self):
        self.answered, self.fails, self.scale, self.channel = 0, False, None, None

    async def collective_rpc(self, name, args=()):
        return [await asyncio.to_thread(getattr(self, name), *args)]

    def join_trainer(self, place):
        store = join_store(place["address"], place["port"], 1)
        self.channel = Channel(store, 1, 2, "gloo", torch.device("cpu"), place["own_address"])
        return ""

    def receive_weights(self):
        if self.channel is None:
            return "no trainer has joined"
        self.scale = float(dict(self.channel.receive())["model.norm.weight"].sum())
        return ""

    async def reset_prefix_cache(self):
        return True

    async def generate(self, prompt, request, number, lora_request=None):
        await asyncio.sleep(0.02)
        if self.fails:
            raise RuntimeError("the engine died")
        self.answered += 1
        token = (sum(prompt["prompt_token_ids"]) + request.seed) % 300
        said = types.SimpleNamespace(token_ids=(token,), logprobs=(-self.scale,), finish_reason="length")
        yield types.SimpleNamespace(outputs=[said])


@pytest.fixture
def pool(monkeypatch):
    """Three servers of one engine each, with the server's own code, and a policy that asks them."""
    pytest.importorskip("starlette")
    from served import Served

    monkeypatch.setattr("roleagent.agents.policies.vllm.server.sampling", lambda request, *_: request)
    monkeypatch.setattr("roleagent.agents.policies.vllm.server.answer", lambda output: output)
    engines = [StandIn() for _ in range(3)]
    with contextlib.ExitStack() as stack:
        described = [{**DESCRIPTION, "instance": str(number)} for number in range(3)]
        servers = [
            stack.enter_context(Served(application(Service(engine, one))))
            for engine, one in zip(engines, described, strict=True)
        ]
        actor = open_vllm(load(overrides=[f"vllm.url=[{','.join(one.url for one in servers)}]"]), small())
        yield engines, servers, actor


def play(actor, episodes=9, turns=4, seed=5):
    """Episodes side by side; the replies in each, by turn."""
    actor.reseed(seed)
    backend, said = actor.backend(1.0), {slot: [] for slot in range(episodes)}
    for slot in said:
        backend.submit(slot, Ask([Request((5, slot), slot, 3, NEVER)]))
    while any(len(turn) < turns for turn in said.values()):
        for slot, [reply] in backend.wait():
            said[slot].append((reply.token_ids, reply.logprobs, reply.policy_version))
            if len(said[slot]) < turns:
                backend.submit(slot, Ask([Request((5, slot, *reply.token_ids), slot, 3, NEVER)]))
    backend.close()
    return said


def test_a_server_that_dies_is_left_out_and_comes_back(pool, capsys):
    engines, servers, actor = pool
    policy = small()
    weights = ModuleWeights(policy.model)
    actor.sync(weights, 0)
    expected = play(actor)
    assert [engine.answered for engine in engines] == [12, 12, 12]  # an episode stays where it is known

    engines[1].fails = True
    assert play(actor) == expected  # its requests went to the others, and changed nothing
    assert engines[1].answered == 12 and engines[0].answered + engines[2].answered == 24 + 36
    assert "left out" in (said := capsys.readouterr().err) and servers[1].url in said
    assert [reply.token_ids for reply in ask(actor, prompts(6))]  # the analyst's way, in one call

    engines[1].fails = False
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(2)
    actor.sync(weights, 1)
    assert f"{servers[1].url} takes part again" in capsys.readouterr().err
    doubled = play(actor)
    assert engines[1].answered > 12 and len({engine.scale for engine in engines}) == 1
    assert doubled[0][0][1][0] == 2 * expected[0][0][1][0] and doubled[0][0][2] == 1

    engines[1].channel = None  # as after a restart that nobody noticed: the transfer itself fails
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(2)
    actor.sync(weights, 2)
    assert f"the weights reached all vLLM servers but {servers[1].url}" in capsys.readouterr().err
    before = engines[1].answered
    assert play(actor)[0][0][1][0] == 4 * expected[0][0][1][0] and engines[1].answered == before


def test_a_server_that_hangs_in_a_transfer_costs_the_others_nothing(pool, capsys, monkeypatch):
    engines, servers, actor = pool
    monkeypatch.setattr("roleagent.agents.policies.vllm.sync.PATIENCE", 2.0)
    monkeypatch.setattr("roleagent.agents.policies.vllm.client._GRACE", 0.5)
    weights = ModuleWeights(small().model)
    actor.sync(weights, 0)
    expected = play(actor)
    awake = threading.Event()
    engines[1].receive_weights = lambda: awake.wait(60) and "it woke up too late"
    actor.sync(weights, 1)
    assert f"the weights reached all vLLM servers but {servers[1].url}" in capsys.readouterr().err
    found = play(actor)
    assert [one[0] for one in found[0]] == [one[0] for one in expected[0]] and engines[1].answered == 12
    awake.set()
    del engines[1].receive_weights
    actor.sync(weights, 2)
    assert f"{servers[1].url} takes part again" in capsys.readouterr().err
    play(actor)
    assert engines[1].answered > 12


def test_what_another_rank_has_lost_is_joined_anew(pool, capsys, monkeypatch):
    """A server that restarted between two requests of another rank has no way to the trainer any more."""
    engines, servers, actor = pool
    weights = ModuleWeights(small().model)
    actor.sync(weights, 0)
    actor._engine._ranks = 2
    monkeypatch.setattr(torch.distributed, "all_gather_object", lambda all, own: all.__setitem__(slice(2), [own, lost]))
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", lambda state, src: None)
    lost, engines[1].channel = ["", "it was gone", ""], None
    actor.sync(weights, 1)
    said = capsys.readouterr().err
    assert f"{servers[1].url} takes part again" in said and "all vLLM servers but" not in said
    actor._engine._ranks = 1
    play(actor)
    assert engines[1].answered == 12


def test_ranks_begin_with_different_servers(pool):
    engines, _, actor = pool
    actor.sync(ModuleWeights(small().model), 0)
    for rank in range(3):
        actor._engine._first = rank
        actor._engine.cancel()  # or the episode stays where it is known
        ask(actor, prompts(1))
    assert [engine.answered for engine in engines] == [1, 1, 1]


def test_one_server_by_two_names_is_refused(pool):
    _, servers, _ = pool
    twice = [servers[0].url, servers[1].url, servers[0].url.replace("127.0.0.1", "localhost")]
    with pytest.raises(PolicyError, match=r"names one server twice: http://127.* and http://localhost"):
        open_vllm(load(overrides=[f"vllm.url=[{','.join(twice)}]"]), small())


def test_without_any_server_the_run_ends(pool):
    engines, _, actor = pool
    actor.sync(ModuleWeights(small().model), 0)
    for engine in engines:
        engine.fails = True
    with pytest.raises(PolicyError, match="answered 500: RuntimeError: the engine died"):
        play(actor)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"protocol": 1}, "speaks version 1 of the protocol, and this run"),
        ({"model": {**DESCRIPTION["model"], "num_hidden_layers": 7}}, "num_hidden_layers 7 instead of 2"),
        ({"model": {**DESCRIPTION["model"], "rms_norm_eps": 0.5}}, "rms_norm_eps 0.5 instead of 1e-06"),
        ({"lora_rank": 4}, "start it with lora.rank=0"),
        ({"dtype": "bfloat16"}, "start it with policy.dtype=float32"),
    ],
)
def test_a_server_for_something_else_is_refused_at_the_start(other, message):
    pytest.importorskip("starlette")
    from served import Served

    good, bad = (application(Service(Untouchable(), {**DESCRIPTION, **part})) for part in ({}, other))
    with Served(good) as first, Served(bad) as second, pytest.raises(PolicyError, match=message):
        open_vllm(load(overrides=[f"vllm.url=[{first.url},{second.url}]", f"policy.context={CONTEXT}"]), small())


# --- engines in processes of their own --------------------------------------------------------------------------------


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "COMMAND", [sys.executable, str(Path(__file__).with_name("engine_stand_in.py"))])
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    monkeypatch.setattr("roleagent.agents.policies.vllm.policy.require_vllm", lambda: None)


@pytest.fixture
def engines(stand_in):
    """A policy with two processes, each with a stand-in for vLLM; and the processes."""
    actor = open_vllm(load(overrides=["vllm.engines=2"]), small())
    yield actor, actor._engine._members
    processes._stop(actor._engine._members)


def test_an_engine_that_is_killed_costs_no_reply_and_starts_anew(engines, capsys):
    actor, members = engines
    policy = small()
    weights = ModuleWeights(policy.model)
    actor.sync(weights, 0)
    expected = play(actor, turns=20)
    assert expected[0][0][1] == (pytest.approx(-policy.model.model.norm.weight.sum().item()),)
    lost = members[1].process
    threading.Timer(0.1, lost.kill).start()
    assert play(actor, turns=20) == expected
    assert "a vLLM engine is left out until the next transfer of weights: vLLM engine 2 has ended" in (
        capsys.readouterr().err
    )
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(2)
    actor.offload()
    actor.sync(weights, 1)
    assert members[1].process is not lost and members[1].process.poll() is None
    assert play(actor)[0][0][1][0] == 2 * expected[0][0][1][0]
    for member in members:
        member.process.kill()
    with pytest.raises(PolicyError, match="has ended"):
        play(actor)
    actor.sync(weights, 2)
    assert len(ask(actor, prompts())) == len(prompts())


def test_what_two_threads_post_arrives_whole(engines):
    """Ahead, the rollout submits while an update begins; a connection writes a large message in two parts."""
    actor, members = engines
    actor.sync(ModuleWeights(small().model), 0)
    large = SampleRequest(tuple(range(30_000)), 3, (), 1, 300)

    def submit():
        for number in range(-100, 0):
            members[0].post("submit", number, [large], 1.0)

    rollout = threading.Thread(target=submit)
    rollout.start()
    while rollout.is_alive():
        members[0].post("cancel")
    rollout.join()
    play(actor)
    assert [member.lost for member in members] == [None] * 2


def test_what_an_engine_was_asked_and_nobody_wants_any_more_is_forgotten(engines):
    actor, _ = engines
    actor.sync(ModuleWeights(small().model), 0)
    expected = play(actor)
    backend = actor.backend(1.0)
    for slot in range(9):
        backend.submit(slot, Ask([Request((7, slot), slot, 3, NEVER)]))
    backend.close()
    assert play(actor) == expected


def test_weights_that_cannot_be_loaded_end_the_run_in_one_line(engines):
    actor, _ = engines
    policy = small()
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(PolicyError, match="vLLM engine 2: ValueError: a weight is no number"):
        actor.sync(ModuleWeights(policy.model), 0)


def test_weights_that_an_engine_cannot_copy_end_the_run_in_one_line(stand_in, monkeypatch):
    monkeypatch.setenv("ENGINE_STAND_IN", "full")
    actor = open_vllm(load(overrides=["vllm.engines=2"]), small())
    failed = Queue()

    def sync():
        try:
            actor.sync(ModuleWeights(small().model), 0)
        except PolicyError as error:
            failed.put(str(error))

    threading.Thread(target=sync, daemon=True).start()
    assert "vLLM engine 2: RuntimeError: out of memory" in failed.get(timeout=60)
    processes._stop(actor._engine._members)


def test_an_engine_needs_no_class_of_the_users(stand_in, monkeypatch, tmp_path):
    (tmp_path / "own_engine_method.py").write_text(
        "from dataclasses import dataclass\nfrom roleagent.learners.method import Method\n\n\n"
        "class Mine(Method):\n    @dataclass(frozen=True)\n    class Options:\n        worth: float = 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    actor = open_vllm(load(overrides=["vllm.engines=2", "method=own_engine_method:Mine"]), small())
    actor.sync(ModuleWeights(small().model), 0)
    assert len(ask(actor, prompts())) == len(prompts())
    processes._stop(actor._engine._members)


def test_what_an_engine_cannot_read_ends_it(engines, monkeypatch):
    _, [member, *_] = engines
    module = types.ModuleType("nowhere_else")
    module.Thing = type("Thing", (), {"__module__": "nowhere_else"})
    monkeypatch.setitem(sys.modules, "nowhere_else", module)
    member.post("submit", module.Thing())
    with pytest.raises(PolicyError, match="vLLM engine 1 has ended: ModuleNotFoundError"):
        member.reply()
    assert member.process.wait(10) == 1


def test_an_engine_gets_weights_first_and_then_the_adapter(engines):
    actor, members = engines
    policy = small()
    adapt(policy.model, LoRAConfig(rank=4, alpha=6.0), torch.Generator().manual_seed(0))
    actor._rank, actor._alpha = 4, 6.0
    train_adapter(policy, 0)
    actor.sync(ModuleWeights(policy.model), 0)
    before = ask(actor, prompts())[0].logprobs
    train_adapter(policy, 1)
    actor.sync(OnlyAdapter(policy.model), 1)
    assert ask(actor, prompts())[0].logprobs != before
    assert not any(member.bare for member in members)


def test_engines_end_with_a_parent_that_is_killed(tmp_path):
    program = f"""
import os, signal, sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[2])]!r}
from unittest import mock
from test_vllm import *
processes.COMMAND = [sys.executable, {str(Path(__file__).with_name("engine_stand_in.py"))!r}]
with mock.patch("roleagent.agents.policies.vllm.policy.require_vllm"):
    actor = open_vllm(load(overrides=["vllm.engines=2"]), small())
print(*(member.process.pid for member in actor._engine._members), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "VLLM_CACHE_ROOT": str(tmp_path)},
    )
    numbers = [int(number) for number in done.stdout.split()]
    assert len(numbers) == 2, done.stderr
    end = time.monotonic() + 60
    while running := [number for number in numbers if Path(f"/proc/{number}").exists()]:
        assert time.monotonic() < end, running
        time.sleep(0.05)


# --- the policy -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving_process(folder, *options):
    """The real server on a free port: its URL and its process."""
    command = [
        sys.executable,
        "-m",
        "roleagent.agents.policies.vllm.server",
        str(folder),
        "--port",
        "0",
        *OPTIONS,
        *options,
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, cwd=ROOT, preexec_fn=default_signals, start_new_session=True)
    errors = []
    reader = threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True)
    reader.start()
    try:
        url = next((found[1] for line in process.stdout if (found := re.search(r"vllm\.url=(\S+)", line))), None)
        assert url, "".join(errors[-30:])
        yield url, process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGKILL), "".join(errors[-30:])


@contextlib.contextmanager
def serving(folder, *options):
    with serving_process(folder, *options) as (url, _):
        yield url


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy")
    policy = small()
    save_policy(policy, path)
    return path


@pytest.fixture(scope="module", params=["in the process", "in two processes", "server"])
def actor(request, folder):
    """vLLM with the weights of another policy than any test's."""
    with contextlib.ExitStack() as stack:
        where = f"vllm.url={stack.enter_context(serving(folder))}" if request.param == "server" else "vllm.url="
        engines = ["vllm.engines=2"] if request.param == "in two processes" else []
        yield open_vllm(load(overrides=[*OPTIONS, where, *engines]), small(seed=9))


@NEEDS_VLLM
class TestPolicy:
    @pytest.fixture(autouse=True)
    def first(self, actor):
        """Before anything is synchronized, nothing is said."""
        if actor.version < 0:
            with pytest.raises(PolicyError, match="sync comes before"):
                ask(actor, prompts())

    def test_greedy_replies_are_those_of_the_local_policy(self, actor):
        policy = small()
        actor.sync(ModuleWeights(policy.model), 4)
        ours, theirs = ask(policy, prompts(), 0.0), ask(actor, prompts(), 0.0)
        assert [answer.token_ids for answer in theirs] == [answer.token_ids for answer in ours]
        for one, other in zip(theirs, ours, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
            assert (one.finish_reason, one.policy_version) == (other.finish_reason, 4)

    @pytest.mark.parametrize("temperature", [0.6, 1.0])
    def test_samples_come_with_the_probabilities_they_were_drawn_with(self, actor, temperature):
        policy = small()
        actor.sync(ModuleWeights(policy.model), 0)
        answers = ask(actor, prompts(), temperature)
        assert gap(policy, prompts(), answers, temperature) < 1e-4
        assert gap(policy, prompts(), answers, 2.0) > 0.1
        assert alike(ask(actor, prompts(), temperature), answers)
        assert not alike(ask(actor, prompts(), temperature, seed=4), answers)
        same = ask(actor, [prompts()[0]] * 4, temperature)
        assert len({answer.token_ids for answer in same}) > 1  # every request draws its own numbers

    def test_a_missed_sync_is_seen(self, actor):
        policy = small()
        actor.sync(ModuleWeights(policy.model), 0)
        ask(actor, prompts())  # what it keeps of these prompts must not outlive the weights
        train_a_little(policy)
        assert gap(policy, prompts(), ask(actor, prompts())) > 0.1
        actor.offload()
        actor.sync(ModuleWeights(policy.model), 1)
        answers = ask(actor, prompts())
        assert gap(policy, prompts(), answers) < 1e-4
        assert answers[0].policy_version == 1
        actor.offload()
        assert alike(ask(actor, prompts()), answers)  # it wakes up by itself

    def test_more_prompts_than_are_read_at_once(self, actor):
        policy = small()
        actor.sync(ModuleWeights(policy.model), 0)
        texts = [[10 + row, *[7] * (CONTEXT - 20), 10 + row] for row in range(64)]
        assert gap(policy, texts, ask(actor, texts, n=2)) < 1e-4

    def test_stops_and_limits(self, actor):
        policy = small()
        actor.sync(ModuleWeights(policy.model), 0)
        [free] = ask(actor, prompts()[:1], n=12)
        stop = free.token_ids[4]
        cut = free.token_ids.index(stop) + 1
        [stopped] = ask(actor, prompts()[:1], n=12, stops=frozenset({stop}))
        assert (stopped.token_ids, stopped.finish_reason) == (free.token_ids[:cut], "stop")
        assert (len(free.token_ids), free.finish_reason) == (12, "length")
        [last] = ask(actor, [[7] * (CONTEXT - 3)])
        assert len(last.token_ids) == 3
        with pytest.raises(ValueError, match=f"{CONTEXT} tokens does not fit"):
            ask(actor, [[7] * CONTEXT])
        assert ask(actor, []) == []
        assert [answer.finish_reason for answer in ask(actor, prompts()[:2], n=0)] == ["length"] * 2


@NEEDS_VLLM
def test_padding_of_a_vocabulary_is_never_sampled(tmp_path):
    """However probable it is."""
    policy = small()
    known = len(policy.tokenizer)
    policy.model.resize_token_embeddings(known + 64, mean_resizing=False)
    with torch.no_grad():
        head = policy.model.get_output_embeddings().weight
        head[known:] = 3 * head[:64]
    policy = HFPolicy(policy.model, policy.tokenizer, policy.generator, CONTEXT)
    save_policy(policy, tmp_path / "padded")
    with serving(tmp_path / "padded") as url:
        for place in (f"vllm.url={url}", "vllm.engines=1"):
            actor = open_vllm(load(overrides=[*OPTIONS, place]), policy)
            actor.sync(ModuleWeights(policy.model), 0)
            check_sampler(policy.model, policy.known, actor)
            for temperature in (0.0, 1.0):
                for answer in ask(actor, prompts(), temperature):
                    assert max(answer.token_ids) < known


@NEEDS_VLLM
def test_experts_have_the_weights_that_came_last():
    """On a CPU vLLM repacks those of experts. Its groups are for the first model of a process, hence another one."""
    words = tokenizer()
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 32}
    config = Qwen3MoeConfig(vocab_size=len(words), eos_token_id=words.eos_token_id, **sizes, **experts)
    policies = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        policies.append(HFPolicy(Qwen3MoeForCausalLM(config), words, torch.Generator(), CONTEXT))
    actor = open_vllm(load(overrides=[*OPTIONS, "vllm.engines=1"]), policies[0])
    for version, policy in enumerate(policies):
        actor.sync(ModuleWeights(policy.model), version)
        check_sampler(policy.model, policy.known, actor)


@NEEDS_VLLM
def test_what_was_saved_is_read_alike_by_everybody(folder):
    """Plain transformers and vLLM read the folder of a checkpoint: the same tokens, the same log-probabilities."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy, text = small(), "You join_store at cupboard 1. <action>load_weights egg from cupboard 1</action><|end|>"
    words = AutoTokenizer.from_pretrained(folder)
    ids = policy.encode(text)
    assert words.encode(text, add_special_tokens=False) == ids and words.eos_token_id == policy.eos_id
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        assert torch.equal(model(torch.tensor([ids])).logits, policy.model(torch.tensor([ids])).logits)
    program = (
        "import json, sys\n"
        "from vllm import LLM, SamplingParams\n"
        "if __name__ == '__main__':\n"
        "    llm = LLM(sys.argv[1], dtype='float32', enforce_eager=True, **json.loads(sys.argv[3]))\n"
        "    greedy = SamplingParams(temperature=0, max_tokens=8, logprobs=0, ignore_eos=True)\n"
        "    [found] = llm.generate([sys.argv[2]], greedy)\n"
        "    chosen = found.outputs[0]\n"
        "    logprobs = [each[t].logprob for each, t in zip(chosen.logprobs, chosen.token_ids)]\n"
        "    print('FOUND', json.dumps([found.prompt_token_ids, list(chosen.token_ids), logprobs]))\n"
    )
    cache = {"gpu_memory_utilization": 0.1} if torch.cuda.is_available() else {"kv_cache_memory_bytes": 2**26}
    quiet = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), text, json.dumps(cache)],
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    prompt, tokens, logprobs = json.loads(done.stdout.split("FOUND ")[1])
    assert prompt == ids
    [expected] = ask(policy, [ids], 0.0, n=8)
    assert tuple(tokens) == expected.token_ids
    assert logprobs == pytest.approx(expected.logprobs, abs=1e-4)


@NEEDS_VLLM
def test_one_of_three_servers_is_killed_in_the_middle(folder, capsys):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving_process(folder)) for _ in range(3)]
        actor = open_vllm(load(overrides=[*OPTIONS, f"vllm.url=[{','.join(url for url, _ in servers)}]"]), small())
        policy = small()
        weights = ModuleWeights(policy.model)
        actor.sync(weights, 0)
        expected = play(actor, episodes=24)
        killed = servers[1][1].pid
        threading.Timer(0.1, os.kill, (killed, signal.SIGKILL)).start()
        again = play(actor, episodes=24, turns=24)
        assert servers[1][0] in capsys.readouterr().err
        for slot, turns in expected.items():
            assert [tokens for tokens, *_ in again[slot][:4]] == [tokens for tokens, *_ in turns]
        train_a_little(policy)
        actor.sync(weights, 1)
        assert f"the weights reached all vLLM servers but {servers[1][0]}" in capsys.readouterr().err
        assert gap(policy, prompts(), ask(actor, prompts())) < 1e-4
        servers[1][1].wait()
        with pytest.raises(ProcessLookupError):  # nothing is left of its group
            for _ in range(600):
                os.killpg(killed, 0)
                time.sleep(0.1)


# --- adapters ---------------------------------------------------------------------------------------------------------


@NEEDS_VLLM
def test_only_the_adapter_goes_over(folder):
    """The second time no other weight is asked for; and what vLLM then computes is what the learner computes."""
    with serving(folder, "lora.rank=4") as url:
        policy = small()
        adapt(policy.model, LoRAConfig(rank=4, alpha=6.0), torch.Generator().manual_seed(0))
        actor = open_vllm(load(overrides=[*OPTIONS, f"vllm.url={url}", "lora.rank=4", "lora.alpha=6"]), policy)
        held = ModuleWeights(policy.model)
        for version in range(3):
            train_adapter(policy, version)
            actor.sync(held, version)
            assert gap(policy, prompts(), ask(actor, prompts())) < 1e-4
            held = OnlyAdapter(policy.model)
        train_adapter(policy, 9)
        assert gap(policy, prompts(), ask(actor, prompts())) > 0.1


class OnlyAdapter(ModuleWeights):
    def weights(self, adapted=True):
        raise AssertionError("all weights were asked for")


def train_adapter(policy, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.3, generator=generator)
    policy.clear_cache()


# --- a whole run ------------------------------------------------------------------------------------------------------

RUN = {
    "env": {
        "id": "RoleAgent/ALFWorld-v0",
        "eval_split": "train",
        "eval_tasks": 2,
        "kwargs": {"max_steps": 6, "size": "small", "games": 2, "data_dir": "generated"},
    },
    "policy": {
        "hidden_size": 64,
        "layers": 2,
        "heads": 2,
        "kv_heads": 1,
        "mlp_size": 128,
        "context": 512,
        "vocabulary": 400,
    },
    "warmstart": {"episodes": 12, "epochs": 2, "batch_tokens": 1024, "failures": 0, "rounds": 1, "round_episodes": 4},
    "estimator": {"rewards": {"overlong": -1.0}},  # nobody wins so soon, and an update needs episodes of unlike reward
    "rollout": {"backend": "vllm", "num_groups": 2, "group_size": 3, "action_tokens": 12, "prediction_tokens": 24},
    "curriculum": {"analyst": "rule"},
    "optim": {"minibatches": 1, "lr": 3e-3, "warmup_steps": 0},
    "vllm": {"extra": {"kv_cache_memory_bytes": 53687091}, "memory": 0.1},
    "train": {"iterations": 1, "keep_checkpoints": 20},
}


@NEEDS_VLLM
def test_a_run_with_vllm_goes_on_with_a_server(tmp_path):
    """A round of the warm start and an iteration with an engine in the process; resumed, an iteration with a server
    that has the checkpoint's model; one with two engines in processes of their own; and an evaluation.

    All sample with the weights that the learner has then: an iteration's log-probabilities are those of the learner
    before its update.
    """
    config, folder = tmp_path / "run.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(RUN))
    arguments = ("--config", config, f"run_dir={folder}")
    status, _, err = run("train", *arguments)
    assert status == 0, err
    policy = sorted((folder / "checkpoints").glob("step-5*"))[0] / "policy"
    with serving(policy, "policy.context=512") as url:
        status, out, err = run("train", *arguments, "--resume", "train.iterations=2", f"vllm.url={url}")
    assert status == 0, err
    status, out, err = run("train", *arguments, "--resume", "train.iterations=3", "vllm.engines=2")
    assert status == 0, err
    assert "resuming from" in out
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["stage"] == "train"]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(abs(row["mismatch"]) < 1e-3 for row in rows), rows
    assert all(row["mismatch_max"] > 0 and row["grad_norm"] > 0 and row["sync_seconds"] > 0 for row in rows)
    assert json.loads((folder / "after.json").read_text())["policy_version"] == 3
    records = tmp_path / "records.jsonl"
    status, _, err = run("evaluate", "--agent", folder, "--out", records, "--set", "rollout.backend=vllm")
    assert status == 0, err
    header, *played = map(json.loads, records.read_text().splitlines())
    assert header["sampler"] == "vllm" and len(played) == header["tasks"] > 1
