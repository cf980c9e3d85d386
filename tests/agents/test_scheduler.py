"""Episodes side by side: batches in slot order, and nobody waits for a slow answer."""

import asyncio
import threading
from types import SimpleNamespace

import gymnasium
import pytest
from tiny import Script

import roleagent  # noqa: F401 - registers the environments
from roleagent.agents.episode import Action, Ask, Batch, Episode, Scheduler, Step, Threads, play_episode
from roleagent.agents.rollout import Rollout
from roleagent.config.settings import PromptConfig, RolloutConfig
from roleagent.envs.pool import EnvPool
from roleagent.envs.wrappers import Tags


def steps(actions):
    return {slot: f"{action}!" for slot, action in actions.items()}


def test_a_batch_has_a_request_of_every_live_episode_and_questions_for_later_come_last():
    batches = []

    def answer(asked):
        batches.append([ask.content for ask in asked])
        return [ask.content.upper() for ask in asked]

    async def talk(index, slot):
        heard = []
        for turn in range(index + 1):
            heard.append(await Ask(f"{index}{turn}"))
            heard.append(await Step(f"{index}{turn}"))
        heard.append(await Ask(f"{index}?", later=True))
        return heard

    played = dict(Scheduler(Batch(answer), steps, talk, 3).run())
    assert batches == [["00", "10", "20"], ["11", "21"], ["22"], ["0?", "1?", "2?"]]
    assert played[1] == ["10", "10!", "11", "11!", "1?"]


def test_no_episode_waits_for_a_slow_answer():
    """The first answer comes only when all other episodes are over."""
    others_over = threading.Event()

    def build():
        def answer(content):
            if content == "slow":
                assert others_over.wait(60), "the other episodes waited for the slow one"
            return content

        return answer

    async def talk(index, slot):
        for turn in range(10):
            await Step(await Ask("slow" if (index, turn) == (0, 3) else "fast"))
        return index

    over = []
    for index, _ in Scheduler(Threads(build), steps, talk, 9, slots=4).run():
        over.append(index)
        if len(over) == 8:
            others_over.set()
    assert over[-1] == 0 and sorted(over) == list(range(9))


def test_what_a_backend_raises_ends_all_episodes_and_closes_them():
    closed = []

    async def talk(index, slot):
        try:
            await Ask(index)
        finally:
            closed.append(index)

    def answer(content):
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        list(Scheduler(Threads(lambda: answer), steps, talk, 3).run())
    assert sorted(closed) == [0, 1, 2]


class Slow(Script):
    """A policy whose own backend answers each request when it likes; the first slot last."""

    def backend(self, temperature):
        policy = self

        class OneByOne:
            def __init__(self):
                self.asked = {}

            def submit(self, slot, ask):
                self.asked[slot] = ask

            def wait(self):
                slot = max(self.asked)
                return [(slot, policy.generate(self.asked.pop(slot).content, temperature))]

            def close(self):
                pass

        return OneByOne()


@pytest.mark.parametrize("policy", [Script, Slow])
def test_the_order_in_which_answers_come_does_not_change_the_episodes(policy):
    def make():
        return Tags(gymnasium.make("RoleAgent/Toy-v0", max_steps=4))

    env_id, options = "RoleAgent/Toy-v0", (PromptConfig(), RolloutConfig(action_tokens=64), 0)
    rollout = Rollout(policy(lambda prompt, slot: "<action>look</action>"), EnvPool(make), env_id, *options)
    tasks = make().unwrapped.task_split.task_ids[:3]
    groups = rollout.play(tasks, 2, 1.0)
    assert [group.task.task_id for group in groups] == list(tasks)
    assert [[len(one.turns) for one in group.trajectories] for group in groups] == [[4, 4]] * 3
    assert rollout.stats.episodes == 6 and rollout.stats.turns == 24 and not rollout.stats.errors


def test_one_loop_plays_whatever_decides():
    pool = EnvPool(lambda: gymnasium.make("RoleAgent/Toy-v0", max_steps=3))
    episode = Episode(pool, 0, gymnasium.make("RoleAgent/Toy-v0").unwrapped.task_split.task_ids[0])
    seen = []

    async def decide(episode):
        seen.append(SimpleNamespace(observation=episode.observation, turns=len(episode.turns)))
        return Action("look", "look") if len(seen) % 2 else "go to table"

    async def play(index, slot):
        await play_episode(episode, decide)
        return episode.record.trajectory()

    [(_, trajectory)] = Scheduler(Batch(list), pool.step_many, play, 1).run()
    assert [turn.action for turn in trajectory.turns] == ["look", "go to table", "look"]
    assert [one.turns for one in seen] == [0, 1, 2]
    assert (trajectory.stop_reason, trajectory.truncated, episode.over) == ("max_steps", True, True)


def test_what_no_scheduler_answers_is_refused():
    async def talk(index, slot):
        await asyncio.sleep(0)

    with pytest.raises(TypeError, match=r"only episode\.ask and episode\.step"):
        list(Scheduler(Batch(list), steps, talk, 1).run())


def test_an_agent_that_goes_on_at_its_end_does_not_hide_the_error_of_another():
    closed = []

    class Closing(Batch):
        def close(self):
            closed.append(True)

    async def talk(index, slot):
        try:
            await Ask(index)
            if index:
                raise KeyError("mine")
            await Ask(index)
        except GeneratorExit:
            await Ask("more")

    with pytest.raises(KeyError, match="mine"):
        list(Scheduler(Closing(lambda asked: [None] * len(asked)), steps, talk, 2).run())
    assert closed


def test_progress_does_not_go_back_with_a_further_trial():
    pool, shown = EnvPool(lambda: gymnasium.make("RoleAgent/Toy-v0", max_steps=4)), []
    task = gymnasium.make("RoleAgent/Toy-v0").unwrapped.task_split.task_ids[0]
    episode = Episode(pool, 0, task)

    async def play(index, slot):
        for _ in range(2):
            await play_episode(episode, decide)

    async def decide(episode):
        return "look"

    scheduler = Scheduler(
        *(Batch(list), pool.step_many, play, 1),
        progress=lambda played, every: shown.append(played),
        share=lambda index: episode.share,
    )
    list(scheduler.run())
    assert shown == sorted(shown) and len(shown) == 8


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ("early", ValueError, r"before episode\.begin"),
        ("late", ValueError, "after its end"),
        ("nothing", TypeError, "takes a command.*NoneType"),
    ],
)
def test_a_mistake_of_an_agent_is_named(wrong, error, words):
    pool = EnvPool(lambda: gymnasium.make("RoleAgent/Toy-v0", max_steps=1))
    episode = Episode(pool, 0, gymnasium.make("RoleAgent/Toy-v0").unwrapped.task_split.task_ids[0])

    async def play(index, slot):
        if wrong != "early":
            episode.begin()
        await episode.step(None if wrong == "nothing" else "look")
        await episode.step("look")

    with pytest.raises(error, match=words):
        list(Scheduler(Batch(list), pool.step_many, play, 1).run())
