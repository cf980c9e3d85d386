"""A person plays: `roleagent play`."""

import builtins
import re

import pytest
from programs import at_terminal

from roleagent.cli import main

TASK = "bring-egg-table-1"
PLAY = ("play", "RoleAgent/Toy-v0", "--task-id", TASK)


@pytest.fixture
def typed(monkeypatch):
    """What a person types, then the end of input."""

    def type_in(*lines):
        waiting = iter(lines)

        def read(prompt):
            print(prompt, end="")
            try:
                return next(waiting)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr(builtins, "input", read)

    return type_in


@pytest.fixture
def play(capsys, typed):
    """Plays an environment with these lines; what was shown."""

    def start(name, *lines, options=()):
        typed(*lines)
        assert main(["play", name, *options]) == 0
        return capsys.readouterr().out

    return start


def kitchen(*lines, play):
    return play("toy", *lines, options=("--task-id", TASK))


def test_a_person_plays_until_the_input_ends(play):
    shown = kitchen("go to table", "  ?  ", "nonsense", play=play)
    assert shown.startswith(f"{TASK} (bring, train)\nYour task: put the egg on the table\nYou have 15 steps.")
    assert "You arrive at table." in shown and "Nothing happens.\n(that did nothing, and cost a step" in shown
    assert "\ngo to fridge\n" in shown  # asked for with ?
    assert "[reward 0, 13 steps left] > " in shown and "left after 2 steps, reward 0" in shown


def test_hints_win_wherever_the_player_went(capsys, typed, monkeypatch):
    """Every second command is the player's own; the others are what ``hint`` says, and it says the same twice."""
    advice, lines = [], iter(["go to sink", "hint", "hint", None, "look", *["hint", None] * 15])

    def read(prompt):
        line = next(lines)
        if line is None:
            line = re.findall(r"^(.+?)  \(the expert", capsys.readouterr().out, re.MULTILINE)[-1]
            advice.append(line)
        return line

    monkeypatch.setattr(builtins, "input", read)
    assert main(PLAY) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"won after {len(advice) + 2} steps, reward 1, {len(advice) + 1} hints", shown)


def test_a_slip_is_not_played_but_offered(play):
    slip, offer = "go to frige", "did you mean 'go to fridge'?"
    taken = kitchen(slip, "y", play=play)
    assert offer in taken and "You arrive at fridge." in taken and "left after 1 step" in taken
    insisted = kitchen(slip, slip, play=play)
    assert insisted.count(offer) == 1 and "Nothing happens." in insisted and "left after 1 step" in insisted
    forgotten = kitchen(slip, "look", "y", play=play)
    assert "(nothing was asked)" in forgotten and "left after 1 step" in forgotten


@pytest.mark.parametrize(
    "name, lines, words",
    [
        ("webshop", ["?"], ["search[…]", "search[red cotton shirt]"]),
        ("webshop", ["search shirt", "y", "?"], ["'search[shirt]'", "14 steps left", "click[back to search]"]),
        ("webshop", ["search[shirt]", "back to serch", "y"], ["'click[back to search]'", "left after 2 steps"]),
        ("searchqa", ["?"], ["answer[…]  gives the answer"]),
        ("searchqa", ["search", "Answer[]", "help"], ["not played: it looks for passages", "left after 0 steps"]),
        ("searchqa", ["Search Silver Harbor", "q"], ["'search[Silver Harbor]'", "left after 0 steps"]),
        ("textcraft", ["?"], ["get …  fetches any number of a material, e.g. get 2 flint", "\ninventory\n"]),
        (
            "textcraft",
            ["get 7 sand", "inventori", "y"],
            ["Got 7 sand", "'inventory'", "[sand] (7)", "left after 2 steps"],
        ),
        ("toy", ["help"], ["go to fridge\n", "left after 0 steps"]),
        ("searchqa", ["answer nobody", "y"], ["not solved after 1 step, reward 0, f1 0.00", "needs 2: search["]),
        ("toolenv", ["?", "convert(amount=2"], ["convert(amount, unit)  Converts", "malformed", "4 steps left"]),
        (
            "toolenv",
            ["hint", 'convert(amount=3, unit="km")', "3000"],
            ["(amount=", "\n3000.0\n"],
        ),
        ("alfworld", ["?", "hint"], ["\ninventory\n", "(the expert, who sees only what you see)"]),
    ],
)
def test_every_environment_can_be_found_out(play, name, lines, words):
    shown = play(name, *lines, options=("--seed", "1"))
    assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["RoleAgent/Nothing-v0"], "Nothing"),
        (["alfwrld"], "did you mean RoleAgent/ALFWorld-v0?"),
        (["RoleAgent/Toy-v0", "--task-id", "bring-egg-tabel-1"], "did you mean 'bring-egg-table-1'"),
        (["RoleAgent/Toy-v0", "--env-arg", "split=exam"], "unknown split 'exam'"),
        (["RoleAgent/Toy-v0", "--env-arg", "colour=red"], "colour"),
    ],
)
def test_a_world_that_cannot_be_played_is_one_line(capsys, arguments, words):
    assert main(["play", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("roleagent play: ") and words in line


# --- a terminal -------------------------------------------------------------------------------------------------------


def test_at_a_terminal_there_are_columns_and_completion():
    with at_terminal(*PLAY) as (process, type_in, read_until):
        first = read_until("15 steps left] > ")
        assert "Tab completes a command" in first and "hint  ask an expert     goal" in first
        assert max(map(len, first.split("\r\n"))) <= 80
        type_in(b"?\n")
        assert re.search(r"go to basket +go to \w+", read_until("15 steps left] > "))
        type_in(b"go to fr\t\n")
        assert "You arrive at fridge." in read_until("14 steps left] > ")
        type_in(b"quit\n")
        read_until("left after 1 step")
        assert process.wait(30) == 0
