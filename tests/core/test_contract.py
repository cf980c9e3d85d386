"""What holds of every environment: Gymnasium's contract, info, rewards, seeds, tasks, and invalid commands."""

import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from roleagent.envs.searchqa.env import INVALID
from roleagent.envs.tools.views import ToolView
from roleagent.tasks.split import assert_disjoint, data_of, split_text

NAMES = ("Toy", "ALFWorld", "WebShop", "SearchQA", "TextCraft")
TOY, ALFWORLD, WEBSHOP, SEARCHQA, TEXTCRAFT = (f"RoleAgent/{name}-v0" for name in NAMES)
OFFICE = "RoleAgent/Office-v0"
OPTIONS = {TOY: {}, ALFWORLD: {"size": "small"}, WEBSHOP: {}, SEARCHQA: {}, TEXTCRAFT: {}}
SPLITS = {
    TOY: ("train", "valid", "test"),
    ALFWORLD: ("train", "valid_train", "valid_seen", "valid_unseen"),
    WEBSHOP: ("train", "valid", "test"),
    SEARCHQA: ("train", "valid", "test"),
    TEXTCRAFT: ("train", "valid", "test"),
}
KEYS = {"task_id", "goal", "task_type", "split", "admissible_actions", "won", "valid_action", "state", "rewards"}
KEYS |= {"grouping_state"}
MORE_KEYS = {
    WEBSHOP: {"clickables", "has_search_bar", "score", "goal_id", "asin", "noun_source"},
    SEARCHQA: {"question_id", "retrieved", "answer", "em", "f1", "sub_em", "golden_answers"},
}
each_env = pytest.mark.parametrize("env_id", OPTIONS)


def make(env_id, **options):
    return gymnasium.make(env_id, **OPTIONS.get(env_id, {}) | options)


def solvable(env):
    for task_id in env.unwrapped.task_split.task_ids:
        env.reset(options={"task_id": task_id})
        if plan := env.unwrapped.walkthrough():
            return task_id, plan
    raise AssertionError("no task can be solved")


def transcript(env, seed, steps=12):
    """Everything that an episode returns when the seed also chooses the commands."""
    text, info = env.reset(seed=seed)
    returned = [(text, info)]
    for step in range(steps):
        commands = info["admissible_actions"] or [f"search[{info['goal']}]", "answer[x]"]
        *rest, info = env.step(commands[(7 * step + seed) % len(commands)])
        returned.append((*rest, info))
        if rest[2] or rest[3]:
            break
    return returned


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        (TOY, {}),
        (ALFWORLD, {"size": "standard"}),
        (ALFWORLD, {"split": "valid_unseen", "render_mode": "ansi"}),
        (WEBSHOP, {"goals": "human", "split": "test"}),
        (WEBSHOP, {"observation": "text_rich", "render_mode": "ansi", "reward": "score"}),
        (SEARCHQA, {"split": "test", "render_mode": "ansi"}),
        (SEARCHQA, {"top_k": 1, "max_steps": 2}),
        (TEXTCRAFT, {"split": "valid", "seed": 3, "render_mode": "ansi"}),
        (OFFICE, {}),
    ],
)
def test_check_env_gives_no_warning(env_id, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make(env_id, **options)
        check_env(env.unwrapped)
        env.reset(seed=1)
        env.step("look")
        env.close()


@pytest.mark.parametrize(("env_id", "split"), [(env_id, split) for env_id in SPLITS for split in SPLITS[env_id]])
def test_a_solved_episode(env_id, split):
    env = make(env_id, split=split)
    task_id, plan = solvable(env)
    text, info = env.reset(options={"task_id": task_id})
    keys = KEYS | MORE_KEYS.get(env_id, set())
    assert set(info) == keys and info["valid_action"] and not info["won"] and info["rewards"] == {}
    assert (info["task_id"], info["split"], info["state"]) == (task_id, split, text)
    assert info["goal"] in text and info["task_type"]
    for turn, command in enumerate(plan, start=1):
        assert command in info["admissible_actions"] or command.startswith(("search[", "answer[", "get "))
        text, reward, terminated, truncated, info = env.step(command)
        last = turn == len(plan)
        assert set(info) == keys and info["valid_action"] and info["rewards"] == {"task": reward}
        assert (reward, terminated, truncated, info["won"]) == (float(last), last, False, last)
        assert info["state"] == (None if last and env_id in MORE_KEYS else text)
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(plan[0])


INVALID_COMMANDS = {
    TOY: ("go to moon", "open table", "take egg from table", "GO TO TABLE"),
    ALFWORLD: ("Look", "look.", "go to nowhere", "take", "fly"),
    WEBSHOP: (
        *("search", "search[]", "Search[a]", " search[a]", "click[search]", "click[buy now]", "click[]", "[a]"),
        *("think\nsearch[a]", "search[a\n]", "[[[]]]", "]search[", "search]a[", "\udc80[\udc80]", "click[x" * 5000),
    ),
    SEARCHQA: (
        *("search", "search[]", "search[ \n ]", "answer[]", "answer[\t]", "Search[a]", "search[a", "search a]"),
        *("click[a]", "[a]", "<search>a</search>", "search: a", "search[a] answer[b", "research[a]", "][", "\ud800"),
    ),
    TEXTCRAFT: (
        *("get", "get ash log", "get 1 unobtainium", "get -1 wax", "Get 1 wax", " get 1 wax", "get 1 board"),
        *("craft", "craft 1 peg", "craft 1 peg using wax", "craft 1 peg using 1 wax", "craft 1 board using 2 unicorn,"),
        *("get ١ wax", "look", " inventory", "Inventory", f"get {'9' * 5000} wax", f"craft a using {'9' * 5000} b"),
        *("get 1 \udc80"),
    ),
}
ODD = ("", "  ", "ja ☀", "\x00" * 99, "x" * 5000, None, 7, b"look", ["look"], {"a": 1}, float("nan"))


@each_env
def test_invalid_commands_change_nothing_and_cost_a_step(env_id):
    commands = (*INVALID_COMMANDS[env_id], *ODD)
    env = make(env_id, max_steps=len(commands) + 1).unwrapped
    first, known = env.reset(seed=3)
    for command in commands:
        text, reward, terminated, truncated, info = env.step(command)
        shown = {WEBSHOP: first, SEARCHQA: INVALID, TEXTCRAFT: text}.get(env_id, "Nothing happens.")
        assert (text, reward, terminated, truncated) == (shown, 0, False, False), command
        assert info == {**known, "valid_action": False, "rewards": {"task": 0.0}, "state": shown}, command
    valid = {TOY: "look", ALFWORLD: "look", TEXTCRAFT: "inventory"}.get(env_id, "search[table]")
    *_, truncated, info = env.step(valid)
    assert truncated and info["valid_action"] and not info["won"]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("look")


@pytest.mark.parametrize("env_id", [*OPTIONS, OFFICE])
def test_no_episode_goes_on_after_a_reset_that_failed(env_id):
    env = make(env_id).unwrapped
    env.reset(seed=1)
    with pytest.raises(ValueError, match="unknown task id"):
        env.reset(options={"task_id": "no such task"})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("look")
    env.reset(seed=1)
    env.step("look")


@each_env
def test_the_last_allowed_step_may_win(env_id):
    task_id, plan = solvable(make(env_id))
    env = make(env_id, max_steps=len(plan))
    env.reset(options={"task_id": task_id})
    for command in plan:
        _, reward, terminated, truncated, _ = env.step(command)
    assert (reward, terminated, truncated) == (1.0, True, False)


@each_env
def test_an_environment_names_its_data(env_id):
    """The split with its data is what titles, records and comparisons quote; a view names the same."""
    env = make(env_id)
    found = data_of(env)
    assert found["source"] == ("built in" if env_id == TOY else "generated")
    assert found == data_of(ToolView(env))
    assert found["source"] in split_text({**env.unwrapped.task_split.manifest(), "data": found})
    if env_id == WEBSHOP:
        assert found["nouns"] == env.reset(seed=0)[1]["noun_source"] and found != data_of(make(env_id, num_products=50))
    if env_id == ALFWORLD:
        assert found["rooms"] == "small"


@each_env
def test_a_seed_is_an_episode(env_id):
    env, other = make(env_id), make(env_id)
    assert transcript(env, 5) == transcript(other, 5) == transcript(env, 5)
    assert len({env.reset(seed=seed)[1]["task_id"] for seed in range(20)}) > 10
    env.reset(seed=1)
    assert len({env.reset()[1]["task_id"] for _ in range(20)}) > 10  # the generator goes on


@each_env
def test_a_task_id_plays_that_task(env_id):
    env = make(env_id, split=SPLITS[env_id][1])
    task_ids = env.unwrapped.task_split.task_ids
    for seed, task_id in enumerate(task_ids[:3]):
        assert env.reset(seed=seed, options={"task_id": task_id})[1]["task_id"] == task_id
    assert env.reset(seed=3, options={})[1]["task_id"] == env.reset(seed=3, options=None)[1]["task_id"]
    with pytest.raises(ValueError, match=r"unknown task id .* did you mean '") as error:
        env.reset(options={"task_id": f"{task_ids[0]}0"})
    assert task_ids[0] in str(error.value) and "\n" not in str(error.value)
    for early in (lambda env: env.step("look"), lambda env: env.walkthrough()):
        with pytest.raises(gymnasium.error.ResetNeeded):
            early(make(env_id).unwrapped)


@each_env
def test_splits_are_disjoint_and_environments_share_them(env_id):
    assert_disjoint([make(env_id, split=split).unwrapped.task_split for split in SPLITS[env_id]])
    envs = [make(env_id) for _ in range(3)]
    assert env_id == TOY or len({id(env.unwrapped.task_split) for env in envs}) == 1
    alone, (_, info) = transcript(envs[0], 1, 4), envs[1].reset(seed=1)
    transcript(envs[2], 1, 4)  # an episode beside the other two changes neither
    assert info == alone[0][1] and transcript(envs[1], 1, 4) == alone


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        (TOY, {"split": "tests"}, r"unknown split 'tests'.*train, valid"),
        (ALFWORLD, {"split": "test"}, "unknown split 'test'.*valid_unseen"),
        (ALFWORLD, {"engine": "unity"}, "unknown engine 'unity'; there are native and textworld"),
        (ALFWORLD, {"size": "huge"}, "size 'huge'"),
        (ALFWORLD, {"games": 0}, "at least 1"),
        (WEBSHOP, {"split": "valid_seen"}, "unknown split 'valid_seen'.*train, valid, test"),
        (WEBSHOP, {"observation": "url"}, "unknown observation 'url'; there are text, text_rich, html"),
        (WEBSHOP, {"reward": "money"}, "unknown reward 'money'; there are success and score"),
        (WEBSHOP, {"search": "google"}, "unknown search 'google'; there are bm25 and pyserini"),
        (WEBSHOP, {"goals": "mine"}, "unknown kind of goals 'mine'"),
        (WEBSHOP, {"num_products": 0}, "at least 1"),
        (SEARCHQA, {"split": "dev"}, "no split 'dev' .* there are train, valid, test, test_sample, one_hop, two_hop"),
        (SEARCHQA, {"top_k": 0}, "top_k must be at least 1"),
        (SEARCHQA, {"max_words": 14}, "max_words must be at least 15 for 3 passages"),
        (SEARCHQA, {"retriever": "google"}, "google"),
        (TEXTCRAFT, {"split": "dev"}, "unknown split 'dev'.*train, valid, test"),
        (TEXTCRAFT, {"data_dir": "/nowhere"}, "there is no folder /nowhere: set TEXTCRAFT_DATA"),
        (TEXTCRAFT, {"worlds": 0}, "worlds must be at least 1"),
        (TEXTCRAFT, {"distractors": -1}, "distractors must be at least 0"),
        (TEXTCRAFT, {"data_dir": "official"}, "needs TEXTCRAFT_DATA"),
        (OFFICE, {"split": "dev"}, "unknown split 'dev'.*train, valid, test"),
        (OFFICE, {"calls": [5]}, "calls are numbers among 1, 2, 3, 4"),
        (OFFICE, {"calls": []}, "calls are numbers"),
        (OFFICE, {"max_steps": 0}, "max_steps"),
        *((env_id, {"max_steps": 0}, "at least 1") for env_id in OPTIONS),
    ],
)
def test_wrong_arguments(env_id, options, message):
    with pytest.raises(ValueError, match=message) as error:
        make(env_id, **options)
    assert "\n" not in str(error.value)
