"""Configurations: what is written is what runs, and what cannot be meant is refused in one line."""

from fnmatch import fnmatchcase
from operator import attrgetter

import pytest
import yaml

from roleagent.config import Config, ConfigError, NoOptions, from_dict, load, to_dict
from roleagent.config.effects import RULES, without_effect
from roleagent.config.words import WORDS


def refusal(*overrides, path=None):
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_overrides_win_over_the_file_and_the_file_over_the_defaults(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("")
    assert load() == load(path) == Config()
    path.write_text("seed: 3\noptim: {lr: 0.1, minibatches: 4}\n")
    config = load(path, ["optim.lr=0.3", "optim.lr=0.2"])
    assert (config.seed, config.optim.lr, config.optim.minibatches) == (3, 0.2, 4)
    assert config.optim.max_grad_norm == Config().optim.max_grad_norm


@pytest.mark.parametrize(
    "override, value",
    [
        ("optim.lr=1e-4", 1e-4),  # text, to YAML
        ("optim.lr=3", 3.0),
        ("rollout.num_groups=7", 7),
        ("run_dir=12", "12"),
        ("run_dir=", ""),
        ("wia=on", True),
        ("wia=no", False),
        ("prompt.think=none", "none"),
        ("prompt.think=off", "none"),  # False, to YAML
    ],
)
def test_values_take_the_type_of_their_key(override, value):
    found = attrgetter(override.partition("=")[0])(load(overrides=[override]))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "override, words",
    [
        ("rollout.num_groups=two", "rollout.num_groups must be of type int, not 'two'"),
        ("rollout.num_groups=1.5", "rollout.num_groups must be of type int"),
        ("rollout.num_groups=on", "rollout.num_groups must be of type int"),
        ("optim.lr=on", "optim.lr must be of type float"),
        ("optim.lr=fast", "optim.lr must be of type float"),
        ("wia=1", "wia must be of type bool"),
        ("wia=maybe", "wia must be of type bool"),
        ("run_dir=[a]", "run_dir must be of type str"),
        ("env.kwargs=3", "env.kwargs must be of type mapping"),
        ("optim=fast", "'optim' is a section"),
        ("optim.lr.x=1", "optim.lr must be of type float"),
        ("method=pp0", "method must be one of role_agent, gigpo, grpo, rloo, "),
        ("policy.dtype=float16", "policy.dtype must be one of float32, bfloat16"),
        ("deepspeed.zero_stage=4", "deepspeed.zero_stage must be at most 3, not 4"),
        ("deepspeed.zero_stage=on", "deepspeed.zero_stage must be of type int, not True"),
        ("seed", "'seed' is not of the form key=value"),
        ("=3", "'=3' is not of the form key=value"),
        ("seed=[", "the value of 'seed' cannot be read as YAML"),
    ],
)
def test_what_cannot_be_meant_is_refused(override, words):
    assert words in refusal(override)


@pytest.mark.parametrize(
    "key, unknown, near",
    [
        ("optim.lrr", "optim.lrr", "optim.lr"),
        ("rollout.temprature", "rollout.temprature", "rollout.temperature"),
        ("rollout.weight_decay", "rollout.weight_decay", "optim.weight_decay"),  # the right name in the wrong section
        ("gamma", "gamma", "estimator.gamma"),
        ("sead", "sead", "seed"),
        ("warmstrat.epochs", "warmstrat", "warmstart"),
    ],
)
def test_an_unknown_key_names_the_nearest(key, unknown, near):
    assert refusal(f"{key}=1") == f"unknown key {unknown!r}; did you mean {near!r}?"


@pytest.mark.parametrize(
    "content, words",
    [
        ("polcy: {layers: 2}", "did you mean 'policy'"),
        ("a: [", "cannot read"),
        ("- a\n- b\n", "must hold keys and values, not a list"),
        (None, "cannot"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, words):
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_text(content)
    line = refusal(path=path)
    assert words in line and ("run.yaml" in line or "polcy" in line)


BOMB = "&a0 [x, x, x]" + "".join(f", &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"seed: [{BOMB}]", "more than 10000 values"),
        ("env: {kwargs: &a {a: *a}}", "32 deep"),
        ("[" * 1500, "without end"),
        ("seed: " + "9" * 5000, "digits"),
        ("seed: " + "[x, " * 25 + "]" * 25, "…"),
        ("seed: 2026-13-45", "month"),
        ("optim: {lr: .nan}", "nan"),
        ("optim: {lr: " + "9" * 400 + "}", "float"),
        ("seed: !!python/object/apply:os.system [ls]", "constructor"),
        ("? " + "x" * 900 + "\n: 1", "unknown key"),
    ],
)
def test_a_hostile_file_is_refused_in_a_short_line(tmp_path, text, words):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    said = refusal(path=path)
    assert words in said and len(said) < 600
    if text.startswith("seed: "):
        assert len(refusal(text.replace(": ", "=", 1))) < 300


def test_a_file_may_build_on_another(tmp_path):
    (tmp_path / "main.yaml").write_text("optim: {lr: 0.5, minibatches: 3}\nenv: {kwargs: {size: tiny}}\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "less.yaml").write_text("base: ../main.yaml\noptim: {lr: 0.25}\n")
    (tmp_path / "least.yaml").write_text("base: folder/less.yaml\naiw: off\n")
    config = load(tmp_path / "least.yaml", ["env.kwargs={}"])
    assert (config.optim.lr, config.optim.minibatches, config.aiw, config.env.kwargs) == (0.25, 3, False, {})


SHOP = "RoleAgent/WebShop-v0"
SPECIFIED = """
import gymnasium, roleagent
from roleagent.env_card import EnvCard
roleagent.register_env(EnvCard("Specified-v0", entry_point="specified_here:None", splits=("learn", "measure")))
"""


@pytest.mark.parametrize(
    ("text", "overrides", "env"),
    [
        ("env: {id: RoleAgent/ToolEnv-v0, kwargs: {tasks: t}}", (), ("train", "valid", 0, {"tasks": "t"})),
        ("", ("env.id=RoleAgent/ToolEnv-v0",), ("train", "valid", 0, {})),
        ("", (f"env={{id: {SHOP}}}",), ("train", "valid", 0, {})),
        (f"env: {{id: {SHOP}, eval_split: test}}", (), ("train", "test", 0, {})),
        (f"base: base.yaml\nenv: {{id: {SHOP}, eval_tasks: 3}}", (), ("train", "valid", 3, {})),
        ("base: base.yaml\nenv: {id: RoleAgent/Toy-v0}", (), ("train", "train", 7, {"max_steps": 5})),
        ("base: base.yaml\nenv: {id: Someone/Else-v0}", (), ("train", "train", 0, {})),
        ("base: base.yaml", ("env.id=RoleAgent/ALFWorld-v0",), ("train", "valid_unseen", 0, {})),
        (
            "base: base.yaml",
            ('env.id="RoleAgent/Toy-v0"',),
            ("train", "train", 7, {"max_steps": 5}),
        ),  # as the API
        ("base: base.yaml\nenv: {eval_tasks: 9}", (), ("train", "train", 9, {"max_steps": 5})),
        ("env: {id: RoleAgent/BFCL-v0}", (), ("all", "all", 0, {})),
        ("env: {id: 'specified_here:Specified-v0'}", (), ("learn", "measure", 0, {})),
        ("base: base.yaml", ("env.id=specified_here:Specified-v0",), ("learn", "measure", 0, {})),
    ],
)
def test_the_section_of_another_environment_begins_anew(tmp_path, monkeypatch, text, overrides, env):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specified_here.py").write_text(SPECIFIED)
    (tmp_path / "base.yaml").write_text(
        "env: {id: RoleAgent/Toy-v0, train_split: train, eval_split: train, eval_tasks: 7, kwargs: {max_steps: 5}}\n"
    )
    (tmp_path / "run.yaml").write_text(text)
    found = load("run.yaml", overrides).env
    assert (found.train_split, found.eval_split, found.eval_tasks, found.kwargs) == env


@pytest.mark.parametrize(
    ("text", "overrides", "depth"),
    [
        ("base: base.yaml", (), 9),
        ("base: base.yaml\nmethod: eto", (), 9),  # it has them, too
        ("base: base.yaml\nmethod: gigpo", (), None),
        ("base: base.yaml", ("method=gigpo",), None),
        ("base: base.yaml", ('method="eto"',), 9),  # as the Python interface writes it
        ("base: base.yaml", ("method=gigpo", "wia=off", "method=agent_r"), 9),  # the last one counts
        ("options: {search: {depth: 9}}", ("method=agent_r",), 9),  # for whichever method the command names
        ("base: base.yaml", ("options.search.depth=7", "method=agent_r"), 7),
    ],
)
def test_another_method_leaves_the_options_of_the_first(tmp_path, text, overrides, depth):
    (tmp_path / "base.yaml").write_text("method: agent_r\noptions: {search: {depth: 9}}\n")
    (tmp_path / "run.yaml").write_text(text)
    options = load(tmp_path / "run.yaml", overrides).options
    assert (options.search.depth if depth else options) == (depth or NoOptions())


@pytest.mark.parametrize("base", ["run.yaml", "other.yaml", "3", "missing.yaml"])
def test_a_base_that_leads_nowhere_is_refused(tmp_path, base):
    (tmp_path / "run.yaml").write_text(f"base: {base}\n")
    (tmp_path / "other.yaml").write_text("base: run.yaml\n")
    assert ".yaml" in refusal(path=tmp_path / "run.yaml")


def test_a_saved_configuration_reads_back_as_itself():
    config = load(overrides=["optim.lr=1e-4", "wia=off", "env.kwargs.size=small", "prompt.think=none"])
    for one in (config, Config()):
        assert from_dict(yaml.safe_load(yaml.safe_dump(to_dict(one)))) == one


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        (
            "alpha",
            "lora.alpha, estimator.alpha, simulator.alpha",
        ),  # a name that fits several places
        ("temperature", "rollout.temperature, curriculum.temperature"),
        ("learning_rate", "optim.lr, warmstart.lr, critic.lr, simulator.lr"),
        ("batch_size", "rollout.num_groups, rollout.group_size"),
        ("rollout.num_generations", "rollout.group_size"),  # TRL's word, not the one that looks like it
        ("actor_rollout_ref.rollout.n", "rollout.group_size"),  # verl's
        ("optim.learning_rate", "optim.lr"),
        ("num_generation", "rollout.group_size"),  # misspelled
        ("beta", "loss.kl, simulator.beta"),
    ],
)
def test_other_programs_words_and_names_of_several_places_lead_to_all_that_fit(key, meant):
    said = refusal(f"{key}=1")
    assert said == f"unknown key {key!r}; did you mean " + (f"one of {meant}?" if "," in meant else f"{meant!r}?")


def test_an_option_that_there_is_not_gets_no_suggestion():
    assert "CUDA_VISIBLE_DEVICES" in refusal("device=cuda")
    assert refusal("optim.nesterov=1") == "unknown key 'optim.nesterov'"


def test_other_programs_words_name_options():
    for meant in WORDS.values():
        for key in meant if isinstance(meant, tuple) else ():
            attrgetter(key.removesuffix(".max_steps"))(Config())


@pytest.mark.parametrize(
    ("overrides", "idle"),
    [
        (["lora.alpha=2"], ["lora.alpha"]),
        (["lora.rank=4", "lora.alpha=2"], []),
        (["method=grpo", "estimator.alpha=2", "critic.lr=1", "optim.lr=1"], ["estimator.alpha", "critic.lr"]),
        (["method=ppo", "critic.lr=1", "vllm.memory=0.5"], ["vllm.memory"]),
        (["wia=off", "prompt.horizon=3", "prompt.think=optional"], ["prompt.horizon"]),
        (["method=sft", "train.tokens=100", "optim.lr=1", "warmstart.lr=1"], ["optim.lr"]),
        (["simulator.beta=1", "optim.lr=1"], ["simulator.beta"]),
        (
            [
                "method=agent_r",
                "options.search.num_children=2",
                "options.revision.beta=0.3",
                "aiw=on",
                "curriculum.analyst=rule",
            ],
            [],
        ),
        (["curriculum.analyst=text", "curriculum.candidates=8", "curriculum.epsilon=0.4"], ["curriculum.candidates"]),
        (["policy.path=x", "policy.layers=3"], ["policy.layers"]),
    ],
)
def test_an_option_without_effect_is_named(overrides, idle):
    assert [line.partition(" ")[0] for line in without_effect(load(overrides=overrides), overrides)] == idle


def test_rules_of_effects_name_options():
    keys = [
        f"{section}.{name}" for section, part in to_dict(Config()).items() if isinstance(part, dict) for name in part
    ]
    of_agent_r = to_dict(load(overrides=["method=agent_r"]))["options"]
    keys += [f"options.{section}.{name}" for section, part in of_agent_r.items() for name in part]
    for patterns, _, reason in RULES:
        assert reason
        for pattern in patterns.split():
            assert any(fnmatchcase(key, pattern.removesuffix(".*") + "*") for key in keys), pattern
