"""The adapters to trainers, each driven by the trainer's own code; they skip where its package is missing.

.ci/adapters installs each package in an environment of its own and runs this file there.
"""

import asyncio
import json
import os
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest
from fake_openai import serving
from small_envs import SMALL

from roleagent.curricula import FailureLibrary
from roleagent.curricula.failure_sampler import CurriculumSampler
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.envs.adapters.chat import ChatEpisode, GroupObserver
from roleagent.envs.wrappers import FailureCurriculum
from roleagent.tasks.split import first_tasks

TOY = "RoleAgent/Toy-v0"


def byte_tokenizer():
    """A tokenizer with a token per byte, and Qwen's chat template in short."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    made.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return made


def turn_of(text):
    return text.count("<|im_start|>assistant") - 1


def by_skyrl(env, group, script, rows=None, **options):
    import skyrl_gym

    from roleagent.envs.adapters import skyrl

    name = f"env{len(skyrl_gym.registry)}"
    arguments = options.pop("arguments", {})
    skyrl.register(name, env=env, arguments=arguments, **options)
    results = []
    for row in skyrl.rows(name, env=env, arguments=arguments, **rows):
        for _ in range(group):
            played = skyrl_gym.make(row["env_class"], env_config={}, extras=row)
            messages, _ = played.init(row["prompt"])
            reward, done = 0.0, False
            while not done:
                replies = sum(message["role"] == "assistant" for message in messages)
                messages.append({"role": "assistant", "content": script(replies)})
                step = played.step(messages[-1]["content"])
                messages += step["observations"]
                reward, done = reward + step["reward"], step["done"]
            results.append((reward, played.get_metrics()))
            played.close()
    assert type(played).aggregate_metrics([figures for _, figures in results]).keys() == results[0][1].keys()
    return results


def by_verifiers(env, group, script, rows=None, **options):
    from verifiers.types import ClientConfig

    from roleagent.envs.adapters.verifiers import load_environment

    made = load_environment(env, **rows, **options)
    inputs = [dict(row) for row in made.get_dataset() for _ in range(group)]

    def reply(body, number):
        return script(sum(message["role"] == "assistant" for message in body["messages"]))

    os.environ["FAKE_KEY"] = "sk-only-for-tests"
    with serving(reply) as fake:
        found = made.generate_sync(
            inputs=inputs,
            client=ClientConfig(api_key_var="FAKE_KEY", api_base_url=fake.url, max_retries=0),
            model="tiny-chat",
            max_concurrent=1,
            state_columns=["figures", "rewards", "task_id"],
        )["outputs"]
    for output in found:
        if output["error"]:
            raise RuntimeError(str(output["error"]))
        assert output["metrics"]["task"] == output["rewards"].get("task", 0.0)
    return [(output["reward"], output["figures"]) for output in found]


def by_taskset(env, group, script, rows=None, **options):
    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import environment_class

    from roleagent.envs.adapters.verifiers_v1 import TextEnvConfig

    def reply(body, number):
        assert body["messages"][0]["role"] == "system" and body["messages"][-1]["role"] == "user"
        return script(sum(message["role"] == "assistant" for message in body["messages"]))

    async def play():
        taskset = {"id": "roleagent-verifiers", "env": env, **rows, **options}
        made = environment_class("roleagent-verifiers")(TextEnvConfig(taskset=taskset))
        client = vf.EvalClientConfig(base_url=fake.url, api_key_var="FAKE_KEY")
        async with made.serving():
            slots = [slot for task in made.taskset for slot in made.slots(task, group)]
            return [await made.run_slot(slot, vf.ModelContext(model="tiny-chat", client=client)) for slot in slots]

    os.environ["FAKE_KEY"] = "sk-only-for-tests"
    with serving(reply) as fake:
        episodes = asyncio.run(play())
    for episode in episodes:
        if episode.errors:
            raise RuntimeError(episode.errors[0].message)
    found = [trace for episode in episodes for trace in episode.traces]
    return [(sum(one.score * one.weight for one in trace.rewards.values()), trace.metrics) for trace in found]


def by_tinker(env, group, script, rows=None, **options):
    from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
    from tinker_cookbook.renderers import get_renderer
    from tinker_cookbook.rl.rollouts import do_group_rollout

    from roleagent.envs.adapters.tinker import TaskDataset

    tokenizer = byte_tokenizer()

    class Scripted(TokenCompleter):
        async def __call__(self, model_input, stop, *, max_tokens=None):
            reply = script(turn_of(tokenizer.decode(model_input.to_ints())))
            tokens = tokenizer.encode(f"{reply}<|im_end|>")
            return TokensWithLogprobs(tokens, [-0.5] * len(tokens))

    renderer = get_renderer("qwen3_instruct", tokenizer, model_name="tiny")
    dataset = TaskDataset(env, renderer=renderer, batch_size=1, group_size=group, **rows, **options)
    results = []
    for number in range(len(dataset)):
        for builder in dataset.get_batch(number):
            played = asyncio.run(do_group_rollout(builder, Scripted()))
            last = [trajectory.transitions[-1].metrics for trajectory in played.trajectories_G]
            results += zip(played.get_total_rewards(), last, strict=True)
    return results


def by_verl_loop(env, group, script, rows=None, **options):
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.workers.rollout.replica import TokenOutput

    from roleagent.envs.adapters import verl_loop

    tokenizer = byte_tokenizer()

    class Server:
        async def generate(self, request_id, prompt_ids, sampling_params):
            tokens = tokenizer.encode(f"{script(turn_of(tokenizer.decode(prompt_ids)))}<|im_end|>")
            return TokenOutput(token_ids=tokens, log_probs=[-0.5] * len(tokens))

    lengths = {"prompt_length": 1 << 15, "response_length": 1 << 17}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": lengths}})
    arguments = options.pop("arguments", {})

    async def play(row):
        loop = verl_loop.TextAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=Server(),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(OmegaConf.create({})),
            env=env,
            arguments=arguments,
            options=options,
        )
        played = await loop.run({}, **row)
        sampled = [token for token, mine in zip(played.response_ids, played.response_mask, strict=True) if mine]
        figures = played.extra_fields["reward_extra_info"]
        said = "".join(f"{script(turn)}<|im_end|>" for turn in range(int(figures["steps"])))
        assert tokenizer.decode(sampled).strip() == said.strip()  # token in, token out
        assert {*played.response_logprobs} == {0.0, -0.5}
        return played.reward_score, figures

    made = verl_loop.rows("loop", env=env, arguments=arguments, **rows)
    return [asyncio.run(play(row)) for row in made for _ in range(group)]


def by_verl_interaction(env, group, script, rows=None, **options):
    from omegaconf import OmegaConf
    from verl.interactions.utils.interaction_registry import initialize_interactions_from_config

    from roleagent.envs.adapters import verl

    arguments = options.pop("arguments", {})
    config = {"env": env, "arguments": arguments, **options}
    listed = [{"name": "world", "class_name": "roleagent.envs.adapters.verl.Interaction", "config": config}]
    path = os.path.join(os.environ["ADAPTER_TESTS"], "interaction.yaml")
    OmegaConf.save(OmegaConf.create({"interaction": listed}), path)
    interaction = initialize_interactions_from_config(path)["world"]

    async def play(row):
        wanted = row["extra_info"]["interaction_kwargs"]
        number = await interaction.start_interaction(None, **wanted)
        messages, rewards, over = list(row["prompt"]), [], False
        while not over:
            replies = sum(message["role"] == "assistant" for message in messages)
            messages.append({"role": "assistant", "content": script(replies)})
            over, text, reward, report = await interaction.generate_response(number, messages, **wanted)
            messages.append({"role": "user", "content": text})
            rewards.append(reward)
        figures = {name: value for name, value in report.items() if name != "rewards"}
        assert await interaction.calculate_score(number) == pytest.approx(sum(rewards))
        await interaction.finalize_interaction(number)
        return verl.compute_score(env, "", "", {"turn_scores": rewards}), figures

    kept = {key: value for key, value in options.items() if key != "on_episode"}
    made = verl.rows("world", env=env, arguments=arguments, **rows, **kept)
    return [asyncio.run(play(row)) for row in made for _ in range(group)]


def has(module):
    try:
        return find_spec(module) is not None
    except ImportError:  # of a package above it
        return False


DRIVERS = [
    pytest.param(driver, marks=pytest.mark.skipif(not there, reason=f"{package} is not installed: see .ci/adapters"))
    for driver, package, there in (
        (by_skyrl, "skyrl-gym", has("skyrl_gym")),
        (by_verifiers, "verifiers with MultiTurnEnv", has("verifiers.envs.multiturn_env")),
        (by_taskset, "verifiers from 0.4 on", has("verifiers.v1.harness") and not has("verifiers.envs.multiturn_env")),
        (by_tinker, "tinker-cookbook", has("tinker_cookbook")),
        (by_verl_loop, "verl with agent loops", has("verl.utils.tokenizer.continuous_token_wiring")),
        (by_verl_interaction, "verl with interactions", has("verl.interactions.base")),
    )
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTER_TESTS", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("env", SMALL)
@pytest.mark.parametrize("play", DRIVERS)
def test_a_trainer_plays_the_environments_own_episode(play, env):
    local = gymnasium.make(env, **SMALL[env])
    [task_id] = first_tasks(local, 1).task_ids
    local.reset(options={"task_id": task_id})
    commands = ["no such command ☀", *local.unwrapped.walkthrough()][-local.unwrapped.max_steps :]
    replies = [f'<action>{command}</action><prediction h="1">You see nothing.</prediction>' for command in commands]
    weights = {"task": 1.0, "prediction": 0.25}
    expected = ChatEpisode(env, SMALL[env], horizon=1, weights=weights)
    expected.reset(task_id)
    for reply in replies:
        expected.step(reply)
    assert expected.info["won"] and expected.metrics()["prediction_similarity"] > 0
    found = play(env, 2, replies.__getitem__, {"limit": 1}, arguments=SMALL[env], horizon=1, weights=weights)
    assert len(found) == 2
    for reward, figures in found:
        assert reward == pytest.approx(expected.reward)
        assert figures == pytest.approx(expected.metrics())


CURRICULUM = {}


def choose(env):
    return FailureCurriculum(env, CURRICULUM["sampler"])


def observe(trajectory):
    CURRICULUM["played"].append(trajectory)
    CURRICULUM["observer"](trajectory)


@pytest.mark.parametrize("play", DRIVERS)
def test_the_curriculum_chooses_and_learns_in_a_trainers_loop(play):
    if play is by_verl_interaction:
        pytest.skip("the first prompt is in verl's data, so the task is chosen before: see docs/adapters.md")
    task_split, library = gymnasium.make(TOY).unwrapped.task_split, FailureLibrary("sqlite://")
    sampler = CurriculumSampler(task_split, library, RuleAnalyst(), np.random.default_rng(0), epsilon=0.9)
    CURRICULUM.update(sampler=sampler, observer=GroupObserver(sampler, group_size=2, groups=3), played=[])
    options = {"wrappers": [f"{__name__}:choose"], "on_episode": f"{__name__}:observe"}
    look = "<action>look</action>"
    found = play(TOY, 2, lambda turn: look, {"draws": 3}, arguments={"max_steps": 3}, **options)
    assert [reward for reward, _ in found] == [0.0] * 6
    tasks = sorted(trajectory.task.task_id for trajectory in CURRICULUM["played"])
    assert tasks[::2] == tasks[1::2]  # groups of one task each
    assert sampler.iteration == 1 and len(library) == len({*tasks}) and sampler.weights


def fail(env):
    class Failing(gymnasium.Wrapper):
        def step(self, action):
            raise OSError("the disk is gone")

    return Failing(env)


@pytest.mark.parametrize("play", DRIVERS)
def test_a_failing_environment_is_an_error_and_no_reward(play):
    with pytest.raises(Exception, match="the disk is gone"):
        play(TOY, 1, lambda turn: "<action>look</action>", {"limit": 1}, wrappers=[f"{__name__}:fail"])


def test_a_missing_package_says_what_to_install():
    for module, package in (("skyrl", "skyrl_gym"), ("tinker", "tinker_cookbook"), ("verl_loop", "verl")):
        if not has(package):
            with pytest.raises(gymnasium.error.DependencyNotInstalled, match=r"pip install 'roleagent\["):
                __import__(f"roleagent.envs.adapters.{module}")


def test_rows_are_json():
    from roleagent.envs.adapters import verl

    rows = json.loads(json.dumps(verl.rows("world", env=TOY, limit=2)))
    assert rows[1]["extra_info"]["interaction_kwargs"]["task_id"]
    with pytest.raises(ValueError, match="has no env"):
        verl.Interaction({})
    with pytest.raises(ValueError, match="has no task_id"):
        asyncio.run(verl.Interaction({"env": TOY}).start_interaction(seed=1))
