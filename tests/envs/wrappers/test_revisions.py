"""`<revise>` notes: the world never sees them, and without them nothing is different."""

import gymnasium
import pytest
from tiny import Script, play, world_of

from roleagent.envs.wrappers import Tags
from roleagent.failures.modes import diagnose

NOTE, LOOK = "<revise>That was a mistake. I go another way.</revise>", "<action>look</action>"


def kitchen(**options):
    env = Tags(gymnasium.make("RoleAgent/Toy-v0", max_steps=4), "none", horizon=0, **options)
    return env, *env.reset(options={"task_id": "bring-egg-table-1"})


def test_a_note_never_reaches_the_world():
    env, _, first = kitchen(revisions=5)
    before = env.unwrapped.snapshot()
    text, reward, terminated, truncated, info = env.step(NOTE)
    assert (text, reward, terminated, truncated) == ("OK.", 0.0, False, False)
    assert env.unwrapped.snapshot() == before
    assert info["revision"] and info["valid_action"]
    assert (info["state"], info["rewards"], info["format_error"]) == (None, {}, None)
    assert all(info[key] == first[key] for key in ("admissible_actions", "grouping_state"))


@pytest.mark.parametrize(
    ("replies", "errors"),
    [
        ([NOTE, NOTE, NOTE], [None, "a note after a note", None]),
        ([NOTE, LOOK, NOTE, LOOK, NOTE], [None, None, None, None, "more than 2 notes"]),
        (["<revise> </revise>", NOTE + LOOK], ["the command is empty", "2 action blocks"]),
    ],
)
def test_too_many_notes_are_malformed_and_cost_a_step(replies, errors):
    env, *_ = kitchen(revisions=2)
    infos = [env.step(reply)[-1] for reply in replies]
    assert [info["format_error"] for info in infos] == errors
    noted = [error is None and "revise" in reply for reply, error in zip(replies, errors, strict=True)]
    assert [bool(info.get("revision")) for info in infos] == noted
    _, info = env.reset(options={"task_id": "bring-egg-table-1"})
    assert not info.get("revision")
    assert env.step(NOTE)[-1]["revision"], "an episode begins without notes"


@pytest.mark.parametrize("style", ["transcript", "window"])
def test_an_episode_with_notes_is_played_and_diagnosed(style):
    replies = iter([LOOK, NOTE, LOOK, "<action>go to table</action>", *[LOOK] * 20])
    policy = Script(lambda prompt, slot: next(replies))
    split = world_of("method=agent_r", f"prompt.style={style}", "rollout.action_tokens=80")
    rollout, [group] = play(policy, split, copies=1)
    [trajectory] = group.trajectories
    note = trajectory.turns[1]
    assert (note.action, note.observation) == ("revise[That was a mistake. I go another way.]", "OK.")
    assert len(trajectory.turns) == 16, "fifteen steps of the world, and the note"
    assert trajectory.turns[2].state == trajectory.turns[1].state, "the world is where it was"
    shown = policy.prompts[2]
    assert "That was a mistake" in shown and "OK." in shown
    assert rollout.stats.turns == 16
    _, finding = diagnose(trajectory)
    assert finding.step is None or not trajectory.turns[finding.step].info.get("revision")
