"""DeepSpeed in all its stages: the same updates, alone and in two processes that talk over gloo.

What two processes do is in ``together.py``: one start of it, and many cases.
"""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from programs import HANGS, ROOT
from tiny import qwen
from together import BF16, CONTINUED, TRAININGS, batch, learner_of, update, watched_gradients
from transformers import AutoModelForCausalLM

from roleagent.config import ConfigError, load, to_dict
from roleagent.config.settings import LoRAConfig
from roleagent.learners.engine import engine
from roleagent.learners.engine.engine import check_deepspeed, deepspeed_settings
from roleagent.learners.engine.logprobs import TokenScorer, collate, enable_activation_checkpointing
from roleagent.learners.engine.lora import Adapter, AdapterSwap, adapt, plain_weights
from roleagent.learners.engine.optimizer import Muon, build_optimizer
from roleagent.learners.run.checkpoints import Checkpoints
from roleagent.learners.run.export import export

FP32 = [name for name in TRAININGS if not name.startswith("bf16")]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What came of all cases: alone, and of each of two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    pair = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    folders = {name: tmp_path_factory.mktemp(name) for name in ("alone", "pair")}

    def start(folder, **variables):
        return subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "together.py"), str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    processes = [start(folders["pair"], **pair, RANK=rank, LOCAL_RANK=rank) for rank in ("0", "1")]
    processes.append(start(folders["alone"]))
    try:
        said = [process.communicate(timeout=HANGS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0], "\n".join(said)
    files = [folders["pair"] / "rank-0.pt", folders["pair"] / "rank-1.pt", folders["alone"] / "rank-0.pt"]
    return [torch.load(file) for file in files]


def flat(tensors):
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def distance(one, other):
    return float((flat(one) - flat(other)).norm() / flat(other).norm())


@pytest.mark.long
@pytest.mark.parametrize("name", FP32)
def test_two_processes_take_the_steps_of_one_that_accumulates_twice_as_much(found, name):
    *ranks, alone = (each["train fp32 0"] if each is found[2] else each[f"train {name}"] for each in found)
    for rank in (*ranks, found[2][f"train {name}"]):
        assert distance(rank["gradients"], alone["gradients"]) < 1e-6
        assert rank["norms"] == pytest.approx(alone["norms"], rel=1e-5)
        # AdamW enlarges rounding where a gradient is nearly 0; how far depends on the processor. A step is 1e-3.
        assert (flat(rank["weights"]) - flat(alone["weights"])).abs().max() < 3e-4
        assert rank["policy_has_them"]
    start = dict(plain_weights(qwen(seed=3).model))
    assert distance(alone["weights"], start) > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_stages_agree_in_bfloat16(found, stage):
    expected = found[2]["train bf16 1"]
    for each in found:
        rank = each[f"train bf16 {stage}"]
        assert distance(rank["gradients"], expected["gradients"]) < 1e-2
        assert distance(rank["weights"], expected["weights"]) < 2e-3
    assert distance(expected["weights"], found[2]["train fp32 0"]["weights"]) < 1e-2


@pytest.mark.long
def test_ranks_with_unequal_numbers_of_blocks_of_logits_learn_together_at_stage_3(found):
    alone = found[2]["large vocabulary 2"]
    for stage in (2, 3):
        ranks = [each[f"large vocabulary {stage}"] for each in found[:2]]
        assert ranks[0]["norms"] == ranks[1]["norms"] == pytest.approx(alone["norms"], rel=1e-5)
        assert ranks[1]["scores"] + ranks[0]["scores"] == pytest.approx(alone["scores"], rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["Qwen3-MoE", "gpt-oss"])
def test_experts_that_are_spread_over_ranks_learn_as_whole_ones(found, name):
    alone = found[2][f"{name} 0"]
    for each in found:
        for stage in (0, 3):
            rank = each[f"{name} {stage}"]
            assert rank["norms"] == pytest.approx(alone["norms"], rel=1e-4)
            assert rank["router_loss"] == pytest.approx(alone["router_loss"], rel=1e-5)
            assert (flat(rank["weights"]) - flat(alone["weights"])).abs().max() < 3e-4
    assert found[0][f"{name} 3"]["parts"] == 0 < alone["parts"]


@pytest.mark.long
@pytest.mark.parametrize("stage", range(4))
def test_a_rank_that_is_done_at_once_waits_for_nobody_and_learns_the_same(found, stage):
    first, second = (each[f"at once {stage}"] for each in found[:2])
    assert (first["said"], second["said"]) == (3 * 4 * 4 * 30, 0)
    assert first["version"] == second["version"] == 3
    assert torch.equal(flat(first["weights"]), flat(second["weights"]))
    assert distance(first["weights"], dict(plain_weights(qwen(seed=3).model))) > 1e-4
    assert first["spread"] == (stage == 3)
    assert first["reference"] == found[0]["at once 0"]["reference"]


@pytest.mark.long
@pytest.mark.parametrize(("name", "adapter"), CONTINUED)
def test_loaded_it_goes_on_bit_for_bit(found, name, adapter):
    for each in found:
        case = each[f"continued {name} {adapter}"]
        assert torch.equal(flat(case["again"]), flat(case["kept"]))
        assert torch.equal(flat(case["found"]), flat(case["expected"]))
        assert not torch.equal(flat(case["found"]), flat(case["kept"]))


@pytest.mark.long
@pytest.mark.parametrize("stage", range(4))
def test_adapters_alone_learn_and_the_reference_is_the_model_without_them(found, stage):
    base = dict(plain_weights(qwen(seed=3).model))
    for each in found:
        case = each[f"adapters {stage}"]
        assert case["reference"] == case["before"]
        assert any(one != other for one, other in zip(case["after"], case["before"], strict=True))
        assert case["weights"].keys() == base.keys()
        changed = {name for name in base if not torch.equal(case["weights"][name], base[name])}
        assert {name.split(".")[-2] for name in changed} == {
            *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        }
        # Two moments for each number of the adapter, of which two ranks hold a half each.
        share = 2 if each is not found[2] and stage else 1
        assert case["states"] == 2 * case["trained"] / share
        assert distance(case["weights"], found[2]["adapters 0"]["weights"]) < 1e-5


def logprobs(model, segments):
    with torch.no_grad():
        return TokenScorer(model.eval())(collate(segments, 0), 1.0)[0]


def trained_adapter(tmp_path, dtype=torch.float32):
    policy = qwen(seed=3)
    policy.model.to(dtype)
    policy.model.save_pretrained(tmp_path / "base")
    adapt(policy.model, LoRAConfig(rank=4), torch.Generator().manual_seed(1))
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if ".lora_B." in name:
                weight.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(2))
    return policy.model, tmp_path / "base"


def test_an_adapter_is_peft_s_and_its_sum_a_plain_model(tmp_path):
    from peft import PeftModel

    model, base = trained_adapter(tmp_path)
    Adapter.of(model).save(tmp_path / "adapter")
    expected, segments = logprobs(model, batch(0)), batch(0)
    model.save_pretrained(tmp_path / "plain", state_dict=dict(plain_weights(model)))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(tmp_path / "adapter"))
    assert (logprobs(AutoModelForCausalLM.from_pretrained(base), segments) - expected).abs().max() > 0.1
    torch.testing.assert_close(logprobs(plain, segments), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logprobs(theirs.get_base_model(), segments), expected, rtol=1e-4, atol=1e-4)
    assert {type(module).__name__ for module in plain.modules()} == {
        type(module).__name__ for module in qwen().model.modules()
    }


def test_in_bfloat16_the_sum_is_rounded_once(tmp_path):
    model, _ = trained_adapter(tmp_path, torch.bfloat16)
    layer = model.model.layers[0].mlp.up_proj
    product = layer.lora_B["default"].weight.double() @ layer.lora_A["default"].weight.double()
    expected = layer.base_layer.weight + product * layer.scaling["default"]
    found = dict(plain_weights(model))["model.layers.0.mlp.up_proj.weight"]
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=0.0)


def test_two_updates_of_an_adapter_reach_the_exported_model(tmp_path):
    """The exported folder alone gives the logits of base and adapter, and they are not those of the base."""
    from peft import PeftModel

    qwen(seed=3).model.save_pretrained(tmp_path / "base")
    learner, text = learner_of("optim.lr=1e-2", adapter=4), torch.tensor([batch(0)[0].token_ids])
    for number in (0, 1):
        update(learner, batch(number))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump(to_dict(load(overrides=["lora.rank=4", "policy.path=base"]))))
    state = {"stage": "train", "step": 2, "version": 2}
    checkpoint = Checkpoints(run / "checkpoints").save(2, learner, state)
    learner.close()
    export(run, tmp_path / "exported")

    def logits(model):
        with torch.no_grad():
            return model.eval()(text).logits

    base, plain = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("base", "exported"))
    before, after = logits(base), logits(plain)
    added = logits(PeftModel.from_pretrained(base, str(checkpoint / "adapter")))
    assert (after - before).abs().max() > 1e-2
    torch.testing.assert_close(after, added, rtol=0, atol=1e-5)


@pytest.mark.parametrize("frozen", [False, True])
def test_layers_are_computed_again_for_the_gradient_and_only_then(frozen):
    policy = qwen(seed=3)
    if frozen:
        adapt(policy.model, LoRAConfig(rank=2), torch.Generator().manual_seed(0))
    enable_activation_checkpointing(policy.model)  # by the stage before
    calls = []
    policy.model.base_model.layers[0].mlp.register_forward_hook(lambda *_: calls.append(1))
    enable_activation_checkpointing(policy.model)
    assert len(policy.model.get_input_embeddings()._forward_hooks) == frozen
    TokenScorer(policy.model.train())(collate(batch(0), 0), 1.0)[0].sum().backward()
    assert len(calls) == 2
    logprobs(policy.model, batch(0))
    assert len(calls) == 3


@pytest.mark.slow
@pytest.mark.parametrize("again", ["off", "on"])
def test_compiled_layers_learn_the_same(again):
    """Under activation checkpointing, too; and one compilation serves all layers and lengths."""
    torch._dynamo.reset()
    fixed = ["optim.micro_batch_tokens=90", f"deepspeed.activation_checkpointing={again}"]
    plain, compiled = (learner_of(*fixed, f"optim.compile={switch}") for switch in ("off", "on"))
    graphs = []
    for number in range(5):
        expected, found = {}, {}
        with watched_gradients(plain, expected), watched_gradients(compiled, found):
            update(plain, batch(number))
            update(compiled, batch(number))
        for name, gradient in expected.items():
            assert (found[name] - gradient).abs().max() < 1e-6, name
        compiled.module.load_state_dict(plain.module.state_dict())  # a step of AdamW enlarges what rounding differs in
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] > 0 and graphs[2] == graphs[4], graphs
    assert np.allclose(compiled.score(batch(4), 1.0)[0], plain.score(batch(4), 1.0)[0], atol=1e-5)


def test_at_stage_3_no_whole_copy_goes_to_the_accelerator(monkeypatch):
    moved, plain = [], torch.nn.Module.to

    def to(self, *arguments, **options):
        moved.append(self)
        return plain(self, *arguments, **options)

    monkeypatch.setattr(torch.nn.Module, "to", to)
    learner = learner_of("deepspeed.zero_stage=3")
    assert all(hasattr(weight, "ds_id") for weight in learner.module.parameters())
    assert learner.module not in moved
    learner.close()
    assert not hasattr(learner, "module")  # what the stages after it need the memory for


def test_deepspeed_may_compile_while_it_builds_the_optimizer(monkeypatch, capsys):
    """As it does with its Adam for CPUs; what compiles it flushes the standard output."""

    def compiling(*arguments):
        print("Building extension module cpu_adam...")
        sys.stdout.flush()
        return build_optimizer(*arguments)

    monkeypatch.setattr(engine, "build_optimizer", compiling)
    learner_of().close()
    assert capsys.readouterr().out == ""


def test_extra_settings_have_the_last_word_and_leave_the_others():
    extra = "deepspeed.extra={zero_optimization: {reduce_bucket_size: 1000}, gradient_clipping: 7.0}"
    settings = deepspeed_settings(load(overrides=[BF16, extra]))
    assert settings["zero_optimization"]["stage"] == 1  # of bfloat16
    assert settings["zero_optimization"]["reduce_bucket_size"] == 1000
    assert settings["gradient_clipping"] == 7.0 and settings["bf16"] == {"enabled": True}


PRETRAINED = ("policy.path=/x", "warmstart.episodes=0", "deepspeed.zero_stage=1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["deepspeed.zero_stage=1"], "warmstart.optimizer=muon works on whole matrices"),
        ([*PRETRAINED, "method=agent_r"], "warmstart.optimizer=muon works on whole matrices"),
        ([*PRETRAINED, "genenv=on", "simulator.weights=own"], "warmstart.optimizer=muon works on whole matrices"),
        (["deepspeed.extra={gradient_accumulation_steps: 4}"], "cannot set gradient_accumulation_steps"),
        (["lora.rank=8"], "name one with policy.path"),
        (["optim.compile=on"], "let vLLM or a server sample"),
        (
            [*PRETRAINED, "optim.compile=on", "rollout.backend=vllm", "deepspeed.zero_stage=3"],
            "without lora.rank, ZeRO stage 3",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        check_deepspeed(load(overrides=options))


@pytest.mark.parametrize("tied", [True, False])
def test_muon_has_the_matrices_between_embeddings_and_head(tied):
    model = qwen().model
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    muon, adamw = build_optimizer("muon", TokenScorer(model), 1e-3, 0.0, 0.95).parts
    names = {id(weight): name for name, weight in model.named_parameters()}
    by_muon, others = ({names[id(w)] for group in part.param_groups for w in group["params"]} for part in (muon, adamw))
    assert {name.split(".")[-2] for name in by_muon} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }
    assert ("lm_head.weight" in others) == (not tied) and "model.embed_tokens.weight" in others


def test_muon_takes_torchs_steps_in_float32():
    """torch orthogonalizes in bfloat16, so its steps agree to about two digits; directions agree much better."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(6, 4), (4, 6), (4, 4), (6, 4), (5, 5)]
    ours, theirs = ([torch.nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    options = {"lr": 0.1, "weight_decay": 0.01, "adjust_lr_fn": "match_rms_adamw"}
    mine, reference = Muon(ours, **options), torch.optim.Muon(theirs, **options)
    for _ in range(3):
        for own, other in zip(ours, theirs, strict=True):
            own.grad = torch.randn(own.shape, generator=generator)
            other.grad = own.grad.clone()
        mine.step()
        reference.step()
    for own, other in zip(ours, theirs, strict=True):
        moved, expected = own.detach() - 1, other.detach() - 1
        assert torch.nn.functional.cosine_similarity(moved.flatten(), expected.flatten(), 0) > 0.999
        torch.testing.assert_close(moved, expected, rtol=0.05, atol=0.01)
    assert mine.state_dict()["state"].keys() == reference.state_dict()["state"].keys()
    assert all(one.dtype == torch.float32 for state in mine.state.values() for one in state.values())


def test_another_adapter_is_worn_for_a_while(tmp_path):
    model, base = trained_adapter(tmp_path)
    worn, own = Adapter.of(model), logprobs(model, batch(0))
    Adapter(worn.config, {name: torch.zeros_like(weight) for name, weight in worn.weights.items()}).put_into(model)
    without = logprobs(model, batch(0))
    with worn.swapped_into(model):
        assert torch.equal(logprobs(model, batch(0)), own)
    assert torch.equal(logprobs(model, batch(0)), without)
    reference = AdapterSwap(TokenScorer(model), worn)
    assert torch.equal(reference(collate(batch(0), 0), 1.0)[0], own)
    places = {name: weight.data_ptr() for name, weight in reference.adapter.weights.items()}
    with reference.adapter.swapped_into(model):  # nothing is copied: this happens in every micro-batch
        inside = {weight.data_ptr() for name, weight in model.named_parameters() if ".lora_" in name}
    assert inside == set(places.values())
    begins_alike = [batch(0)[0]] * 3
    assert len(reference.plan(begins_alike, len(batch(0)[0]))) == 1, "common beginnings are computed once"
    torch.testing.assert_close(without, logprobs(AutoModelForCausalLM.from_pretrained(base), batch(0)))
