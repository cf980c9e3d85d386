"""Every shipped configuration, through the real trainer: one iteration in the toy kitchen, with a small policy."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml
from fake_openai import KEY, serving
from programs import ROOT, SMALL, load, overrides

from roleagent import config
from roleagent.curricula import FailureLibrary
from roleagent.learners.engine.engine import check_deepspeed
from roleagent.options import differing

CONFIGS = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name != "experiments")
PUBLISHED = sorted((ROOT / "configs" / "published").rglob("*.yaml"))
ABLATIONS = sorted((ROOT / "configs" / "published" / "ablations").glob("*.yaml"))
SCRIPTS = sorted((ROOT / "configs" / "published" / "scripts").glob("*.yaml"))
train, gpu_memory, gpu_learn = map(load, ("train", "benchmarks/parts/gpu_memory", "benchmarks/parts/gpu_learn"))


@pytest.mark.parametrize(
    "path",
    [
        path if path.stem == "toy" else pytest.param(path, marks=pytest.mark.slow)
        for path in CONFIGS
        if path not in (*ABLATIONS, *SCRIPTS)  # which differ from these in a few options
    ],
    ids=lambda path: str(path.relative_to(ROOT / "configs").with_suffix("")),
)
def test_it_trains_for_one_iteration(path, tmp_path, capsys):
    revises = config.load(path).method == "agent_r"
    # Demonstrations, which a policy from scratch begins with, have no thoughts.
    thinks = ["prompt.think=optional"] if config.load(path).prompt.think == "required" else []
    searched = {"search": {"tasks": 2, "num_children": 2, "simulations": 1}}
    own = {"options": {**searched, "revision": {"judge": "auto"}}}  # a policy from scratch follows no instructions
    more = overrides(own) if revises else []
    status = train.main(
        ["--config", str(path), f"run_dir={tmp_path}/run", "env.kwargs={}", *overrides(SMALL), *thinks, *more]
    )
    if revises:  # so small a policy wins nothing: its trees have no good path
        assert status == 2
        assert "none of the 2 trees has a good path" in capsys.readouterr().err
        return
    assert status == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    [row] = [row for row in rows if row["stage"] == "train"]
    loaded = config.load(path)
    assert ("curriculum_selections" in row) == loaded.aiw
    # So small a policy wins nothing: none of its predictions changes an advantage.
    predicts = loaded.wia and loaded.rollout.predicted_turns == "all"
    assert (row["predictions_scored"] + row["predictions_absent"] > 0) == predicts


REFLECTION = """<reflection>
DOMINANT_TYPE: navigation_loop
DETAIL: it walked to and fro
CRITICAL_STEP: 1
CORE_LESSON: Look elsewhere.
RETRIEVAL_QUERY: to and fro
</reflection>"""
SELECTION = "<selected_tasks>\n1: the same\n</selected_tasks>"


def test_a_model_behind_a_server_plays_the_environment_role(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLEAGENT_API_KEY", KEY)
    path = ROOT / "configs" / "toy.yaml"
    options = [*overrides(SMALL), f"run_dir={tmp_path}/run", "train.iterations=2", "curriculum.analyst=endpoint"]
    reply = lambda body, _: SELECTION if "<selected_tasks>" in str(body["messages"]) else REFLECTION  # noqa: E731
    with serving(reply, key=KEY) as server:
        assert train.main(["--config", str(path), *options, f"endpoint.url={server.url}"]) == 0
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["curriculum_reflections_valid_share"] == row["curriculum_selections_valid_share"] == 1
    assert row["curriculum_endpoint_requests"] >= row["curriculum_failures"] + row["curriculum_selections"] > 0
    library = FailureLibrary(f"sqlite:///{tmp_path}/run/failures.db", read_only=True)
    assert library.modes() == {"navigation_loop": len(library)}
    library.close()
    for folder in (tmp_path / "run").rglob("*"):
        assert folder.is_dir() or KEY.encode() not in folder.read_bytes()


def test_a_server_that_is_not_there_is_found_before_training(tmp_path, capsys):
    for url, words in (("", "endpoint.url"), ("http://127.0.0.1:9/v1", "127.0.0.1:9")):
        options = ["curriculum.analyst=endpoint", f"endpoint.url={url}", "endpoint.model=m"]
        assert train.main(["--config", str(ROOT / "configs" / "toy.yaml"), f"run_dir={tmp_path}/none", *options]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert words in line
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_published_file_has_an_optimizer_that_its_zero_stage_can_run(path):
    check_deepspeed(config.load(path))


def named_gpus(path):
    """How many GPUs a file's comment names, or that of its base."""
    text = path.read_text()
    if found := re.search(r"on (four|eight) GPUs", text):
        return {"four": 4, "eight": 8}[found[1]]
    return named_gpus(Path(path.parent, re.search(r"^base: (\S+)", text, re.MULTILINE)[1]))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_published_file_fits_the_gpus_that_it_names(path):
    loaded, gpus = config.load(path), named_gpus(path)
    size = gpu_memory.SIZES[loaded.policy.path]
    assert loaded.rollout.backend == "vllm"
    assert max(gpu_memory.peak_memory(loaded, size, gpus).values()) <= gpu_memory.CARD
    cache = loaded.vllm.memory * gpu_memory.CARD * gpu_memory.GIB - 2 * size.parameters
    assert cache > 16 * loaded.policy.context * size.cache, "vLLM has room for few episodes"


@pytest.mark.parametrize(
    ("name", "card", "options"),
    [
        ("one_gpu", 40, []),
        *(("one_gpu", 79 / 6, gpu_learn.side_by_side(engines)) for engines in gpu_learn.ENGINES),
        ("one_gpu_1.5b", 79, []),
    ],
)
def test_the_files_for_one_gpu_fit_it(name, card, options):
    loaded = config.load(ROOT / "configs" / f"{name}.yaml", options)
    size = gpu_memory.SIZES[loaded.policy.path]
    assert max(gpu_memory.peak_memory(loaded, size, 1, card).values()) <= card


def test_the_memory_of_a_configuration_is_the_sum_of_its_parts():
    """GenEnv's two models of 7 B did not fit eight GPUs while every process kept all copies on its own."""
    path = ROOT / "configs" / "published" / "genenv_alfworld.yaml"
    size = gpu_memory.SIZES["Qwen/Qwen2.5-7B-Instruct"]
    assert size.parameters == 7_615_616_512 and size.cache == 57_344
    whole = config.load(path, ["deepspeed.zero_stage=2"])
    found = gpu_memory.peak_memory(whole, size, 8)
    copies = 4 * 2 * size.parameters + 2 * 12 * size.parameters / 8  # policy and writer, references, states
    assert found["rollout"] == pytest.approx(copies / 2**30 + 0.4 * 79 + 3)
    assert found["update"] > gpu_memory.CARD
    small = gpu_memory.SIZES["Qwen/Qwen2.5-1.5B-Instruct"]
    found = gpu_memory.peak_memory(config.load(ROOT / "configs" / "one_gpu_1.5b.yaml"), small, 1)
    # ZeRO 1 keeps the sums of gradients in fp32: weights, reference, states and sums.
    assert found["rollout"] == pytest.approx((2 * 2 + 12 + 4) * small.parameters / 2**30 + 0.5 * 79 + 3)


def test_the_published_settings_are_the_cited_recipes():
    """Past steps in a prompt and samples of a minibatch, which was all of the iteration; the rate does not fade."""
    folder = ROOT / "configs" / "published"
    loaded = {env: config.load(folder / f"{env}.yaml") for env in ("alfworld", "webshop", "searchqa")}
    found = {env: (one.prompt.history, one.optim.minibatch_turns) for env, one in loaded.items()}
    assert found == {"alfworld": (2, 256), "webshop": (2, 64), "searchqa": (4, 512)}
    assert {one.optim.schedule for one in loaded.values()} == {"constant"}


PLANS = sorted((ROOT / "configs" / "experiments").glob("*.yaml"))


def arms_of(path):
    """The configurations of an experiment's arms, by name."""
    plan = yaml.safe_load(path.read_text())
    return {
        name: config.load(ROOT / plan["config"], [*plan.get("options", []), *(arm or {}).get("options", [])])
        for name, arm in plan["arms"].items()
    }


@pytest.mark.parametrize("path", [*PUBLISHED, *PLANS], ids=lambda path: path.stem)
def test_agent_r_draws_the_tasks_that_it_searches_at_random(path):
    """The curriculum was on, and half of the tasks came from failures; not so in the arms that it was compared with."""
    loaded = arms_of(path) if path in PLANS else {path.stem: config.load(path)}
    searching = [one for one in loaded.values() if one.method in ("agent_r", "eto")]
    assert not any(one.aiw for one in (loaded.values() if searching else ()))


def rows_of_differences():
    """Option, value of the paper, value of the scripts and patterns of files, from the page's table."""
    text = (ROOT / "docs" / "paper_to_code.md").read_text("utf-8")
    table = text.partition("| option | paper | scripts | files |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        option, paper, script, files = (cell.strip() for cell in line.strip("|").split("|"))
        yield option.strip("`"), paper.split(" (")[0], script.split(" (")[0], re.findall(r"`([^`]+)`", files)


UNSAID = {"estimator.rewards.task": "1.0"}  # what a reward without a weight counts; all others 0


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_page_has_every_difference_of_the_authors_scripts(path):
    base = path.parent / yaml.safe_load(path.read_text())["base"]
    scripts, paper = (config.to_dict(config.load(one)) for one in (path, base))
    listed = {
        option: (of_paper, of_scripts)
        for option, of_paper, of_scripts, files in rows_of_differences()
        if any(fnmatchcase(path.stem, pattern) for pattern in files)
    }
    assert base.parent != path.parent and base.stem == path.stem
    assert listed == {
        option: tuple(
            UNSAID.get(option, "0") if (found := value_of(one, option.split("."))) is None else str(found)
            for one in (paper, scripts)
        )
        for option in differing(scripts, paper)
    }


@pytest.mark.parametrize("env", ["alfworld", "webshop", "searchqa"])
def test_the_baselines_of_a_table_share_its_protocol(env):
    """GRPO and GiGPO had temperature, reply length, clip, KL and merging of another paper's scripts."""
    main = config.to_dict(config.load(ROOT / "configs" / "published" / f"{env}.yaml"))
    for name in ("gigpo", "grpo", "rloo", "ppo"):
        baseline = config.load(ROOT / "configs" / "published" / "ablations" / f"{env}_{name}.yaml")
        own = {"critic.lr", "critic.clip", "estimator.gamma", "estimator.whiten"} if name == "ppo" else set()
        assert {*differing(config.to_dict(baseline), main)} == {"method", "wia", "aiw", *own}


MARK = re.compile(r"\s#\s(paper|recipe|script|ours)\b")


def value_of(loaded, name):
    """The value of an option, by the parts of its name; None for an argument that is not given."""
    for part in name:
        loaded = loaded.get(part) if isinstance(loaded, Mapping) else getattr(loaded, part)
    return loaded


def written(path):
    """The options of a file and its bases, with their lines."""

    def walk(node, name):
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                yield from walk(value, (*name, key.value))
        else:
            yield ".".join(name), lines[node.start_mark.line]

    text = path.read_text()
    lines = text.splitlines()
    found = dict(walk(yaml.compose(text), ()))
    base = found.pop("base", None)
    return {**(written(path.parent / base.split()[1]) if base else {}), **found}


def unexplained(path):
    """The options that differ from the code's defaults without a line that says where that comes from."""
    lines, loaded = written(path), config.load(path)
    default = replace(config.load(None), options=type(loaded.options)())
    changed = differing(config.to_dict(loaded), config.to_dict(default))
    return [name for name in changed if not MARK.search(lines.get(name, ""))]


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_difference_from_the_defaults_says_where_it_comes_from(path):
    """A comment behind it begins with paper, recipe, script or ours."""
    assert not unexplained(path)


def test_a_difference_without_a_source_is_found(tmp_path):
    base = "method: ppo  # paper\nloss: {kl: 0.5}\n"  # a method sets options, too
    (tmp_path / "base.yaml").write_text(base)
    (tmp_path / "it.yaml").write_text("base: base.yaml\noptim: {lr: 3.0e-7}  # ours\n")
    assert {*unexplained(tmp_path / "it.yaml")} == {"loss.kl", "loss.clip_high", "estimator.whiten", "estimator.gamma"}


@pytest.mark.parametrize(
    ("names", "letter"),
    [
        (
            ("alfworld", "webshop", "searchqa"),
            {
                "estimator.unscored_predictions": "zero",
                "estimator.failed_command_state": "text",
                "estimator.similarity_threshold": 0.9,
                "curriculum.learnability": False,
                "prompt.predictions": "followup",
            },
        ),
        (("genenv_alfworld",), {"simulator.window": 0, "simulator.credit": "batch"}),
        (
            ("agent_r_scienceworld", "agent_r_textcraft", "agent_r_webshop"),
            {"options.revision.splice": "published", "options.revision.replay": 0.0, "env.kwargs.max_steps": 100},
        ),
    ],
)
def test_published_files_are_the_letter_where_the_defaults_are_not(names, letter):
    for name in names:
        loaded = config.load(ROOT / "configs" / "published" / f"{name}.yaml")
        for option, value in letter.items():
            assert value_of(loaded, option.split(".")) == value, (name, option)
