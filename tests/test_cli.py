"""The command ``roleagent``."""

import builtins
import json

import pytest

from roleagent.cli import VERBS, main


@pytest.fixture
def typed(monkeypatch):
    """What a person types, then the end of input."""

    def type_in(*lines):
        waiting = iter(lines)

        def read(prompt):
            try:
                return next(waiting)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr(builtins, "input", read)

    return type_in


PLAY = ("play", "RoleAgent/Toy-v0", "--task-id", "bring-egg-table-1")


def test_the_help_names_every_verb(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown for verb in VERBS)


@pytest.mark.parametrize("arguments", [[], ["dance"]])
def test_no_such_verb(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "verb" in capsys.readouterr().err


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help_of_its_own(capsys, verb):
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0
    assert "usage:" in capsys.readouterr().out


# --- play -------------------------------------------------------------------------------------------------------------


def test_a_person_plays_until_the_input_ends(capsys, typed):
    typed("go to table", "  ?  ", "nonsense")
    assert main(PLAY) == 0
    shown = capsys.readouterr().out
    assert "put the egg on the table" in shown
    assert "You arrive at table." in shown and "Nothing happens." in shown
    assert "\ngo to fridge\n" in shown  # asked for with ?
    assert "left after 2 steps" in shown


def test_commands_are_listed_only_on_request(capsys, typed):
    typed("look")
    assert main(PLAY) == 0
    assert "go to fridge" not in capsys.readouterr().out


def test_a_person_wins(capsys, typed, monkeypatch):
    import gymnasium

    env = gymnasium.make("RoleAgent/Toy-v0").unwrapped
    observation, info = env.reset(options={"task_id": PLAY[-1]})
    expert = env.expert(None)
    expert.reset(info["goal"], observation)
    commands = []
    while not info["won"]:
        commands.append(expert.act())
        observation, *_, info = env.step(commands[-1])
        expert.observe(commands[-1], observation)
    typed(*commands, "look")
    assert main(PLAY) == 0
    assert f"won after {len(commands)} steps, reward 1" in capsys.readouterr().out


def test_the_steps_run_out(capsys, typed):
    typed(*["look"] * 5)
    assert main([*PLAY, "--env-arg", "max_steps=2"]) == 0
    assert "not solved after 2 steps, reward 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["RoleAgent/Nothing-v0"], "Nothing"),
        (["RoleAgent/Toy-v0", "--task-id", "bring-egg-tabel-1"], "did you mean 'bring-egg-table-1'"),
        (["RoleAgent/Toy-v0", "--env-arg", "split=test"], "unknown split 'test'"),
        (["RoleAgent/Toy-v0", "--env-arg", "colour=red"], "colour"),
    ],
)
def test_a_world_that_cannot_be_played_is_one_line(capsys, arguments, words):
    assert main(["play", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("roleagent play: ") and words in line


# --- games ------------------------------------------------------------------------------------------------------------


def test_games_are_written(tmp_path, capsys):
    pytest.importorskip("alfworld")
    assert main(["games", "--out", str(tmp_path), "--games", "2", "--size", "small"]) == 0
    files = sorted(tmp_path.rglob("game.tw-pddl"))
    assert len(files) == 2
    assert json.loads(files[0].read_text())["solvable"] is True
