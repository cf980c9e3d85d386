"""``roleagent.train`` and ``roleagent.evaluate``: results, callbacks, and mistakes."""

import json

import pytest
from programs import TOY_RUN, metrics

import roleagent
from roleagent.agents.evaluation.records import Record

OPTIONS = {**TOY_RUN, "train": {"iterations": 2, "checkpoint_every": 1, "keep_checkpoints": 20}, "wia": False}


class Listener(roleagent.Callback):
    """Remembers what it is called with."""

    def __init__(self):
        self.logged, self.evaluated, self.saved = [], {}, []

    def on_log(self, stage, step, metrics):
        if stage == "train":
            self.logged.append((step, metrics["success"]))

    def on_evaluate(self, name, result):
        self.evaluated[name] = result["success"]

    def on_save(self, checkpoint):
        assert (checkpoint / "policy" / "model.safetensors").exists()
        self.saved.append(checkpoint.name)


class Impatient(roleagent.Callback):
    """Ends the run in its second iteration."""

    def on_log(self, stage, step, metrics):
        if (stage, step) == ("train", 2):
            raise RuntimeError("that is enough")


def idle_agent(observation, info):
    """An agent that does nothing."""
    return "look"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a listener."""
    listener = Listener()
    folder = tmp_path_factory.mktemp("python") / "run"
    return roleagent.train("configs/toy.yaml", callbacks=[listener], run_dir=folder, **OPTIONS), listener


def test_a_run_has_a_result_and_calls_its_callbacks(run):
    result, listener = run
    after = json.loads((result.folder / "after.json").read_text())
    assert result.after.success == after["success"] == listener.evaluated["after"]
    assert result.after.episodes == 5 and result.after.interval == tuple(after["interval"])
    assert result.before.success == listener.evaluated["before"] and result.before_sampled is None
    assert listener.logged == [(row["step"], row["success"]) for row in metrics(result.folder, "train")]
    assert [number for number, _ in listener.logged] == [1, 2]
    assert {"step-500000", "step-500001", "step-500002"} <= set(listener.saved)
    again = roleagent.train("configs/toy.yaml", resume=True, run_dir=result.folder, **OPTIONS)
    assert again == result == roleagent.train(resume=result.folder)


def test_an_exception_of_a_callback_ends_the_run_which_can_be_resumed(run, tmp_path):
    given = {"run_dir": tmp_path / "run", **OPTIONS}
    with pytest.raises(RuntimeError, match="that is enough"):
        roleagent.train("configs/toy.yaml", callbacks=[Impatient()], **given)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())[-1] == "step-500001"
    resumed = roleagent.train(resume=tmp_path / "run")
    assert resumed.after == run[0].after
    assert metrics(resumed.folder) == metrics(run[0].folder)


def test_a_run_and_a_function_are_evaluated(run, tmp_path):
    found = roleagent.evaluate(run[0].folder, tasks=3, repeats=2, temperature=1.0, out=tmp_path / "a.jsonl")
    assert found.summary.episodes == len(found.records) == 6 and isinstance(found.records[0], Record)
    assert found.summary.success == sum(record.won for record in found.records) / 6
    assert found.file == tmp_path / "a.jsonl" and found.file.exists()
    toy = {"env_id": "RoleAgent/Toy-v0", "split": "valid", "tasks": 3}
    idle = roleagent.evaluate(idle_agent, out=tmp_path / "b.jsonl", **toy)
    assert idle.summary.success == 0 and {record.steps for record in idle.records} == {15}
    assert roleagent.evaluate("expert", out=tmp_path / "c.jsonl", **toy).summary.success == 1


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: roleagent.train("configs/toy.yaml", train={"iteratoins": 5}), "did you mean 'train.iterations'?"),
        (lambda: roleagent.train("configs/toi.yaml"), "cannot read the configuration configs/toi.yaml"),
        (lambda: roleagent.train(optim={"lr": object()}), "optim.lr must be a number, a text, a list or a mapping"),
        (lambda: roleagent.train(callbacks=[print]), "builtin_function_or_method is no callback"),
        (lambda: roleagent.evaluate(lambda observation: "look"), "at the top of a module"),
        (lambda: roleagent.evaluate("expert", repeats=0), "repeats: '0' is not an integer of at least 1"),
        (lambda: roleagent.evaluate("expert", tasks=2.5), "tasks: '2.5' is not an integer of at least 1"),
        (lambda: roleagent.evaluate("expert", temperature="hot"), "temperature: 'hot' is not a number of at least 0"),
        (lambda: roleagent.evaluate("expret", env_id="RoleAgent/Toy-v0"), "no agent 'expret'"),
    ],
)
def test_a_mistake_is_one_line(call, words):
    with pytest.raises(roleagent.ConfigError, match=r"^[^\n]*$") as caught:
        call()
    assert words in str(caught.value)
