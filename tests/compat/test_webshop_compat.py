"""The interface of WebShop's text environment: recordings of the original, and clients of well-known projects."""

import bisect
import random
import string
from itertools import accumulate

import gymnasium
import numpy as np
import pytest
from programs import load

from roleagent.compat.webshop import ENV_ID, SimServer, WebAgentTextEnv

parity = load("benchmarks/parts/webshop_recordings")

KINDS = {"synthetic": (220, 3005), "human": (60, 795)}


@pytest.fixture(scope="module")
def servers(webshop_data):
    nouns = webshop_data / "reference" / "title_nouns.json.gz"
    return {kind: SimServer(file_path=webshop_data, human_goals=kind == "human", nouns=nouns) for kind in KINDS}


def play(env, recording):
    env.reset(session=recording.goal)
    for step in recording.steps:
        yield step, env.step(step["action"])


# --- the original -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_recorded_step_agrees(servers, webshop_data, kind):
    env = WebAgentTextEnv("text", server=servers[kind])
    recordings = parity.read_recordings(webshop_data / "reference" / f"traces_{kind}.jsonl.gz")
    steps = 0
    for recording in recordings:
        observation, info = env.reset(session=recording.goal)
        assert (observation, info) == (recording.start["observation"], None)
        assert env.get_available_actions()["clickables"] == list(recording.start["clickables"])
        for step, answer in play(env, recording):
            assert answer == (step["observation"], step["reward"], step["done"], None)
            actions = {key: step[key] for key in ("has_search_bar", "clickables")}
            assert env.get_available_actions() == actions
            steps += 1
    assert (len(recordings), steps) == KINDS[kind]


def test_unnamed_sessions_are_drawn_as_the_original_draws_them(servers):
    """Its process has one generator, which shuffles the goals with the seed 233 and then draws names and goals."""
    goals = servers["synthetic"].goals
    generator = random.Random(233)
    generator.shuffle(list(range(len(goals))))
    sums = [0, *accumulate(goal["weight"] for goal in goals)]
    env = WebAgentTextEnv("text", server=fresh(servers["synthetic"]))
    for _ in range(20):
        name = "".join(generator.choices(string.ascii_lowercase, k=10))
        index = min(bisect.bisect(sums, generator.uniform(0, sums[-1])), len(goals) - 1)
        assert env.session == name
        assert env.server.user_sessions[name]["goal"] == goals[index]
        env.reset()


def fresh(server):
    """The same shop with sessions and a generator of its own."""
    other = object.__new__(SimServer)
    other.__dict__ = {key: value for key, value in vars(server).items() if key != "rng"} | {"user_sessions": {}}
    return other


# --- clients ----------------------------------------------------------------------------------------------------------


def test_a_client_like_verl_agents_plays_groups(webshop_data):
    data = {"file_path": str(webshop_data), "attr_path": str(webshop_data / "items_ins_v2_1000.json")}
    workers = [gymnasium.make(ENV_ID, observation_mode="text", num_products=None, **data) for _ in range(4)]
    indices = np.random.RandomState(0).choice(range(500, len(workers[0].server.goals)), size=2, replace=False)
    for worker, index in zip(workers, np.repeat(indices, 2).tolist(), strict=True):
        obs, info = worker.reset(session=index)
        info = dict(info or {}, available_actions=worker.get_available_actions())
        assert worker.server.goals[index]["instruction_text"] in obs
        assert info["available_actions"] == {"has_search_bar": True, "clickables": ["search"]}
        asin = worker.server.goals[index]["asin"].lower()
        worker.step(f"search[<q> {worker.server.goals[index]['query']}]")
        while asin not in worker.get_available_actions()["clickables"]:
            worker.step("click[next >]")
        worker.step(f"click[{asin}]")
        for value in worker.server.goals[index]["goal_options"].values():
            worker.step(f"click[{value}]")
        obs, reward, done, info = worker.step("click[buy now]")
        assert (done, info) == (True, None)
        assert 0.5 < reward <= 1
        assert worker.get_available_actions()["clickables"] == []
        assert worker.render(mode="text") is None
    assert len({id(worker.server.shop) for worker in workers}) == 1


def test_a_client_like_agentgyms_asks_for_everything(servers):
    env = gymnasium.make(ENV_ID, observation_mode="text", server=servers["synthetic"])
    env.reset()
    assert env.observation.startswith("WebShop [SEP] Instruction: [SEP] ")
    assert env.reset(session=7) == (env.observation, None)
    assert (
        env.get_instruction_text() == env.instruction_text == f"Instruction: {env.server.goals[7]['instruction_text']}"
    )
    assert env.state["url"] == "http://127.0.0.1:3000/7"
    state, reward, done, info = env.step("search[red shoes]")
    assert (type(state), reward, done, info) == (str, 0.0, False, None)
    assert env.state == {
        "url": "http://127.0.0.1:3000/search_results/7/red+shoes/1",
        "html": env.browser.page_source,
        "instruction_text": env.instruction_text,
    }
    assert env.close() is None


def test_a_client_like_the_baselines_reads_the_session(servers):
    env = WebAgentTextEnv(
        "text", server=servers["synthetic"], session_prefix="7-", num_prev_obs=1, num_prev_actions=1, limit_goals=-1
    )
    first, _ = env.reset(11)
    session = env.server.user_sessions[env.session]
    assert env.session == "7-11"
    goal = session["goal"]
    state, *_ = env.step(f"search[<q> {goal['query']}]")
    assert state == f"{first} [SEP] search[<q> {goal['query']}] [SEP] {env.observation}"
    products = env.server.product_item_dict
    asin = next(name for name in env.get_available_actions()["clickables"] if name.upper() in products)
    env.step(f"click[{asin}]")
    assert session["asin"] == asin.upper()
    assert products[session["asin"]]["Title"] in env.observation
    assert env.server.product_prices[session["asin"]] > 0
    _, reward, done, _ = env.step("click[buy now]")
    verbose = session["verbose_info"]
    assert session["done"] is done is True
    parts = verbose["w_att"] * verbose["r_att"] + verbose["w_price"] * verbose["r_price"]
    parts += verbose.get("w_option", 0) * verbose.get("r_option", 0)
    assert reward == session["reward"] == pytest.approx(parts * verbose["r_type"])


# --- details ----------------------------------------------------------------------------------------------------------


def test_a_known_session_keeps_its_goal_and_a_search_goes_on_after_the_purchase(servers):
    env = WebAgentTextEnv("text", server=servers["synthetic"])
    first = env.reset(session="somebody")
    env.reset(session=5)
    assert env.reset(session="somebody") == first
    env.step("search[<q> desks]")
    env.step(f"click[{env.get_available_actions()['clickables'][-1]}]")
    assert env.step("click[buy now]")[2] is True
    assert env.step("click[back to search]")[1:3] == (0, False)
    assert env.observation.startswith("Thank you")
    assert env.step("search[desk]")[1:3] == (0.0, False)
    assert "Page 1" in env.observation


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"observation_mode": "image"}, ValueError, "text_rich"),
        ({"num_product": 100}, TypeError, "num_products"),
        ({"get_image": 1}, ValueError, "leave it out"),
        ({"file_path": "/nowhere/items_shuffle.json"}, ValueError, "does not exist"),
        ({"attr_path": "/nowhere/items_ins_v2.json"}, ValueError, "file_path"),
        ({"limit_goals": 0}, ValueError, "at least 1"),
    ],
)
def test_a_bad_argument_gets_one_line(webshop_data, arguments, error, words):
    with pytest.raises(error, match=words) as caught:
        WebAgentTextEnv(**{"file_path": webshop_data, **arguments})
    assert "\n" not in str(caught.value)
