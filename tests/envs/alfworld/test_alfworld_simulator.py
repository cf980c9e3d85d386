"""The simulator's rules on a small room. TextWorld agrees with each: tests/envs/alfworld/test_alfworld_parity.py."""

import re

import gymnasium
import pytest

from roleagent.envs.alfworld.engine.game import Game, GameSource
from roleagent.envs.alfworld.engine.game_version import UnknownGameVersion
from roleagent.envs.alfworld.engine.simulator import NOTHING, Simulator

KITCHEN = """
(define (problem kitchen) (:domain alfred)
(:objects
  agent1 - agent
  AppleType MugType KnifeType DeskLampType - otype
  FridgeType SinkBasinType MicrowaveType CounterTopType DrawerType - rtype
  Apple_bar_1 Apple_bar_2 Mug_bar_1 Knife_bar_1 DeskLamp_bar_1 - object
  Fridge_bar_1 Sink_bar_1_bar_SinkBasin Microwave_bar_1 CounterTop_bar_1 Drawer_bar_1 Drawer_bar_2 - receptacle
  loc_bar_0 loc_bar_1 loc_bar_2 loc_bar_3 - location)
(:init
  (atLocation agent1 loc_bar_0)
  (receptacleType Fridge_bar_1 FridgeType) (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType)
  (receptacleType Microwave_bar_1 MicrowaveType) (receptacleType CounterTop_bar_1 CounterTopType)
  (receptacleType Drawer_bar_1 DrawerType) (receptacleType Drawer_bar_2 DrawerType)
  (objectType Apple_bar_1 AppleType) (objectType Apple_bar_2 AppleType) (objectType Mug_bar_1 MugType)
  (objectType Knife_bar_1 KnifeType) (objectType DeskLamp_bar_1 DeskLampType)
  (receptacleAtLocation Fridge_bar_1 loc_bar_1) (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_2)
  (receptacleAtLocation Microwave_bar_1 loc_bar_2) (receptacleAtLocation CounterTop_bar_1 loc_bar_2)
  (receptacleAtLocation Drawer_bar_1 loc_bar_3) (receptacleAtLocation Drawer_bar_2 loc_bar_3)
  (openable Fridge_bar_1) (openable Microwave_bar_1) (openable Drawer_bar_1)
  (canContain FridgeType AppleType) (canContain CounterTopType AppleType) (canContain CounterTopType KnifeType)
  (canContain MicrowaveType AppleType) (canContain DrawerType KnifeType) (canContain CounterTopType AppleType)
  (pickupable Apple_bar_1) (pickupable Apple_bar_2) (pickupable Mug_bar_1) (pickupable Knife_bar_1)
  (cleanable Apple_bar_1) (heatable Apple_bar_1) (coolable Apple_bar_1) (sliceable Apple_bar_1)
  (sliceable Apple_bar_2) (toggleable DeskLamp_bar_1) (isReceptacleObject Mug_bar_1)
  (inReceptacle Apple_bar_1 CounterTop_bar_1) (inReceptacle Apple_bar_2 Fridge_bar_1)
  (inReceptacle Mug_bar_1 CounterTop_bar_1) (inReceptacle Knife_bar_1 CounterTop_bar_1)
  (inReceptacle DeskLamp_bar_1 Drawer_bar_1)
  (objectAtLocation Apple_bar_1 loc_bar_2) (objectAtLocation Apple_bar_2 loc_bar_1)
  (objectAtLocation Mug_bar_1 loc_bar_2) (objectAtLocation Knife_bar_1 loc_bar_2))
(:goal (and (exists (?r - receptacle) (exists (?o - object)
  (and (inReceptacle ?o ?r) (objectType ?o AppleType) (receptacleType ?r MicrowaveType)))))))
"""


def game(problem=KITCHEN, *facts):
    problem = problem.replace("(:init", "(:init\n" + "\n".join(f"({fact})" for fact in facts))
    return Game.from_source(GameSource("kitchen", "pick_and_place_simple", problem, "put a apple in microwave"))


def play(*commands, facts=()):
    simulator = Simulator(game(KITCHEN, *facts))
    return [simulator.step(command) for command in commands][-1]


def test_the_first_observation_lists_by_id_and_look_does_not():
    first = Simulator(game()).reset()
    assert first == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a countertop 1, a drawer 2, a drawer 1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\n"
        "Your task is to: put a apple in microwave."
    )
    assert play("look").endswith("Looking quickly around you, you see nothing.")


COUNTER = ("go to countertop 1",)
HELD = (*COUNTER, "take apple 2 from countertop 1")
SEEN = (*HELD, "examine apple 2")
HOT = (*HELD, "heat apple 2 with microwave 1")
COLD = (*HOT, "go to fridge 1", "cool apple 2 with fridge 1")
CLEAN = (*COLD, "go to sinkbasin 1", "clean apple 2 with sinkbasin 1")
ARMED = (*COUNTER, "take knife 1 from countertop 1")
OPENED = ("go to fridge 1", "open fridge 1")
MOVED = ("go to microwave 1", "open microwave 1", HELD[1], "move apple 2 to microwave 1")
BACK = (*MOVED, "take apple 2 from microwave 1", "move apple 2 to countertop 1")
MUG = (*COUNTER, "take mug 1 from countertop 1", "examine mug 1")
FACING = "You are facing the countertop 1, microwave 1, and sinkbasin 1. Next to it, you see {}."


@pytest.mark.parametrize(
    ("commands", "observation"),
    [
        (COUNTER, "You arrive at countertop 1. On the countertop 1, you see a apple 2, a knife 1, and a mug 1."),
        ((*COUNTER, "go to microwave 1"), NOTHING),  # the same location
        ((*COUNTER, "look"), FACING.format("nothing")),
        (("go to drawer 1",), "You arrive at drawer 1. On the drawer 1, you see nothing."),  # cannot be opened
        (("go to fridge 1", "take apple 1 from fridge 1"), NOTHING),
        (OPENED, "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1."),
        ((*OPENED, "open fridge 1"), NOTHING),
        ((*OPENED, "close fridge 1"), "You close the fridge 1."),
        (("go to fridge 1", "close fridge 1"), NOTHING),
        (("go to drawer 2", "use desklamp 1"), "You turn on the desklamp 1."),  # through the closed drawer
        (HOT, "You heat the apple 2 using the microwave 1."),  # with its door closed
        ((*HELD, "move apple 2 to microwave 1"), NOTHING),
        ((*HOT, "examine apple 2"), "This is a hot apple 2."),
        ((*COLD, "examine apple 2"), "This is a cold apple 2."),
        ((*CLEAN, "examine apple 2"), "This is a cool and clean apple 2."),
        ((*ARMED, "slice apple 2 with knife 1"), "You sliced the apple 2 with the knife 1."),
        ((*ARMED, "go to fridge 1", "slice apple 1 with knife 1"), "You sliced the apple 1 with the knife 1."),
        ((*MOVED, "look"), FACING.format("a apple 2")),
        ((*BACK, "look"), FACING.format("a apple 2")),  # it was taken from the microwave
        ((*COUNTER, "examine apple 2"), NOTHING),  # only what is held
        (MUG, "This is a normal mug 1. In it, you see nothing."),
    ],
)
def test_commands(commands, observation):
    assert play(*commands) == observation


@pytest.mark.parametrize(
    ("facts", "commands", "observation"),
    [
        ("", SEEN, "There's nothing special about apple 2."),
        ("isSliced Apple", SEEN, "This is a sliced apple 2."),
        ("isHot Apple, isSliced Apple", SEEN, "This is a hot sliced apple 2."),
        ("isHot Apple, isClean Apple, isSliced Apple", SEEN, "This is a hot and clean sliced apple 2."),
        ("isClean Apple", SEEN, "This is a clean apple 2."),
        ("isHot Apple, isCool Apple", SEEN, "This is a hot apple 2."),
        ("isToggled Apple, toggleable Apple", SEEN, "This apple 2 is on."),
        ("isToggled Apple", SEEN, "There's nothing special about apple 2."),
        (
            "inReceptacleObject Knife Mug, inReceptacleObject Apple Mug, inReceptacleObject Mug Mug",
            *(MUG, "This is a normal mug 1. In it, you see a apple 2, and a knife 1."),
        ),
    ],
)
def test_descriptions(facts, commands, observation):
    written = [re.sub(r" (\w+)", r" \1_bar_1", fact) for fact in facts.split(", ") if fact]
    assert play(*commands, facts=written) == observation


def test_winning_and_losing_it_again():
    simulator, won = Simulator(game()), []
    for command in (*MOVED, "take apple 2 from microwave 1"):
        simulator.step(command)
        won.append(simulator.won)
    assert won == [False] * 3 + [True, False]
    simulator.reset()
    assert not simulator.won and simulator.step("inventory") == "You are not carrying anything."


def test_admissible_commands_are_sorted_as_text_and_all_do_something():
    simulator, played = Simulator(game()), []
    for command in ("go to countertop 1", "take knife 1 from countertop 1", "go to drawer 1"):
        commands = simulator.admissible_commands
        assert commands == sorted(set(commands))
        for candidate in commands:
            assert play(*played, candidate) != NOTHING, candidate
        commands.clear()
        assert simulator.admissible_commands  # a caller's list is its own
        simulator.step(command)
        played.append(command)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("(atLocation agent1 loc_bar_0)", ""), "does not start at exactly one location"),
        (("(:init", "(:init (holds agent1 Mug_bar_1)"), "empty hands"),
        (("(:init", "(:init (not (opened Fridge_bar_1))"), "other than plain facts"),
        (("(:init", "(:init (levitates Mug_bar_1)"), r"unknown fact: \(levitates mug_bar_1\)"),
        (("(:init", "(:init (openable Mug_bar_1)"), "unknown fact"),
        (("(:init", "(:init (receptacleAtLocation Fridge_bar_1 loc_bar_3)"), "at two locations"),
        (("AppleType) (receptacleType ?r Mic", "PearType) (receptacleType ?r Mic"), "can never be reached"),
        (("(exists (?o - object)", "(forall (?o - object)"), "unknown form"),
        ((":goal", ":aim"), "lacks :objects, :init or :goal"),
    ],
)
def test_games_that_it_cannot_play(change, message):
    with pytest.raises(UnknownGameVersion, match=message):
        game(KITCHEN.replace(*change, 1) if change[0] != "(exists (?o - object)" else KITCHEN.replace(*change))


def test_turns_are_grouped_by_the_world_where_its_text_does_not_show_it():
    """With and without the plate in hand the text at the fridge is the same, and what to do there is not."""
    task = "pick_cool_then_place_in_recep-Plate-None-CounterTop-34/gen_tiny_003022"
    take = ["go to countertop 1", "take plate 1 from countertop 1"]

    def states(grouping, *commands):
        env = gymnasium.make("RoleAgent/ALFWorld-v0", data_dir="generated", size="tiny", grouping=grouping)
        infos = [env.reset(options={"task_id": task})[1], *(env.step(command)[-1] for command in commands)]
        return [info["grouping_state"] for info in infos]

    assert states("text", "go to fridge 1")[-1] == states("text", *take, "go to fridge 1")[-1]
    assert states("world", "go to fridge 1")[-1] != states("world", *take, "go to fridge 1")[-1]
    there_and_back = states("world", "look", "go to fridge 1", "go to microwave 1", "go to fridge 1", "no such command")
    assert there_and_back[0] == there_and_back[1]
    assert there_and_back[2] == there_and_back[4] == there_and_back[5] != there_and_back[3]
    with pytest.raises(ValueError, match="needs engine='native'"):
        gymnasium.make("RoleAgent/ALFWorld-v0", data_dir="generated", grouping="world", engine="textworld")
