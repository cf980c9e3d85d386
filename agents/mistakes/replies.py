"""A mistake that can be made everywhere: replies that hold no command."""

from __future__ import annotations

from collections.abc import Callable

from roleagent.agents.mistakes.episode import Episode


def mumbling(decisive: Callable[[str], bool], spare: int = 4) -> Callable[[Episode], None]:
    """The mistake ``action_format_error`` of an environment.

    Args:
        decisive: whether a command may be the one that wins: such a one is never said readably.
        spare: steps that are left when it begins, at least.
    """

    def action_format_error(episode: Episode) -> None:
        """From some step on half of the replies or more, and all that could have won, hold no readable action."""
        haste, share = episode.rng.uniform(0.2, 0.8), episode.rng.uniform(0.5, 1.0)
        episode.follow(lambda command: decisive(command) or episode.left <= spare or episode.chance(haste))
        episode.err()
        episode.mumble()
        while True:
            command = episode.expert.act()
            if decisive(command) or episode.chance(share):
                episode.mumble()
            else:
                episode.do(command)

    return action_format_error


__all__ = ["mumbling"]
