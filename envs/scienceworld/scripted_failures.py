"""Scripted failures in ScienceWorld, one per failure mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roleagent.envs.failures.scripted_episode import Impossible, ScriptedEpisode, unreadable_reply
from roleagent.envs.scienceworld.text import DOORS, UNKNOWN, read_choices, read_room

_SPARE = 3  # commands of the gold path that are never played: the last ones may win
_MISWORDED = (
    *("take {}", "grab the {}", "examine carefully {}", "heat {} with fire", "put {} away", "turn on the {}"),
    *("measure {}", "carry {} to me", "search {}", "use the {}"),
)
_ABSENT = ("unicorn", "microscope", "laptop", "telescope", "beaker", "scale", "syringe", "magnet")


class Scientist:
    """An agent that follows the gold path for a while.

    Args:
        episode: just begun.
    """

    def __init__(self, episode: ScriptedEpisode):
        self.episode = episode
        self.expert: Any = episode.expert

    def begin(self) -> None:
        """Plays as the expert does for a while: never to the end, nor beyond a third of the steps."""
        haste, spare = self.episode.rng.uniform(0.05, 0.5), 2 * self.episode.left // 3
        self.episode.follow(
            lambda command: (
                len(self.expert.plan()) <= _SPARE or self.episode.left <= spare or self.episode.chance(haste)
            )
        )

    def things(self) -> tuple[str, ...]:
        """What the room holds, by a look around."""
        room = read_room(self.episode.observation)
        if room is None:
            self.episode.do("look around")
            room = read_room(self.episode.observation)
        return room.things if room else ()

    def loop(self, draw: Callable[[], str]) -> None:
        """Plays drawn commands to the end."""
        self.episode.mark_failure()
        while True:
            self.episode.do(draw())

    def walk(self) -> None:
        """Goes to a room behind one of the doors."""
        room = self.episode.pick(DOORS[self.expert.room])
        self.episode.do(f"open door to {room}")
        self.episode.do(f"go to {room}")


def wrong_focus(episode: ScriptedEpisode) -> None:
    """Focuses on something in the room that the task is not about."""
    agent = Scientist(episode)
    agent.begin()
    named = episode.info["goal"].lower()
    thing = episode.pick([thing for thing in agent.things() if thing.lower() not in named])
    episode.mark_failure()
    episode.do(f"focus on {thing}")
    if read_choices(episode.observation):
        episode.do("0")
    raise Impossible  # the task was about this thing


def unanswered_choice(episode: ScriptedEpisode) -> None:
    """Gives ambiguous commands, and other commands where the world wants a number."""
    agent = Scientist(episode)
    agent.begin()
    while len(DOORS[agent.expert.room]) < 2:
        agent.walk()
    question, *others = episode.shuffled(("open door", "look at door"))
    others += ["look around", "inventory", "task"]
    agent.loop(lambda: episode.pick(others) if read_choices(episode.observation) else question)


def unknown_command(episode: ScriptedEpisode) -> None:
    """Words commands in a way that the world does not know, or names things that are not there."""
    agent = Scientist(episode)
    agent.begin()
    things = [*agent.things(), *_ABSENT]

    def draw() -> str:
        if episode.chance(0.4):
            return f"{episode.pick(('pick up', 'use', 'look at', 'activate'))} {episode.pick(_ABSENT)}"
        return episode.pick(_MISWORDED).format(episode.pick(things))

    agent.loop(draw)


def aimless_looking(episode: ScriptedEpisode) -> None:
    """Looks at things, carries out nothing, and lets time pass."""
    agent = Scientist(episode)
    agent.begin()
    looks = ["look around", "inventory", "task", "wait1", *(f"look at {thing}" for thing in agent.things())]
    agent.loop(lambda: episode.pick(looks))


def wrong_place(episode: ScriptedEpisode) -> None:
    """Goes from room to room, and does nothing there."""
    agent = Scientist(episode)
    agent.begin()
    episode.mark_failure(single=False)
    while True:
        agent.walk()
        if episode.chance(0.3):
            episode.do("look around")


def wrong_tool(episode: ScriptedEpisode) -> None:
    """Does things with whatever is in the room and not named in the task."""
    agent = Scientist(episode)
    agent.begin()
    forms = ("pick up {0}", "move {0} to {1}", "activate {0}", "pour {0} into {1}", "use {0} on {1}", "mix {0}")
    named, things = episode.info["goal"].lower(), list(agent.things())

    def draw() -> str:
        if read_choices(episode.observation):
            return "0"
        if episode.observation.startswith(UNKNOWN):  # something is not there any more
            things[:] = agent.things()
        others = [thing for thing in things if thing.lower() not in named and thing != "air"]
        return episode.pick(forms).format(episode.pick(others), episode.pick(others))

    agent.loop(draw)


def _may_win(command: str) -> bool:
    """Whether a command may be the one that wins: any that acts."""
    return not command.startswith(("look", "open door", "go to"))


SCRIPTED_FAILURES: dict[str, Callable[[ScriptedEpisode], None]] = {
    script.__name__: script
    for script in (wrong_focus, unanswered_choice, unknown_command, aimless_looking, wrong_place, wrong_tool)
} | {"action_format_error": unreadable_reply(_may_win)}

__all__ = ["SCRIPTED_FAILURES", "Scientist"]
