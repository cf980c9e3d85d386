"""The methods of examples/methods: each trains in the toy kitchen from one file, and computes what its paper says."""

import doctest

import pytest
import torch
from estimators import estimator
from programs import ROOT, load, metrics
from test_methods import TREE, arguments  # noqa: F401 - a fixture

from roleagent.config import ConfigError
from roleagent.config import load as load_config
from roleagent.learners.loss import SampledTokens
from roleagent.learners.method import method_of
from roleagent.types import ACTION, TEXT, Completion, Group, Task, Trajectory, Turn

train = load("train")
METHODS = {
    **{"cispo": "CISPO", "gmpo": "GMPO", "echo": "ECHO", "hgpo": "HGPO", "graph_gpo": "GraphGPO"},
    **{"g2po": "G2PO", "gagpo": "GAGPO"},
}
TASK = Task("RoleAgent/Toy-v0", "boil-egg-1")


@pytest.fixture(autouse=True)
def root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_from_one_file(name, arguments, tmp_path):  # noqa: F811
    path = ROOT / "examples" / "methods" / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 120
    module = load(f"examples/methods/{name}")
    assert doctest.testmod(module).failed == 0
    options = [f"method=examples.methods.{name}:{METHODS[name]}", "optim.epochs=2"]
    assert train.main([*arguments, *options, f"run_dir={tmp_path}/run"]) == 0
    first, *rest = metrics(tmp_path / "run", "train")
    assert first["grad_norm"] > 0 and all(abs(row["ratio"] - 1) < 0.5 for row in (first, *rest) if "ratio" in row)


@pytest.mark.slow
def test_a_prompt_style_trains_from_one_file(arguments, tmp_path):  # noqa: F811
    style = "prompt.style=examples.methods.commands_style:Commands"
    assert train.main([*arguments, "method=grpo", "wia=off", "aiw=off", style, f"run_dir={tmp_path}/run"]) == 0
    assert metrics(tmp_path / "run", "train")[-1]["grad_norm"] > 0


def tokens(ratios, advantages, kinds=None, segments=None, world=None, turns=None):
    old = torch.full((len(ratios),), -1.0)
    now = (old + torch.tensor(ratios).log()).requires_grad_()
    kinds = torch.tensor(kinds or [ACTION] * len(ratios))
    weights = torch.where(kinds == ACTION, 0.25, 0.0)
    numbers = torch.tensor(segments or [0] * len(ratios))
    advantage = torch.tensor(advantages)
    return SampledTokens(now, old, advantage, weights, kinds, numbers, old, world=world, turns=turns)


def method(name, **options):
    module = load(f"examples/methods/{name}")
    found = object.__new__(getattr(module, METHODS[name]))
    found.options, found.estimator = found.Options(**options), estimator(gamma=0.5, norm="mean")
    return found


def test_cispo_keeps_the_gradient_of_every_token():
    given = tokens([1.0, 8.0], [2.0, 2.0])
    loss, sums = method("cispo", clip=1.0).loss(given)
    loss.backward()
    # A weight of 1, and one of 8 that counts 2; each times the token's weight 1/4 and advantage 2.
    assert given.logprobs.grad.tolist() == pytest.approx([-0.5, -1.0]) and sums["clipped"] == 1


def test_gmpo_takes_the_geometric_mean_of_a_segment():
    given = tokens([4.0, 1.0, 0.25], [1.0, 1.0, -1.0], segments=[0, 0, 1])
    loss, sums = method("gmpo", clip=0.0).loss(given)
    # Good: log 4 is cut to 0, so the ratio is 1; bad: log ¼ is cut to 0.
    assert float(loss.detach()) == pytest.approx(-0.25 * (1 + 1 - 1)) and sums["clipped"] == 2
    free, _ = method("gmpo", clip=9.0).loss(given)
    assert float(free.detach()) == pytest.approx(-0.25 * (2 + 2 - 0.25))


def test_echo_adds_the_mean_cross_entropy_of_the_world():
    from roleagent.config import load as configured

    world = torch.tensor([0.0, 0.5, 0.5])
    given = tokens([1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [ACTION, TEXT, TEXT], world=world)
    echo = method("echo", weight=2.0)
    echo.config = configured(overrides=["method=examples.methods.echo:ECHO"])
    loss, _ = echo.loss(given)
    assert float(loss.detach()) == pytest.approx(-0.25 + 2.0 * 1.0)  # each log-probability is -1


def episode(states, won):
    turns = [
        Turn((0,), Completion((1,), (-0.5,), "stop"), "look", "x", state, rewards={"task": 0.0}) for state in states
    ]
    turns[-1] = Turn((0,), turns[-1].completion, "look", "x", states[-1], rewards={"task": float(won)})
    return Trajectory(TASK, tuple(turns), True, False, "won" if won else "lost")


def test_graph_gpo_rewards_the_good_step_of_a_lost_episode():
    """All start in A. The winner goes to B and wins; the loser goes to B and then astray; a third goes astray."""
    some = Group(TASK, (episode("AB", True), episode("ABC", False), episode("AC", False)))
    found = method("graph_gpo").advantages(some)
    assert found.state[0][0] == found.state[1][0] > 0 > found.state[2][0]
    assert found.state[0][1] > 0 > found.state[1][1]  # from B: to the goal, and astray


def test_g2po_compares_edges_of_a_state_and_of_the_group():
    """By hand, with γ = ½ and the norm `mean`: V(A) = (¼ + 0)/2, V(B) = ½, V(C) = 0; the ends are worth 1 and 0."""
    some = Group(TASK, (episode("AB", True), episode("AC", False)))
    found = method("g2po").advantages(some)
    gains = [1 / 2 - 1 / 8, 1 - 1 / 2, 0 - 1 / 8, 0 - 0]
    mean = sum(gains) / 4
    assert found.state[0] == pytest.approx([1 / 4 + gains[0] - mean, gains[1] - mean])  # B is better than C by ½
    assert found.state[1] == pytest.approx([-1 / 4 + gains[2] - mean, gains[3] - mean])
    alpha = estimator().options.alpha
    assert found.values[0][1] == pytest.approx(found.state[0][1] + alpha * 1 / 2)


@pytest.mark.parametrize("name", ["hgpo", "graph_gpo", "g2po", "gagpo"])
def test_an_episode_whose_first_prompt_does_not_fit_has_no_turns(name):
    empty = Trajectory(TASK, (), False, True, "context")
    values = method(name).estimate(Group(TASK, (episode("AB", True), episode("AC", False), empty))).values
    assert values[2] == [] and values[0] != values[1]


@pytest.mark.parametrize("name", ["cispo", "gmpo"])
def test_a_loss_without_a_penalty_refuses_one(name):
    words = [f"method=examples.methods.{name}:{METHODS[name]}", "loss.kl=0.1"]
    with pytest.raises(ConfigError, match="has no KL penalty"):
        method_of(load_config(overrides=words)).check()


def test_gagpo_propagates_temporal_differences():
    """By hand, with γ = ½: V(A) = (½ + 0)/2, V(B) = 1, V(C) = 0."""
    some = Group(TASK, (episode("AB", True), episode("AC", False)))
    found = method("gagpo", lam=0.4).advantages(some).values
    won, lost = [1 / 2 * 1 - 1 / 4, 1 - 1], [1 / 2 * 0 - 1 / 4, 0 - 0]  # δ; those of the last turns are 0
    mean = (won[0] + lost[0]) / 4
    assert found == [pytest.approx([value - mean for value in row]) for row in (won, lost)]
    astray = Group(TASK, (episode("AB", True), episode("AB", False)))  # V(A) = ¼, V(B) = ½
    found = method("gagpo", lam=0.4).advantages(astray).values
    assert found[0] == pytest.approx([0 + 1 / 2 * 0.4 * 1 / 2, 1 / 2]) and found[1] == pytest.approx([-0.1, -1 / 2])
    with pytest.raises(ValueError, match="must be in"):
        method("gagpo", lam=2.0)


def test_gagpo_gives_a_turn_one_ratio():
    """Two turns of an episode and one advantage: the tokens of the first share √(4 · 1), the second has its own."""
    from roleagent.config import load as configured

    given = tokens([4.0, 1.0, 0.5], [1.0, 1.0, 1.0], turns=torch.tensor([1.0, 1.0, 2.0]))
    gagpo = method("gagpo")
    gagpo.config = configured(overrides=["method=examples.methods.gagpo:GAGPO", "loss.clip_high=9", "loss.kl=0"])
    loss, _ = gagpo.loss(given)
    assert gagpo.config.loss.importance_level == "sequence"
    assert float(loss.detach()) == pytest.approx(-0.25 * (2 + 2 + 0.5))


def test_hgpo_compares_by_history():
    """All begin in A and pass B, two of three through C: there, returns are 1, 0; in all of B 1, 0, 0."""
    some = Group(TASK, (episode("ACB", True), episode("ACB", False), episode("ADB", False)))
    wide, both = method("hgpo", history=0).advantages(some), method("hgpo", history=1).advantages(some)
    assert [row[2] for row in wide.values] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    narrow = [(2 / 3 + 2 * 1 / 2) / 3, (-1 / 3 - 2 * 1 / 2) / 3]  # weights 1 and 2
    # The third has no peers with its history, and keeps what the wide group says; the first turn has no history.
    assert [row[2] for row in both.values] == pytest.approx([*narrow, -1 / 3])
    assert [row[0] for row in both.values] == pytest.approx([1 / 4 - 1 / 12, -1 / 12, -1 / 12])
