"""The eleven mistakes in household tasks: ALFWorld and the toy kitchen."""

from __future__ import annotations

from collections.abc import Callable

from roleagent.agents.mistakes.episode import Episode
from roleagent.agents.mistakes.handling import (
    entity_confusion,
    missing_precondition,
    repeated_failed_action,
    wrong_object_interaction,
    wrong_receptacle,
)
from roleagent.agents.mistakes.replies import mumbling
from roleagent.agents.mistakes.wandering import (
    exhaustive_exploration_failure,
    navigation_loop,
    premature_give_up,
    repetitive_exploration,
    wrong_target_location,
)

MISTAKES: dict[str, Callable[[Episode], None]] = {
    mistake.__name__: mistake
    for mistake in (
        repetitive_exploration,
        wrong_target_location,
        wrong_receptacle,
        premature_give_up,
        missing_precondition,
        repeated_failed_action,
        navigation_loop,
        entity_confusion,
        wrong_object_interaction,
        exhaustive_exploration_failure,
        mumbling(lambda command: command.partition(" ")[0] in ("move", "put", "use")),
    )
}

__all__ = ["MISTAKES"]
