"""Failure modes of household tasks (ALFWorld, the toy kitchen), with one detector each."""

from __future__ import annotations

from collections import Counter
from itertools import product

from roleagent.envs.alfworld.text import TREATMENTS, kind_of
from roleagent.envs.alfworld.trace import Step, Trace, read_trace
from roleagent.envs.failures.detectors import unreadable_replies
from roleagent.failures.modes import FailureModes, Finding

MEANINGS = {
    "repetitive_exploration": "it kept going back to places that it had already searched",
    "wrong_target_location": "it had the right thing, ready, and carried it to places that were not its destination",
    "wrong_receptacle": "it put the right thing down for good in a place that was not asked for",
    "premature_give_up": "it stopped trying, or did nothing that could help, while there were steps left",
    "missing_precondition": "it left out a step that had to come first, such as opening, taking, heating or cleaning",
    "repeated_failed_action": "it gave a command that had no effect, again and again",
    "navigation_loop": "it walked to and fro between the same places without doing anything there",
    "entity_confusion": "it named things that are not there, or mistook one numbered thing for another",
    "wrong_object_interaction": "it handled a thing that the task is not about",
    "exhaustive_exploration_failure": "it searched on and on and never got hold of the thing it needed",
    "action_format_error": "its replies could not be read as commands",
}
"""By mode, what it means, as a sentence about the agent."""

_IDLE = ("look", "inventory", "help", "examine")


def action_format_error(trace: Trace) -> Finding | None:
    """At least a quarter of the replies could not be read as an action."""
    return unreadable_replies([step.malformed for step in trace.steps])


def missing_precondition(trace: Trace) -> Finding | None:
    """The item was put down at the target untreated, or two commands failed for want of a step before them."""
    stopped = [(step, want) for step in trace.steps if (want := _wanting(step))]
    for step in trace.steps:
        delivered = step.worked and step.verb == "move" and trace.at_target(step) and trace.wanted(step.thing)
        if delivered and not trace.is_ready(step):
            item, target, treatment, _ = trace.goal
            tried = next((s for s, _ in stopped if s.verb == treatment and s.thing == step.thing), step)
            first = min(step, tried, key=lambda step: step.number)
            detail = f"the {step.thing} was put on the {step.place} before the agent had done this to it: {treatment}"
            return Finding(first.number, detail, f"First {treatment} the {item}, then bring it to the {target}.")
    if len(stopped) < 2:
        return None
    step, (reason, lesson) = stopped[0]
    return Finding(step.number, f"{step.command!r} failed because {reason}", lesson)


def _wanting(step: Step) -> tuple[str, str] | None:
    """What a failed command lacked: the reason and the lesson."""
    if step.worked or step.unseen:
        return None
    if step.verb in ("take", "move", "open", *TREATMENTS) and step.place not in (step.here, *step.near):
        return f"the agent was not at the {step.place}", f"Go to the {kind_of(step.place)} first."
    if step.verb in ("take", "move") and step.shut:
        return f"the {step.place} was closed", f"Open the {kind_of(step.place)} before reaching into it."
    if step.verb in ("move", *TREATMENTS) and step.thing != step.held:
        return f"the {step.thing} was not in hand", f"Take the {kind_of(step.thing)} before using it."
    return None


def wrong_object_interaction(trace: Trace) -> Finding | None:
    """Something else than the task's item was treated, brought to the target, or held under the lamp."""
    if not trace.goal.item:
        return None
    taken: dict[str, int] = {}
    for step in trace.steps:
        thing = step.held if step.verb == "use" and not trace.goal.target else step.thing
        handled = step.verb in ("use", *TREATMENTS) or (step.verb == "move" and trace.at_target(step))
        if step.worked and step.verb == "take":
            taken[step.thing] = step.number
        elif step.worked and handled and thing in taken and not trace.wanted(thing):
            detail = f"{step.command!r} handled the {thing}, but the task is about the {trace.goal.item}"
            return Finding(taken[thing], detail, f"Handle only the {trace.goal.item}.")
    return None


def wrong_receptacle(trace: Trace) -> Finding | None:
    """The item, made ready, was put down elsewhere than at the target, and not taken up again."""
    handled = [s for s in trace.steps if s.worked and s.verb in ("take", "move") and trace.wanted(s.thing)]
    if not handled or not trace.goal.target:
        return None
    last = handled[-1]
    if last.verb == "take" or trace.at_target(last) or not trace.is_ready(last):
        return None
    first = next(s for s in handled if s.verb == "move" and not trace.at_target(s) and trace.is_ready(s))
    detail = f"the {last.thing} was left at the {last.place} instead of the {trace.goal.target}"
    return Finding(first.number, detail, f"Bring the {trace.goal.item} to the {trace.goal.target}.")


def entity_confusion(trace: Trace) -> Finding | None:
    """At least two failed commands named things that no observation had shown."""
    confused = [step for step in trace.steps if step.unseen]
    if len(confused) < 2:
        return None
    detail = f"{confused[0].command!r} names something that was never seen"
    return Finding(confused[0].number, detail, "Name only what an observation has shown, with its number.")


def repeated_failed_action(trace: Trace) -> Finding | None:
    """The same command failed three times."""
    failed = [step for step in trace.steps if not step.worked and not step.malformed]
    for command, times in Counter(step.command for step in failed).most_common(1):
        if times >= 3:
            second = [step.number for step in failed if step.command == command][1]
            detail = f"{command!r} was tried {times} times without effect"
            return Finding(second, detail, "When an action has no effect, do something else.")
    return None


def navigation_loop(trace: Trace) -> Finding | None:
    """Two whole rounds of the same two or three places, and the beginning of a third, without handling anything."""
    walks = trace.walks
    for start, around in product(range(len(walks)), (2, 3)):
        window = walks[start : start + 2 * around + 2]
        places = [step.place for step in window]
        if len(window) < 2 * around + 2 or len(set(places[:around])) < around or places[:-around] != places[around:]:
            continue
        between = trace.steps[window[0].number : window[-1].number]
        if not any(step.worked and step.verb in ("take", "move", *TREATMENTS) for step in between):
            detail = f"the agent walked around and around between {', '.join(places[:around])}"
            return Finding(window[around].number, detail, "Do not go back to where you just were; look somewhere new.")
    return None


def premature_give_up(trace: Trace) -> Finding | None:
    """The agent ended the episode itself, or in its last four steps or more only looked around or moved a door."""
    lesson = "Go on searching and acting until the task is solved."
    if trace.ended_early and trace.steps:
        return Finding(len(trace.steps) - 1, "the episode was ended before the task was solved", lesson)
    idle = 0
    for step in reversed(trace.steps):
        again = step.verb in ("open", "close") and any(s.command == step.command for s in trace.steps[: step.number])
        if not (step.verb in _IDLE or again):
            break
        idle += 1
    if idle < 4:
        return None
    return Finding(len(trace.steps) - idle, f"the last {idle} steps were of no use", lesson)


def wrong_target_location(trace: Trace) -> Finding | None:
    """The item was in hand and ready, but was carried to at least two places that are not the target."""
    carrying = [step for step in trace.walks if trace.wanted(step.held) and trace.is_ready(step)]
    strayed = [step for step in carrying if trace.goal.target and not trace.at_target(step)]
    if len(strayed) < 2:
        return None
    detail = f"with the {strayed[0].held} ready in hand the agent went to the {strayed[0].place}"
    return Finding(strayed[0].number, detail, f"Carry the {trace.goal.item} straight to the {trace.goal.target}.")


def repetitive_exploration(trace: Trace) -> Finding | None:
    """At least three walks, and a third of all, led back to a place already visited, with nothing in hand."""
    first: dict[str, int] = {}
    again = [s for s in trace.walks if first.setdefault(s.place, s.number) != s.number and not s.held]
    if len(again) < 3 or 3 * len(again) < len(trace.walks):
        return None
    detail = f"{len(again)} of {len(trace.walks)} walks led to places that had been visited"
    return Finding(again[0].number, detail, "Remember which places you have searched, and search the others.")


def exhaustive_exploration_failure(trace: Trace) -> Finding | None:
    """The item was never in hand, however long the search."""
    item = trace.goal.item
    if any(trace.wanted(step.thing) for step in trace.steps if step.verb == "take" and step.worked):
        return None
    places = len({step.place for step in trace.walks})
    lesson = f"Search first where such a thing is usually kept, and open what is closed: {item}." if item else ""
    return Finding(None, f"the {item or 'item'} was not found in {places} places", lesson)


def in_time(trace: Trace) -> tuple[str, Finding]:
    """Nothing was done wrong, but the item in hand did not arrive before the steps ran out."""
    late = Finding(None, "the item was found but not brought to its place in time", "Take the shortest way.")
    return wrong_target_location.__name__, late


# The first that applies is the dominant one: what spoils an episode whatever else happens comes first, then what was
# done to the wrong thing or in the wrong order, then how the agent moved about, and a fruitless search last.
FAILURE_MODES = FailureModes(
    MEANINGS,
    detectors=(
        action_format_error,
        missing_precondition,
        wrong_object_interaction,
        wrong_receptacle,
        entity_confusion,
        repeated_failed_action,
        navigation_loop,
        premature_give_up,
        wrong_target_location,
        repetitive_exploration,
        exhaustive_exploration_failure,
    ),
    read=read_trace,
    otherwise=in_time,
)
