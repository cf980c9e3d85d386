"""A teacher scores the policy's own tokens: a model, one behind a server, and the policy with a hint."""

import contextlib
import json
import threading
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from programs import TOY_RUN, load, metrics, overrides
from tiny import TASKS, play, qwen, world_of

from roleagent.agents.policies.hf import PolicyError
from roleagent.config import load as load_config
from roleagent.learners.batch import Batch, segments_of
from roleagent.learners.distillation import (
    HintedTeacher,
    ModelTeacher,
    ServedTeacher,
    add_teacher,
    check_tokenizer,
    with_note,
)
from roleagent.learners.engine.engine import Engine
from roleagent.learners.engine.logprobs import TokenScorer
from roleagent.learners.method import method_of
from roleagent.learners.run.metrics import idle_mechanisms
from roleagent.learners.update import teacher_kl
from roleagent.types import ACTION

train = load("train")


def batch_of(groups):
    trajectories = [one for group in groups for one in group.trajectories]
    rows = [segments_of(one, [0.0] * len(one.turns), index) for index, one in enumerate(trajectories)]
    segments = [segment for row in rows for segment in row]
    columns = {"advantages": [s.advantages for s in segments], "sampler": [s.sampler_logprobs for s in segments]}
    return Batch(segments, columns=columns)


class Scores:
    """A learner as far as a teacher needs one: it scores by the real code."""

    def __init__(self, policy, config, teacher=None):
        self.policy, self.config, self.teacher = policy, config, teacher
        self.module, self.device, self.pad_id = TokenScorer(policy.model), policy.device, 0
        self.reference = TokenScorer(deepcopy(policy.model))
        self.engine, self.flop, self._flop_of_token = self.module, 0.0, (0, 0)
        self._collate = lambda *given: Engine._collate(self, *given)
        self.ranks = type("Alone", (), {"max": staticmethod(lambda value: value)})()

    def score(self, segments, temperature, module=None):
        return Engine.score(self, segments, temperature, module)


@pytest.mark.parametrize("style", ["transcript", "window"])
def test_the_policy_with_a_hint_scores_the_same_replies_behind_other_prompts(style):
    policy, world = qwen(context=2048), world_of(f"prompt.style={style}", "wia=off")
    rollout, groups = play(policy, world, TASKS[:2])
    first = groups[0].trajectories[0]
    assert with_note(first, rollout, "").turns == first.turns  # nothing else changes the prompts
    hinted = with_note(first, rollout, "The egg is in the fridge.")
    assert [turn.completion for turn in hinted.turns] == [turn.completion for turn in first.turns]
    assert "The egg is in the fridge." in policy.decode(hinted.turns[0].prompt_ids)

    def hint(trajectory, group):
        return "The egg is in the fridge." if group.task.task_id == TASKS[0] else ""

    batch = batch_of(groups)
    learner = Scores(policy, world.config, HintedTeacher(hint))
    found = add_teacher(learner, rollout, groups, batch)
    for segment, own, scores, advantages in zip(
        batch.segments, *(found.columns[name] for name in ("sampler", "teacher", "advantages")), strict=True
    ):
        replies = segment.token_kind == ACTION
        assert np.allclose(advantages, scores - own) and not advantages[~replies].any()
        # Two episodes of the first task have a hint; of the others nothing is said.
        assert bool(np.abs(advantages).max() > 1e-4) == (segment.trajectory < 2)
    # The divergence is a mean over what was scored: an episode without a hint does not make it smaller.
    gaps = [row[s.token_kind == ACTION] for s, row in zip(batch.segments, found.columns["advantages"], strict=True)]
    scored = np.concatenate([row for s, row in zip(batch.segments, gaps, strict=True) if s.trajectory < 2])
    logged = teacher_kl(found, float)
    assert logged["teacher_kl"] == pytest.approx(-scored.mean())
    assert logged["teacher_share"] == pytest.approx(len(scored) / sum(map(len, gaps)))
    # It is the policy as it starts: what that learns later changes no score.
    with torch.no_grad():
        for weights in policy.model.parameters():
            weights.mul_(1.1)
    later = add_teacher(learner, rollout, groups, batch)
    assert all(map(np.array_equal, later.columns["teacher"], found.columns["teacher"]))
    silent = add_teacher(Scores(policy, world.config, HintedTeacher(lambda *_: "")), rollout, groups, batch)
    assert teacher_kl(silent, float) == {"teacher_share": 0.0}


def test_a_teacher_that_never_spoke_is_named_at_the_end():
    method = method_of(load_config(overrides=["method=distill", "distill.teacher=self"]))
    [warning] = idle_mechanisms(method, {"teacher_share": 0.0})
    assert warning == "distill.teacher=self, but it never scored a token"
    assert idle_mechanisms(method, {"teacher_share": 0.5}) == []


@contextlib.contextmanager
def vllm_of(policy, learner):
    """The three calls of vLLM's server that a teacher makes, answered by a real model."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, body):
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self):
            model = {"id": "teacher", "object": "model", "max_model_len": policy.context_length}
            self.answer({"object": "list", "data": [model]})

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize":
                return self.answer({"tokens": policy.encode(asked["prompt"])})
            ids = asked["prompt"]
            logits = policy.model(torch.tensor([ids])).logits[0].log_softmax(-1)
            known = [{str(token): {"logprob": float(row[token])}} for token, row in zip(ids[1:], logits, strict=False)]
            choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": [None, *known]}
            self.answer({"id": "1", "object": "text_completion", "created": 0, "model": "m", "choices": [choice]})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_says_of_the_tokens_what_the_model_says():
    world = world_of("wia=off")
    student, teacher = qwen(context=2048), qwen(context=2048, seed=1)
    rollout, groups = play(student, world, TASKS[:1])
    batch, learner = batch_of(groups), Scores(student, world.config)
    here = ModelTeacher(teacher).score(learner, rollout, groups, batch)
    with torch.no_grad(), vllm_of(teacher, learner) as url:
        served = ServedTeacher(url)
        assert served.encode("take the egg") == student.encode("take the egg")
        there = served.score(learner, rollout, groups, batch)
    for segment, own, other in zip(batch.segments, here, there, strict=True):
        replies = segment.token_kind == ACTION
        assert np.allclose(own[replies], other[replies], atol=1e-4)


def options(tmp_path, name, *more):
    given = [*overrides(TOY_RUN), "wia=off", "aiw=off", "loss.kl=0", f"run_dir={tmp_path}/{name}", *more]
    return [text for text in given if not text.startswith("rollout.prediction")]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("method=distill",), "set distill.teacher"),
        (("method=grpo", "distill.teacher=nowhere"), "nowhere"),
    ],
)
def test_a_teacher_that_cannot_be_is_one_line(tmp_path, capsys, given, words):
    assert train.main(options(tmp_path, "run", *given)) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_policy_that_teaches_itself_has_learned_to_read_plans(tmp_path):
    updates = {}
    for hint in ("plan", "lesson"):
        given = ("method=distill", "distill.teacher=self", f"distill.hint={hint}", "warmstart.rounds=0")
        assert train.main(options(tmp_path, hint, *given, "train.iterations=1")) == 0
        updates[hint] = metrics(tmp_path / hint, "warmstart")[-1]["step"]
    [row] = metrics(tmp_path / "plan", "train")
    assert row["teacher_share"] == 1
    assert updates["plan"] >= 1.8 * updates["lesson"]  # each demonstration once more, with its plan


def test_a_teacher_that_reads_less_than_an_episode_is_refused_before_the_run_folder(tmp_path, capsys):
    """Positions that it never saw were scored without a word; a server refused the request in the middle of a run."""
    teacher = qwen(context=256)
    teacher.model.save_pretrained(tmp_path / "teacher")
    teacher.tokenizer.save_pretrained(tmp_path / "teacher")
    with vllm_of(teacher, None) as url:
        for name, most in ((tmp_path / "teacher", 256), (url, 255)):
            given = ("method=distill", f"distill.teacher={name}", "policy.context=512")
            assert train.main(options(tmp_path, "run", *given)) == 2
            assert f"reads {most} tokens, and the policy 512" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_another_tokenizer_is_refused_before_anything_is_learned(tmp_path):
    student, teacher = qwen(context=2048), qwen(context=2048, seed=1)
    config = load_config(overrides=["method=distill", f"distill.teacher={tmp_path}"])
    teacher.model.save_pretrained(tmp_path)
    teacher.tokenizer.save_pretrained(tmp_path)
    check_tokenizer(config, student)
    teacher.tokenizer.add_tokens(["<one_more>"])
    teacher.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match="another tokenizer than the policy"):
        check_tokenizer(config, student)


@pytest.mark.parametrize("scratch", [True, False])
def test_a_teacher_of_another_tokenizer_is_refused_before_the_run_folder(tmp_path, capsys, scratch):
    student = qwen(context=2048)
    for name, more in (("student", []), ("teacher", ["<one_more>"])):
        student.tokenizer.add_tokens(more)
        student.model.save_pretrained(tmp_path / name)
        student.tokenizer.save_pretrained(tmp_path / name)
    own = f"policy.vocabulary={len(student.tokenizer) - 1}" if scratch else f"policy.path={tmp_path}/student"
    given = ("method=distill", f"distill.teacher={tmp_path}/teacher", own)
    assert train.main(options(tmp_path, "run", *given)) == 2
    assert "another tokenizer than the policy" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()
