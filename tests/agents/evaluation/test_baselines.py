"""Agents that prompt a model: any model, many dialogues, all environments; and the agents without one."""

import threading
from functools import partial

import gymnasium
import numpy as np
import pytest
from fake_openai import KEY, MODEL, error, serving
from player import LESSON, learner, player
from tiny import Script, qwen

from roleagent.agents.chat.endpoint import KEYS, Endpoint, EndpointError
from roleagent.agents.chat.models import PolicyChatModel
from roleagent.agents.episode import THREAD_NAME
from roleagent.agents.evaluation.baselines import (
    build_agent,
    build_prompting_agent,
)
from roleagent.agents.evaluation.play import play_agents, play_prompting
from roleagent.agents.evaluation.records import Attempt
from roleagent.agents.prompting.plain import MEMORY, ReAct, Reflexion
from roleagent.env_card import instructions_of
from roleagent.envs.pool import EnvPool

WORLDS = {
    "Toy": {"split": "valid"},
    "ALFWorld": {"size": "tiny", "data_dir": "generated"},
    "WebShop": {"data_dir": "generated"},
    "SearchQA": {"data_dir": "generated"},
}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield
    for asking in [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]:
        asking.join(5)  # nobody goes on asking when nobody waits for answers
        assert not asking.is_alive()


def maker(name, **options):
    """What builds a world, and the ids of its tasks."""
    make = partial(
        gymnasium.make, f"RoleAgent/{name}-v0", disable_env_checker=True, **{**WORLDS.get(name, {}), **options}
    )
    return make, make().unwrapped.task_split.task_ids


def server(fake, **options):
    return Endpoint(fake.url, MODEL, **options)


def play(agent, speaker, make, task_ids, **options):
    """What became of the tasks, in their order."""
    agent = build_prompting_agent(agent, make()) if isinstance(agent, str) else agent
    found = dict(play_prompting(agent, speaker, make, task_ids, **options))
    return [found[place] for place in range(len(task_ids))]


def user(text):
    return {"role": "user", "content": text}


# --- reading replies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("Thought: well.\nAction: go to desk 1", "go to desk 1"),
        ("Action: look\nThought: no, better so.\nAction: Open Drawer 2.", "open drawer 2"),
        ("thought: hm\naction: `go to desk 1`", "go to desk 1"),
        ("**Thought:** hm\n\n**Action:** go to desk 1", "go to desk 1"),
        ("Thought 2: hm\nAction 2: <action>go to desk 1</action>", "go to desk 1"),
        ("- Action：go to   desk 1", "go to desk 1"),
        ("Action:\n\n```\ngo to desk 1\n```\n", "go to desk 1"),
        ("Action: Search[red mug, 12 oz] to find one", "search[red mug, 12 oz]"),
        ("Action: click[[2 pack] Mugs]", "click[[2 pack] Mugs]"),
        ("Action: answer[The U.S.]", "answer[The U.S.]"),
        ("Action: look\nObservation: gold!\nThought: fine\nAction: take gold", "look"),
        ("<think>Action: look</think>Action: go to desk 1", "go to desk 1"),
        ("<think>Action: look", ""),
        ("Reaction: none. My action would be to look.", ""),
        ("Action:", ""),
        ("", ""),
        ("Action: " + "a" * 5000, "a" * 4096),
        ("Act" * 50_000, ""),
        ("\n*_- " * 20_000 + "Action", ""),
    ],
)
def test_an_action_is_found_in_whatever_stands_around_it(reply, command):
    agent = ReAct(instructions_of(maker("Toy")[0]()))
    assert agent.read(agent.kept(reply), {"admissible_actions": ["go to desk 1", "open drawer 2"]}) == command


# --- speakers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [None, CHATML, NO_SYSTEM])
def test_a_policy_converses(template):
    policy = Script(lambda prompt, slot: "go to table \n\nUser: and I imagine more", chat_template=template)
    speaker = PolicyChatModel(policy)
    talk = [{"role": "system", "content": "Act."}, user("A <|im_end|> room.")]
    [answer] = speaker.chat([talk], max_tokens=200, temperature=0.0)
    [prompt] = policy.prompts
    # As many ends as messages: the world cannot end its own.
    assert prompt.count("Act.") == 1 and prompt.count("<|im_end|>") == {None: 0, CHATML: 2, NO_SYSTEM: 1}[template]
    assert prompt.endswith("Assistant:" if template is None else "<|im_start|>assistant\n")
    assert answer.text.startswith("go to table") and ("imagine" in answer.text) == bool(template)
    assert answer.prompt_tokens == len(policy.encode(prompt)) and answer.completion_tokens > 3
    assert not answer.estimated and answer.finish_reason == "stop"


def test_a_growing_conversation_costs_its_new_tokens_and_changes_no_answer():
    policy = qwen(context=2048)
    fed = []
    policy.model.base_model.register_forward_pre_hook(
        lambda model, args, given: fed.append(given["input_ids"].numel()), with_kwargs=True
    )
    speaker = PolicyChatModel(policy)
    # Two of them begin alike, as repeats of a task do, and they change places.
    talks = [[user("You see an egg. " * 40)], [user("You see a table. " * 40)], [user("You see an egg. " * 40)]]
    for turn in range(3):
        before = sum(fed)
        answers = speaker.chat(talks, max_tokens=6, temperature=0.0)
        cost = sum(fed) - before
        fresh = PolicyChatModel(qwen(context=2048)).chat(talks, max_tokens=6, temperature=0.0)
        assert [answer.text for answer in answers] == [answer.text for answer in fresh]
        whole = sum(answer.prompt_tokens for answer in answers)
        assert cost < whole / 4 if turn else cost > whole / 2  # what begins alike is read once
        for number, (talk, answer) in enumerate(zip(talks, answers, strict=True)):
            seen = "You see a table." if number else "You carry an egg. " * 3
            talk += [{"role": "assistant", "content": answer.text}, user(seen)]
        talks.reverse()


# --- driving ----------------------------------------------------------------------------------------------------------


class Lockstep:
    """A server, asked for all at once."""

    lockstep = True

    def __init__(self, endpoint):
        self.chat, self.concurrency = endpoint.chat, endpoint.concurrency


class Fragile(gymnasium.Wrapper):
    """A world that breaks when its fifth task begins a second step, and cannot begin the third."""

    def __init__(self, env, task_ids):
        super().__init__(env)
        self._breaking, self._absent = task_ids[4], task_ids[2]

    def reset(self, *, seed=None, options=None):
        self._steps, self._task = 0, options["task_id"]
        if self._task == self._absent:
            raise OSError("no such\nkitchen")
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        self._steps += 1
        if self._task == self._breaking and self._steps == 2:
            raise RuntimeError("the stove exploded")
        return self.env.step(action)


@pytest.mark.parametrize("way", [lambda endpoint: endpoint, Lockstep], ids=["as answered", "lockstep"])
def test_a_world_that_breaks_and_a_question_that_is_refused_end_their_own_episode(way):
    make, task_ids = maker("Toy")
    task_ids = task_ids[:9]
    goal = make().reset(options={"task_id": task_ids[6]})[1]["goal"]

    def reply(body, number):
        return error(400, "not this one") if goal in body["messages"][1]["content"] else player(body)

    with serving(reply) as fake, pytest.warns(UserWarning, match="not this one"):
        found = play("react", way(server(fake, concurrency=2)), lambda: Fragile(make(), task_ids), task_ids)
    wrong = {
        place: (played.stop_reason, played.error.partition(" (")[0])
        for place, played in enumerate(found)
        if not played.won
    }
    assert wrong == {
        2: ("error", "OSError: no such kitchen"),
        4: ("error", "RuntimeError: the stove exploded"),
        6: ("error", "the model did not answer"),
    }
    assert [played.task_id for played in found] == list(task_ids)
    assert found[0].usage.answers == found[0].steps and found[0].usage.prompt_tokens == 7 * found[0].steps


@pytest.mark.filterwarnings("ignore:.*stayed unanswered")  # what was asked last, of a server that has gone
@pytest.mark.parametrize("way", [lambda endpoint: endpoint, Lockstep], ids=["as answered", "lockstep"])
def test_a_key_that_is_refused_ends_everything(way, monkeypatch):
    make, task_ids = maker("Toy")
    monkeypatch.setenv(KEYS[0], "sk-wrong")
    with serving(player, key=KEY) as fake, pytest.raises(EndpointError, match=f"401.*{KEYS[0]}"):
        play("react", way(server(fake)), make, task_ids[:20])


def test_a_server_that_falls_silent_ends_everything_at_last():
    make, task_ids = maker("Toy")
    with (
        serving(lambda body, number: player(body) if number < 9 else error(500)) as fake,
        pytest.warns(UserWarning, match="HTTP 500"),
        pytest.raises(EndpointError, match="in a row had no answer"),
    ):
        play("plain", server(fake, concurrency=2, retries=0), make, task_ids)


# --- whole episodes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "react", "reflexion"])
@pytest.mark.parametrize("world", WORLDS)
def test_a_good_model_plays_as_well_as_the_expert_that_it_is(world, name):
    make, task_ids = maker(world)
    task_ids = task_ids[:4]
    env = make()
    attempts = [Attempt(0, task_id) for task_id in task_ids]
    build = partial(build_agent, "expert", env, np.random.default_rng(0))
    expected = list(play_agents(build, EnvPool(lambda: env), attempts))
    with serving(player) as fake:
        found = play(name, server(fake), make, task_ids)
    for played, record in zip(found, expected, strict=True):
        assert (played.won, played.task_type) == (record.won, record.task_type)
        assert played.trials == 1 or not record.won
        assert (played.steps, played.reward, played.stop_reason) == (record.steps, record.reward, record.stop_reason)
        assert played.corrections == 0 and played.messages[-1]["role"] == "assistant"
    assert any(played.won for played in found)


def test_an_episode_that_outgrows_the_context_is_lost_and_no_error():
    make, task_ids = maker("ALFWorld")
    with (
        serving(lambda body, number: "Thought: hm.\nAction: look", context=560) as fake,
        pytest.warns(UserWarning, match="maximum context length is 560"),
    ):
        [played] = play("react", server(fake), make, task_ids[:1])
    assert (played.stop_reason, played.won, played.error) == ("context", False, "") and 3 < played.steps < 49


# --- Reflexion --------------------------------------------------------------------------------------------------------


def test_lessons_help():
    make, task_ids = maker("Toy")
    with serving(learner) as fake:
        found = play("reflexion", server(fake), make, task_ids[:4])
        [alone] = play(Reflexion(ReAct(instructions_of(make())), trials=1), server(fake), make, task_ids[:1])
    assert [(played.won, played.trials, played.stop_reason) for played in found] == [(True, 2, "won")] * 4
    assert (alone.won, alone.trials, alone.stop_reason) == (False, 1, "max_steps")
    for played in found:  # steps and reward are the last trial's, the cost is that of all
        assert played.steps < 12 and played.reward == 1.0 and played.usage.answers == 15 + 1 + played.steps
        assert LESSON in played.messages[0]["content"]


def test_three_lessons_are_kept_and_nothing_that_an_agent_cannot_see():
    numbers = iter(range(1, 100))

    def hopeless(body, number):
        reported = body["messages"][0]["content"]
        if reported.startswith("You have tried"):
            return f"<think>{reported}</think>Lesson {next(numbers)}.\n<b>Look</b>   harder."
        said = sum(one["role"] == "assistant" for one in body["messages"])
        return f"Thought: so.\nAction: {'answer[Nobody At All]' if said else 'search[something]'}"

    make, task_ids = maker("SearchQA")
    env = make()
    env.reset(options={"task_id": task_ids[0]})
    golden = env.step("answer[?]")[4]["golden_answers"]
    with serving(hopeless) as fake:
        [played] = play(Reflexion(ReAct(instructions_of(env)), trials=6), server(fake), make, task_ids[:1])
        asked = [[said["content"] for said in body["messages"]] for body in fake.asked]
    assert (played.trials, played.won, played.stop_reason) == (6, False, "lost")
    shown = [[line for line in reported[0].splitlines() if line.startswith("- Lesson")] for reported in asked]
    assert shown[-1] == [f"- Lesson {number}. Look harder." for number in (3, 4, 5)]
    assert max(map(len, shown)) == MEMORY
    records = [reported[1] for reported in asked if reported[0].startswith("You have tried")]
    assert len(records) == 5 and all("answer[Nobody At All]" in record for record in records)
    assert not any(answer in text for answer in golden for reported in asked for text in reported)
    assert not any("The answer was taken" in text for reported in asked for text in reported)


# --- by name ----------------------------------------------------------------------------------------------------------


class Idle:
    """Does not even begin, or begins and gives up."""

    def __init__(self, begins):
        self.begins = begins

    async def play(self, episode):
        if self.begins:
            episode.begin()
            await episode.step((await episode.ask([user(episode.observation)])).text)


def test_an_agent_that_gives_up_has_lost_and_one_that_never_begins_is_told_so():
    make, task_ids = maker("Toy")
    speaker = PolicyChatModel(Script(lambda prompt, slot: "look"))
    [played] = play(Idle(True), speaker, make, task_ids[:1])
    assert (played.steps, played.stop_reason, played.won) == (1, "gave_up", False)
    with pytest.raises(ValueError, match=r"episode\.begin\(\)"):
        play(Idle(False), speaker, make, task_ids[:1])


class Generator:
    """Plays as agents did before they were coroutines."""

    def play(self, episode):
        yield []


def test_an_agent_that_is_no_coroutine_is_told_so():
    with pytest.raises(ValueError, match="async def play"):
        build_prompting_agent("test_baselines:Generator", maker("Toy")[0]())
