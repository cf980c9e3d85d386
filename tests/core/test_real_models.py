"""Every path that takes a language model, walked with real ones: small, pretrained, with chat templates of their own.

``ROLEAGENT_MODELS`` names a folder with the models' folders: ``smollm2`` (SmolLM2-135M-Instruct) and, for the shorter
walks, ``qwen05`` (Qwen2.5-Coder-0.5B-Instruct). ``.ci/models`` builds the small ones. The walks show that a path works;
they are too short to learn anything.
"""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from fake_openai import message, serving
from programs import ROOT, overrides

pytestmark = pytest.mark.slow

MODELS = Path(os.environ.get("ROLEAGENT_MODELS", "/nowhere"))
TINY = {
    "env": {"id": "RoleAgent/Toy-v0", "eval_split": "valid", "eval_tasks": 1, "kwargs": {"max_steps": 2}},
    "policy": {"context": 1024},
    "warmstart": {"episodes": 0, "optimizer": "adamw", "lr": 1e-4, "failures": 0, "batch_tokens": 400},
    "rollout": {
        "num_groups": 1,
        "group_size": 4,
        "action_tokens": 16,
        "temperature": 1.5,
        "prediction_tokens": 8,
        "eval_sampled": 0,
    },
    "loss": {"kl": 0},
    "optim": {"lr": 1e-5, "minibatches": 1},
    "curriculum": {"reflection_tokens": 24, "selection_tokens": 16},
    "simulator": {"lr": 1e-5},
    "train": {"iterations": 1, "keep_checkpoints": 1},
    "tracking": {"to": []},
}
# At this temperature some replies are nonsense up to the limit: every group teaches something.
UNEQUAL = ["estimator.rewards.overlong=-1", "estimator.rewards.task=1", "estimator.overlong_buffer=1"]
PLAIN = ["wia=off", "aiw=off"]
AGENT_R = {
    "options": {
        "search": {"tasks": 1, "num_children": 2, "simulations": 2, "depth": 12, "expert_prefix": 0.9},
        "revision": {"iterations": 1, "alpha": [0], "beta": 0.01},
    },
    "env": {"kwargs": {"max_steps": 12}},
}
GENENV = ["method=grpo", *PLAIN, *UNEQUAL, "genenv=on", "simulator.kind=model"]
TRAINING = {
    "GRPO": ["method=grpo", *PLAIN, *UNEQUAL],
    "GiGPO": ["method=gigpo", *PLAIN, *UNEQUAL],
    "Role-Agent": [*UNEQUAL, "curriculum.analyst=model"],
    "PPO": ["method=ppo", *PLAIN, *UNEQUAL, "critic.lr=1e-5"],
    "bfloat16": ["method=grpo", *PLAIN, *UNEQUAL, "policy.dtype=bfloat16"],
    "LoRA": ["method=grpo", *PLAIN, *UNEQUAL, "lora.rank=2", "loss.kl=1e-3"],
    "a simulator of its own": GENENV,
    "a simulator that shares the weights": [*GENENV, "simulator.weights=shared"],
}


def folder_of(name):
    if not (MODELS / name / "config.json").exists():
        pytest.skip(f"needs the real model {name}: set ROLEAGENT_MODELS to the folder that has it (.ci/models)")
    return MODELS / name


@pytest.fixture(scope="module")
def smollm2():
    return folder_of("smollm2")


@pytest.fixture(scope="module")
def imitation(smollm2, tmp_path_factory):
    """A run of imitation and a round of DAgger: the model has the language of the game afterwards."""
    run = tmp_path_factory.mktemp("imitation") / "run"
    steps = ["warmstart.episodes=4", "warmstart.epochs=4", "warmstart.lr=1e-4", "env.kwargs.max_steps=12"]
    train(smollm2, run, *PLAIN, *steps, "warmstart.rounds=1", "warmstart.round_episodes=1", "train.iterations=0")
    return run


@pytest.fixture(scope="module")
def taught(imitation):
    """The model of that run, to begin other runs with."""
    return newest(imitation)


def train(path, folder, *options):
    """A run with a real model; its result, and whether the first weight matrix has moved."""
    from roleagent.programs.train import main

    assert main([*overrides(TINY), f"policy.path={path}", f"run_dir={folder}", *options]) == 0
    return json.loads((folder / "result.json").read_text())


def newest(run):
    return sorted((run / "checkpoints").iterdir())[-1] / "policy"


def moved(run, start):
    """Whether the policy of a run has other weights than the model that it began as."""
    from safetensors.torch import load_file

    before, after = (load_file(place / "model.safetensors") for place in (start, newest(run)))
    assert all(bool(weights.isfinite().all()) for weights in after.values())
    return any(
        not torch.equal(before[name].float(), weights.float()) for name, weights in after.items() if name in before
    )


def test_a_real_model_learns_the_language_of_the_game(imitation, smollm2):
    """Some updates of imitation halve the loss of commands."""
    rows = [json.loads(row) for row in (imitation / "metrics.jsonl").read_text().splitlines()]
    losses = [row["action_loss"] for row in rows if "action_loss" in row]
    assert losses[-1] < 1.0, losses
    assert moved(imitation, smollm2)


@pytest.mark.parametrize("path", TRAINING)
def test_a_real_model_is_trained(taught, path, tmp_path, monkeypatch):
    few = {"SAMPLED": 8, "EXAMPLES": 8, "ROUNDS": 1}  # of a simulator with weights of its own
    for name, number in few.items():
        monkeypatch.setattr(f"roleagent.learners.genenv.training.{name}", number)
    train(taught, tmp_path / "run", *TRAINING[path])
    assert moved(tmp_path / "run", taught), f"{path} left the model as it was"
    if "lora.rank=2" in TRAINING[path]:
        assert (newest(tmp_path / "run").parent / "adapter" / "adapter_model.safetensors").exists()


def test_agent_r_judges_with_the_model_itself(taught, tmp_path, capsys):
    """An expert plays the head of each episode, so that there is a good path to imitate."""
    from roleagent.programs.train import main

    options = [
        *overrides(TINY),
        *overrides(AGENT_R),
        "method=agent_r",
        *PLAIN,
        f"policy.path={taught}",
        f"run_dir={tmp_path / 'run'}",
    ]
    assert main(options) == 0, capsys.readouterr().err
    batches = [*(tmp_path / "run").rglob("batch-*.jsonl.gz")]
    assert batches
    assert moved(tmp_path / "run", taught)


def test_a_run_is_resumed_exported_and_played(taught, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from roleagent.cli import main as roleagent
    from roleagent.programs.train import main

    monkeypatch.chdir(tmp_path)
    run, out = tmp_path / "run", tmp_path / "policy"
    train(taught, run, "method=grpo", *PLAIN, *UNEQUAL)
    first = (newest(run) / "model.safetensors").read_bytes()
    assert main(["--resume", str(run), "train.iterations=2"]) == 0
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 2
    assert first != (newest(run) / "model.safetensors").read_bytes()
    shutil.rmtree(out, ignore_errors=True)
    assert roleagent(["export", str(run), "--out", str(out), "--dtype", "bfloat16"]) == 0
    model, words = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    said = words.apply_chat_template([{"role": "user", "content": "Say yes."}], add_generation_prompt=True)
    ids = said["input_ids"] if hasattr(said, "keys") else said
    assert model.generate(torch.tensor([ids]), max_new_tokens=2).shape[1] > len(ids)
    assert play("--agent", str(out), "--set", "wia=off")["n"] == 1


# --- evaluation -------------------------------------------------------------------------------------------------------


def play(*arguments, env="RoleAgent/Toy-v0", split="valid", tasks=1, steps=2):
    """The result of an evaluation of very few episodes."""
    from roleagent.programs.evaluate import main

    limit = ["--env-arg", f"max_steps={steps}"] if steps else []
    where = [
        "--env",
        env,
        "--split",
        split,
        "--tasks",
        str(tasks),
        *limit,
        "--max-tokens",
        "8",
        "--out",
        "result.jsonl",
    ]
    Path("result.jsonl").unlink(missing_ok=True)
    assert main([*where, *arguments]) == 0
    return json.loads(Path("result.result.json").read_text())


@pytest.mark.parametrize("model", ["smollm2", "qwen05"])
@pytest.mark.parametrize("agent", ["plain", "react", "reflexion", "rag", "tools"])
def test_a_real_model_is_prompted(model, agent, tmp_path, monkeypatch):
    path = folder_of(model)
    if model == "qwen05" and agent not in ("react", "tools"):
        pytest.skip("the shorter check of a second template")
    monkeypatch.chdir(tmp_path)
    worlds = {"rag": {"env": "RoleAgent/SearchQA-v0", "split": "test_sample", "steps": 0}}
    worlds["tools"] = {"env": "RoleAgent/Office-v0", "split": "test", "steps": 0}
    name = "plain" if agent == "tools" else agent
    trials = ["--agent-arg", "trials=2"] if agent == "reflexion" else []
    result = play("--agent", name, "--model-path", str(path), *trials, **worlds.get(agent, {}))
    assert result["n"] == 1
    assert result["errors"] == 0
    assert result["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("model", ["smollm2", "qwen05"])
def test_the_standard_prompts_call_tools_as_the_template_does(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = play(
        "--agent", str(folder_of(model)), "--set", "wia=off", env="RoleAgent/Office-v0", split="test", steps=0
    )
    assert result["n"] == 1
    assert result["errors"] == 0


def test_a_gguf_file_becomes_a_folder_that_answers(smollm2, tmp_path):
    """By the program of docs/pretrained.md."""
    pytest.importorskip("gguf", reason="needs gguf and accelerate (.ci/models)")
    from roleagent.agents.chat.models import PolicyChatModel
    from roleagent.agents.policies.hf import HFPolicy

    page = (ROOT / "docs" / "pretrained.md").read_text(encoding="utf-8")
    found: dict = {"__name__": "convert_gguf"}
    exec(page.partition("# convert_gguf.py\n")[2].partition("```")[0], found)
    found["convert"](MODELS / "smollm2.gguf", tmp_path / "folder")
    model = PolicyChatModel(HFPolicy.from_path(tmp_path / "folder", torch.Generator(), context_length=256))
    question = [{"role": "user", "content": "What is the capital of France?"}]
    [answer] = model.chat([question], max_tokens=8, temperature=0.0)
    assert "Paris" in answer.text


# --- behind a server, and beside the policy ---------------------------------------------------------------------------


@contextmanager
def served(path):
    """A model behind OpenAI's protocol."""
    from roleagent.agents.chat.models import PolicyChatModel
    from roleagent.agents.policies.hf import HFPolicy

    model = PolicyChatModel(HFPolicy.from_path(path, torch.Generator().manual_seed(0), context_length=2048))

    def reply(body, number):
        [answer] = model.chat([body["messages"]], max_tokens=min(16, body["max_tokens"]), temperature=0.0)
        return message(answer.text, answer.finish_reason, (answer.prompt_tokens, answer.completion_tokens))

    with serving(reply) as fake:
        yield fake


def test_analyst_and_simulator_are_another_model_behind_a_server(smollm2, taught, tmp_path):
    with served(smollm2) as fake:
        server = {"url": fake.url, "timeout": 300, "concurrency": 1, "answer_tokens": 16}
        analyst = ["aiw=on", "curriculum.analyst=endpoint", *(f"endpoint.{key}={one}" for key, one in server.items())]
        writer = ["genenv=on", "simulator.kind=endpoint"]
        result = train(taught, tmp_path / "run", "method=grpo", "wia=off", *UNEQUAL, *analyst, *writer)
    asked = " ".join(body["messages"][-1]["content"] for body in fake.asked)
    assert "failure" in asked
    assert result["counters"]["curriculum_failures"] > 0
    assert any("task" in one["messages"][-1]["content"] for one in fake.asked)


def test_the_analyst_is_another_local_model(smollm2, taught, tmp_path, monkeypatch):
    """The class of the page "Use a pretrained model"."""
    page = (ROOT / "docs" / "pretrained.md").read_text(encoding="utf-8")
    code = page.partition("# other_analyst.py\n")[2].partition("```")[0]
    (tmp_path / "other_analyst.py").write_text(code.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(smollm2)))
    monkeypatch.chdir(tmp_path)
    result = train(taught, tmp_path / "run", "wia=off", *UNEQUAL, "curriculum.analyst=other_analyst:OtherModel")
    assert result["counters"]["curriculum_failures"] > 0


# --- other trainers ---------------------------------------------------------------------------------------------------


def test_trl_trains_a_real_model(smollm2, tmp_path, monkeypatch):
    """SmolLM2's marks are those of Qwen2.5, whose template shows tools; SmolLM2's own does not, and TRL needs it."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    pytest.importorskip("trl")
    import trl_grpo
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.chat_template_utils import qwen2_5_chat_template

    def letters(completions, **_):
        return [float(len(completion[-1]["content"])) for completion in completions]

    words, model = AutoTokenizer.from_pretrained(smollm2), AutoModelForCausalLM.from_pretrained(smollm2)
    words.chat_template = qwen2_5_chat_template
    before = model.lm_head.weight.detach().clone()
    settings = {"num_generations": 2, "per_device_train_batch_size": 2, "learning_rate": 1e-5, "use_cpu": True}
    settings |= {"max_completion_length": 16, "max_tool_calling_iterations": 1, "bf16": False}
    trainer = trl_grpo.train(model, words, "RoleAgent/Toy-v0", 1, 1, str(tmp_path), reward_funcs=[letters], **settings)
    assert any("rewards/letters/mean" in entry for entry in trainer.state.log_history)
    assert not torch.equal(before, trainer.model.lm_head.weight)
