"""What the warm start teaches of the environment role is what the analyst will ask and read."""

from types import SimpleNamespace

import numpy as np
import pytest
from tiny import qwen

from roleagent.agents.analysts.models import ModelAnalyst
from roleagent.agents.analysts.prompts import UNLIMITED
from roleagent.agents.builders import EnvSplit
from roleagent.config import ConfigError, load
from roleagent.curricula import RuleAnalyst
from roleagent.failures.analyst_format import read_reflection, read_selection
from roleagent.failures.modes import taxonomy
from roleagent.learners.sft.analyst import analyst_examples, collect_failures, tokenize_examples
from roleagent.learners.sft.demonstrations import collect_demonstrations

DISPLAY = SimpleNamespace(stage=lambda *_: None, advance=lambda *_, **__: None)
WORLDS = {
    "RoleAgent/Toy-v0": {},
    "RoleAgent/ALFWorld-v0": {"data_dir": "generated", "size": "tiny", "max_steps": 14},
    "RoleAgent/WebShop-v0": {"data_dir": "generated", "num_products": 60, "max_steps": 8},
    "RoleAgent/SearchQA-v0": {"data_dir": "generated", "top_k": 2},
    "RoleAgent/TextCraft-v0": {"data_dir": "generated", "max_steps": 12},
}


@pytest.fixture(scope="module", params=sorted(WORLDS))
def failed(request):
    options = [
        f"env.id={request.param}",
        f"env.kwargs={WORLDS[request.param]}",
        "warmstart={failures: 2, episodes: 20}",
    ]
    world = EnvSplit.open(load(overrides=options), "train")
    demonstrations = collect_demonstrations(world, np.random.default_rng(0), DISPLAY)
    return collect_failures(world, demonstrations, np.random.default_rng(1), DISPLAY)


def test_an_expert_that_recovers_from_all_noise_leaves_scripted_failures(monkeypatch):
    world = EnvSplit.open(load(overrides=["env.id=RoleAgent/Toy-v0", "warmstart={failures: 2, episodes: 4}"]), "train")
    demonstrations = collect_demonstrations(world, np.random.default_rng(0), DISPLAY)
    monkeypatch.setattr("roleagent.learners.sft.analyst._noisy_failure", lambda *given: None)
    assert len(collect_failures(world, demonstrations, np.random.default_rng(1), DISPLAY)) == 8


@pytest.fixture
def examples(failed):
    return list(analyst_examples(UNLIMITED, failed, RuleAnalyst(), np.random.default_rng(2)))


def test_every_answer_is_read_back_as_the_teacher_meant_it(failed, examples):
    expected = RuleAnalyst().reflect(failed)
    answers = [example.answer for example in examples if example.kind == "reflection"]
    for trajectory, meant, answer in zip(failed, expected, answers, strict=True):
        read = read_reflection(answer, taxonomy(trajectory.task.env_id), len(trajectory.turns), "rule")
        assert (read.mode, read.critical_step, read.repaired) == (meant.mode, meant.critical_step, False)
    for example in examples:
        if example.kind == "selection":
            shown = sum(line.split(".")[0].isdigit() for line in example.question.splitlines())
            selection = read_selection(example.answer, shown)
            assert selection.source == "model" and not selection.dropped and not selection.repaired


def test_only_answers_are_trained_and_questions_fit(failed):
    analyst = ModelAnalyst(qwen(context=2048), reflection_tokens=700, selection_tokens=300, candidate_tokens=900)
    examples = list(analyst_examples(analyst.prompts, failed, RuleAnalyst(), np.random.default_rng(2)))
    found = tokenize_examples(analyst, examples, weight=0.25)
    assert len(found) > 40
    for segment in found:
        start = segment.token_kind.tolist().index(1)
        assert set(segment.token_kind[start:]) == {1} and set(segment.advantages[start:]) == {0.25}
        assert not any(segment.advantages[:start]) and len(segment) <= 2048
        kind = "reflection" if "<reflection>" in analyst.policy.decode(segment.token_ids[start:]) else "selection"
        assert segment.token_ids[-1] in analyst.stops(kind)


def test_answers_that_do_not_fit_are_not_lost_silently(examples):
    with pytest.raises(ConfigError, match=r"reflection_tokens=9 .*raise them"):
        tokenize_examples(ModelAnalyst(qwen(context=512), reflection_tokens=9, selection_tokens=9), examples, 1.0)
