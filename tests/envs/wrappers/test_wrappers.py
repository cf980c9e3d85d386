"""Tags, predicted states and the curriculum's view: alone, together, and with agents that know nothing of them."""

import warnings
from itertools import permutations

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit
from hypothesis import given
from hypothesis import strategies as st

import roleagent  # noqa: F401  (registers the environments)
from roleagent.agents.builders import EnvSplit
from roleagent.config import load
from roleagent.envs.wrappers import FailureCurriculum, PredictedState, Tags, default_horizon, parse
from roleagent.envs.wrappers.tags import MAX_COMMAND
from roleagent.similarity import lms, lms_tokens
from roleagent.spaces import Unicode
from roleagent.types import PredictionScore, Recorder, Task


class Script(gymnasium.Env):
    """Shows the given states one after the other and remembers the commands it got."""

    def __init__(self, states, max_steps=40):
        self.states, self.max_steps, self.commands = states, max_steps, []
        self.action_space = self.observation_space = Unicode(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options, self.turn = options, 0
        return "start", {"state": "start", "rewards": {}}

    def step(self, action):
        self.commands.append(action)
        state = self.states[self.turn]
        self.turn += 1
        return str(state), 0.5, self.turn == len(self.states), False, {"state": state, "rewards": {"task": 0.5}}


class Fixed:
    """A sampler that names its tasks in turn."""

    def __init__(self, *task_ids):
        self.task_ids, self.calls = task_ids, 0

    def sample(self, n, rng=None):
        self.calls += 1
        first = self.calls - 1 if rng is None else int(rng.integers(len(self.task_ids)))
        return [self.task_ids[(first + k) % len(self.task_ids)] for k in range(n)]


# --- Tags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "command", "error"),
    [
        ("<action>go to desk 1</action>", "go to desk 1", None),
        ("so:\n<action>\n go  to\ndesk 1 </action> done", "go to desk 1", None),
        ("<think>maybe <action>look</action>?</think><action>go</action>", "go", None),
        ("<action>no</action> wait</think><action>go</action>", "go", None),
        ("<search>who?</search>", "search[who?]", None),
        ("<action>a < b > c</action>", "a < b > c", None),
        ("<action>go</action><prediction h='1'>cut of", "go", None),
        ("", "", "no <action> block"),
        ("<action> \n </action>", "", "the command is empty"),
        ("<action>go", "", "<action> is never closed"),
        ("go</action>", "", "</action> without <action>"),
        ("<action>a</action><action>b</action>", "", "2 action blocks"),
        ("<search>a</search><answer>b</answer>", "", "2 action blocks"),
        ("<action>a<action>b</action></action>", "", "<action> inside <action>"),
        ("<think>never ends <action>go</action>", "", "<think> is never closed"),
        ("<action>go</action><think>late</think>", "", "a <think> block after the action"),
        ("<prediction><action>go</action></prediction>", "", "no <action> block"),
        (f"<action>{'x' * (MAX_COMMAND + 1)}</action>", "", f"a command of {MAX_COMMAND + 1} characters"),
        (None, "", "the reply is not text but NoneType"),
    ],
)
def test_exactly_one_action_block(text, command, error):
    parsed = parse(text)
    assert (parsed.command, parsed.error) == (command, error)


@pytest.mark.parametrize(
    ("think", "errors"),
    [
        ("required", ["no <think> block", None, "2 <think> blocks"]),
        ("none", [None, "a <think> block", "a <think> block"]),
        ("optional", [None, None, None]),
    ],
)
def test_thoughts(think, errors):
    parsed = [parse("<think>x</think>" * number + "<action>go</action>", think=think) for number in range(3)]
    assert [one.error for one in parsed] == errors
    assert [one.command for one in parsed] == ["" if error else "go" for error in errors]


@pytest.mark.parametrize(
    ("reply", "predictions"),
    [
        ('<prediction h="2">two</prediction><action>go</action><prediction h=1> a\n b </prediction>', ("a\n b", "two")),
        ("<action>go</action><prediction>no number</prediction>", ("no number", "")),
        ("<prediction>first</prediction><prediction>second</prediction>", ("first", "")),
        ("<think><prediction>idea</prediction></think><action>go</action>", ("", "")),
        ('<action>go</action><prediction h="0">x</prediction><prediction h="3">y</prediction>', ("", "")),
        ("go <prediction>a desk</prediction>", ("a desk", "")),  # of a malformed action
    ],
)
def test_predictions_are_read_anywhere_in_the_raw_reply(reply, predictions):
    assert parse(reply, horizon=2).predictions == predictions


TAGS = ("<action>", "</action>", "<think>", "</think>", "<prediction h='1'>", '<prediction h="999">', "</prediction>")
OTHERS = ("<search>", "</search>", "<answer>", "</answer>", "<", ">", "h=", "go to desk 1", "\x00", "\ud800", "☀")
REPLIES = st.one_of(st.text(), st.lists(st.sampled_from(TAGS + OTHERS), max_size=40).map("".join))


@given(REPLIES, st.sampled_from(["none", "optional", "required"]))
def test_parse_never_raises(text, think):
    parsed = parse(text, horizon=3, think=think)
    assert (parsed.command == "") == (parsed.error is not None)
    assert len(parsed.predictions) == 3 and "<action>" not in parsed.command


def test_a_malformed_reply_is_an_invalid_action_with_a_reason():
    env = Tags(gymnasium.make("RoleAgent/Toy-v0"))
    assert env.reset(seed=0)[1]["format_error"] is None
    for text in ("<action>go", "<action>" * 5000, None):
        observation, _, _, _, info = env.step(text)
        assert observation == "Nothing happens." and not info["valid_action"] and info["format_error"]
    assert env.step("<action>look</action>")[4]["format_error"] is None


# --- PredictedState ---------------------------------------------------------------------------------------------------


def test_scores_arrive_with_the_state_and_name_the_source_turn():
    base = Script(["aaaa", "bbbb", "cccc"])
    env = PredictedState(base, horizon=2)
    _, info = env.reset()
    assert info["prediction_scores"] == ()

    info = env.step({"command": "x", "predictions": ("aaaa", "bbzz")})[4]
    assert info["prediction_scores"] == (PredictionScore(0, 1, 1.0),)
    assert info["rewards"] == {"task": 0.5, "prediction": 1.0}

    info = env.step({"command": "y", "predictions": ("", "cccc")})[4]
    assert info["prediction_scores"] == (PredictionScore(0, 2, 0.5), PredictionScore(1, 1, 0.0, absent=True))
    assert info["rewards"]["prediction"] == 0.5

    _, reward, terminated, _, info = env.step({"command": "z", "predictions": ("cccc", "beyond the end")})
    assert info["prediction_scores"] == (PredictionScore(1, 2, 1.0), PredictionScore(2, 1, 1.0))
    assert terminated and reward == 0.5  # the reward itself is left alone
    assert base.commands == ["x", "y", "z"]  # predictions never reach the environment

    env.reset()
    info = env.step({"command": "x", "predictions": ("aaaa", "")})[4]
    assert info["prediction_scores"] == (PredictionScore(0, 1, 1.0),)  # nothing is left of the last episode


def test_a_state_that_cannot_be_known_is_neither_scored_nor_counted():
    env = PredictedState(Script(["aaaa", None, "cccc"]), horizon=2)
    env.reset()
    env.step({"command": "x", "predictions": ("aaaa", "bbbb")})
    info = env.step({"command": "x", "predictions": ("bbbb", "cccc")})[4]
    assert info["prediction_scores"] == () and info["rewards"]["prediction"] == 0
    info = env.step("x")[4]
    assert info["prediction_scores"] == (PredictionScore(1, 2, 1.0), PredictionScore(2, 1, 0.0, absent=True))


def test_a_plain_environment_pays_its_reward_as_the_task_and_is_won_by_an_end_with_one():
    class Plain(Script):
        def reset(self, **options):
            return super().reset(**options)[0], {}

        def step(self, action):
            return (*super().step(action)[:4], {})

    env = PredictedState(Plain(["a", "b"]), horizon=1)
    record = Recorder(Task("Plain-v0", "a task"), *env.reset())
    for command in ("one", "two"):
        record.add(command, *env.step({"command": command, "predictions": ()}))
    episode = record.trajectory()
    assert episode.success and episode.outcome == 1.0 and set(episode.turns[0].rewards) == {"task", "prediction"}


def test_too_few_too_many_or_strange_predictions():
    env = PredictedState(Script(["aaaa"] * 4), horizon=2)
    env.reset()
    assert env.step("x")[4]["prediction_scores"] == (PredictionScore(0, 1, 0.0, absent=True),)
    assert env.step({"command": "x"})[4]["prediction_scores"][0].absent
    assert env.step({"command": "x", "predictions": ("aaaa",) * 9})[4]["prediction_scores"][-1].score == 1.0
    assert env.step({"command": "x", "predictions": (None, 3)})[4]["prediction_scores"][-1].absent
    with pytest.raises(ValueError, match="an action is a command or"):
        env.step({"prediction": "aaaa"})


def test_the_default_horizon_counts_the_steps_that_an_episode_can_have():
    def limited(*limits, max_steps=50):
        env = Script([], max_steps)
        for limit in limits:
            env = TimeLimit(env, limit)
        return env

    assert [default_horizon(steps) for steps in (50, 15, 4, 30, 29)] == [3, 1, 1, 2, 1]
    for limits, horizon in {(): 3, (10,): 1, (30,): 2, (10, 100): 1, (100, 10): 1, (100,): 3}.items():
        assert PredictedState(limited(*limits)).horizon == horizon == Tags(limited(*limits)).horizon
    assert PredictedState(gymnasium.make("CartPole-v1")).horizon == 25  # of 500 steps, which only the TimeLimit knows
    assert PredictedState(limited(30, max_steps=None)).horizon == 2  # a server may not know
    config = load(overrides=["env.id=RoleAgent/Toy-v0", "env.kwargs={max_steps: 60, max_episode_steps: 30}"])
    assert EnvSplit.open(config, "train").horizon == 2
    with pytest.raises(ValueError, match="at least 1"):
        PredictedState(Script([]), horizon=0)
    with pytest.raises(ValueError, match="horizon="):
        PredictedState(gymnasium.make("CartPole-v1").unwrapped)


# --- FailureCurriculum ------------------------------------------------------------------------------------------------


def test_the_sampler_chooses_only_where_no_task_is_named():
    env = FailureCurriculum(Script(["a"]), Fixed("egg", "fish"))
    for options, passed in (
        (None, {"task_id": "egg"}),
        ({"task_id": "apple", "other": 1}, {"task_id": "apple", "other": 1}),
        ({}, {"task_id": "fish"}),
    ):
        env.reset(options=options)
        assert env.unwrapped.options == passed
    env, tasks = FailureCurriculum(Script(["a"]), Fixed(*"abcdefgh")), []
    for seed in (1, 2, 3, 4, 1, 2, 3, 4):  # with a seed, the choice repeats
        env.reset(seed=seed)
        tasks.append(env.unwrapped.options["task_id"])
    assert tasks[:4] == tasks[4:] and len(set(tasks)) > 1


# --- together ---------------------------------------------------------------------------------------------------------

TOY_TASKS = ("bring-egg-table-1", "heat-fish-tray-2")
REGISTERED = sorted(name for name in gymnasium.registry if name.startswith("RoleAgent/"))


def make_or_skip(env_id):
    try:
        return gymnasium.make(env_id)
    except (gymnasium.error.DependencyNotInstalled, FileNotFoundError) as error:
        if not any(words in str(error) for words in ("pip install", "give data_dir", "give games")):
            raise
        pytest.skip(str(error))


WRAPPERS = {
    "tags": lambda env: Tags(env),
    "predicted": lambda env: PredictedState(env),
    "curriculum": lambda env: FailureCurriculum(env, Fixed(*env.unwrapped.task_split.task_ids[:2])),
}


ORDERS = [("RoleAgent/Toy-v0", order) for order in (*((name,) for name in WRAPPERS), *permutations(WRAPPERS))]


@pytest.mark.parametrize(("env_id", "order"), [*ORDERS, *((env_id, tuple(WRAPPERS)) for env_id in REGISTERED)])
def test_any_order_plays_any_environment_and_passes_check_env(env_id, order):
    env = make_or_skip(env_id)
    for name in order:
        env = WRAPPERS[name](env)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*is different from the unwrapped version.*")
        check_env(env, skip_render_check=True)
    task_id = env.unwrapped.task_split.task_ids[1]
    _, info = env.reset(options={"task_id": task_id})
    command = next(iter(info["admissible_actions"] or env.unwrapped.walkthrough()))
    action = f"<action>{command}</action>" if "tags" in order else command
    _, _, _, _, info = env.step(action)
    assert info["valid_action"] and info["task_id"] == task_id
    assert ("format_error" in info) == ("tags" in order)
    assert ("prediction" in info["rewards"]) == ("predicted" in order)


def test_a_reply_is_scored_through_all_wrappers():
    env = Tags(FailureCurriculum(PredictedState(gymnasium.make("RoleAgent/Toy-v0"), horizon=2), Fixed(*TOY_TASKS)))
    assert env.horizon == 2
    env.reset(options={"task_id": TOY_TASKS[0]})
    for turn, place in enumerate(("stove", "sink")):
        text = "You arrive at stove. You see nothing. You carry nothing."
        reply = f'<action>go to {place}</action><prediction h="1">\n{text} </prediction>'
        observation, _, _, _, info = env.step(reply)
        by_horizon = {score.horizon: score for score in info["prediction_scores"]}
        assert by_horizon[1] == PredictionScore(turn, 1, lms(text, observation))
    assert by_horizon[1].score < 1 and by_horizon[2] == PredictionScore(0, 2, 0.0, absent=True)


def test_a_spec_is_json_and_the_environment_is_made_again_from_it():
    for similarity in (lms, lms_tokens, "roleagent.similarity:lms_tokens"):
        made = Tags(PredictedState(gymnasium.make("RoleAgent/Toy-v0"), horizon=2, similarity=similarity), think="none")
        again = gymnasium.make(EnvSpec.from_json(made.spec.to_json()))
        assert again.env.similarity is made.env.similarity in (lms, lms_tokens) and again.horizon == 2
    again.reset(options={"task_id": TOY_TASKS[0]})
    text = "You arrive at sink. You see nothing. You carry nothing."
    info = again.step(f"<action>go to stove</action><prediction>{text}</prediction>")[4]
    assert info["prediction_scores"][0].score == lms_tokens(text, info["state"]) != lms(text, info["state"])
    for name in ("lms", "roleagent.similarity:none", "roleagent.nowhere:lms", "roleagent.similarity:_BLOCK"):
        with pytest.raises(ValueError, match=f"the similarity '{name}'"):
            PredictedState(Script([]), similarity=name)
