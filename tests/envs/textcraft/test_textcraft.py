"""``RoleAgent/TextCraft-v0``: the graph of recipes, the engine, the splits, generated recipes, the expert."""

import gzip
import json
import pickle
from collections import Counter

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import load
from small_envs import by_expert

from roleagent.envs.textcraft.data.dataset import open_book
from roleagent.envs.textcraft.data.generate import write_recipes
from roleagent.envs.textcraft.data.recipes import NAMESPACE, RecipeBook, RecipeError
from roleagent.envs.textcraft.engine.crafting import Crafting
from roleagent.envs.textcraft.engine.tasks import CraftingTask, task_splits
from roleagent.envs.textcraft.env import TextCraftEnv


def recipe(result, *ingredients, count=1, group=None, **content):
    """A file: ingredients are items; those that begin with # are tags."""
    named = [{"tag" if name[0] == "#" else "item": NAMESPACE + name.lstrip("#")} for name in ingredients]
    result = {"item": NAMESPACE + result, "count": count}
    made = {"type": "minecraft:crafting_shapeless", "ingredients": named, "result": result} | content
    return made | ({"group": group} if group else {})


def book_of(*contents):
    return RecipeBook.from_files((f"{number:03}.json", content) for number, content in enumerate(contents))


WOOD = book_of(
    recipe("ash_board", "ash_log", count=4, group="board"),
    recipe("elm_board", "elm_log", count=2, group="board"),
    recipe("peg", "#board", "#board"),
    recipe("axe", "bar", "bar", "peg"),
    recipe("bar", "peg", "ore"),
    recipe("mixed", "ash_board", "#board"),
)


def play(book, goal, *commands):
    game = Crafting(book, NAMESPACE + goal)
    return [game.act(command).text for command in commands], game


# --- the graph --------------------------------------------------------------------------------------------------------


def test_the_graph_of_minecraft_is_the_originals(textcraft_data):
    folder, reference = textcraft_data
    book = open_book(folder, 0)
    expected = json.loads(gzip.decompress((reference / "reference_graph.json.gz").read_bytes()))
    assert [(goal, book.depths[goal]) for goal in book.goals] == [(g["goal"], g["depth"]) for g in expected["goals"]]
    texts = {product: [one.text for one in recipes] for product, recipes in book.by_product.items()}
    assert texts == expected["recipes"]
    assert (sorted(book.items), sorted(book.tags)) == (sorted(expected["items"]), sorted(expected["tags"]))
    assert dict(book.tag_of) == expected["tag_of"]
    for goal in expected["goals"]:
        shown = [one.text for one in CraftingTask(book, goal["goal"]).shown]
        others = set(shown) - set(goal["own"])
        assert set(goal["own"]) <= set(shown) and others <= set(goal["pool"])
        assert len(shown) == len(set(shown)) and len(others) == min(10, len(goal["pool"]))


def test_the_splits_of_minecraft_are_the_published_ones(textcraft_data):
    folder, reference = textcraft_data
    book = open_book(folder, 0)
    published = json.loads((reference / "published_ids.json").read_text())
    named = {name: {book.goals[int(n)].removeprefix(NAMESPACE) for n in published[name]} for name in ("test", "train")}
    splits = task_splits(book)
    assert {name: set(splits[name].task_ids) for name in named} == named
    assert len(splits["valid"]) == 70
    depths = [Counter(book.depths[NAMESPACE + name] for name in splits[split].task_ids) for split in ("test", "train")]
    assert depths == [{1: 31, 2: 41, 3: 25, 4: 3}, {1: 94, 2: 232, 3: 47, 4: 1}]


def test_what_is_no_recipe_of_the_game():
    assert [one.text for one in WOOD.by_product["minecraft:axe"]] == ["craft 1 axe using 2 bar, 1 peg"]
    depths = {"ash_board": 1, "elm_board": 1, "peg": 2, "axe": 4, "bar": 3, "mixed": 2}
    assert WOOD.depths == {f"minecraft:{name}": depth for name, depth in depths.items()}
    cycle = book_of(recipe("ingot", "nugget"), recipe("nugget", "ingot"), recipe("tile", "stone_block"))
    assert set(cycle.by_product) == {"minecraft:ingot"} and cycle.can_be_fetched("minecraft:tile")
    assert cycle.can_be_fetched("minecraft:nugget")
    pattern, key = ["# #", " X "], {"#": [{"item": "a"}, {"item": "b"}], "X": {"item": "c"}}
    shaped = {"type": "crafting_shaped", "pattern": pattern, "key": key, "result": "d"}
    assert book_of(shaped).by_product["d"][0].text == "craft 1 d using 2 a, 1 c"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "000.json is no recipe"),
        ({"type": "crafting_shapeless", "ingredients": [{"item": "a"}]}, "'result' is missing"),
        ({"type": "crafting_shapeless", "ingredients": [{"item": 3}], "result": "a"}, "an ingredient is 3"),
        ({"type": "crafting_shapeless", "ingredients": [[]], "result": "a"}, "000.json is no recipe"),
        (recipe("a", "b", count=0), "its result is"),
        ({"type": "crafting_shaped", "pattern": ["#"], "key": {"X": {"item": "a"}}, "result": "b"}, "nowhere"),
        ({"type": "smelting"}, "there are no crafting recipes"),
    ],
)
def test_broken_recipes(content, message):
    with pytest.raises(RecipeError, match=message) as error:
        book_of(content)
    assert "\n" not in str(error.value)


# --- the engine -------------------------------------------------------------------------------------------------------


def test_recordings_of_the_original_replay(textcraft_data, capsys):
    folder, reference = textcraft_data
    program = load("benchmarks/textcraft_parity")
    arguments = ["--traces", str(reference / "reference_traces.json.gz"), "--data", str(folder), "--seconds", "0.1"]
    assert program.main(arguments) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1].removeprefix("RESULT "))
    assert (result["episodes"], result["steps"], result["mismatches"]) == (200, 3878, 0)


def test_what_commands_do():
    said, game = play(
        *(WOOD, "axe", "inventory", "get 2 ash_log", "get 0 elm log", "inventory please"),
        *("craft 4 ash board using 1 ash log", "craft board using 1 ash log", "inventory"),
        *("craft 9 peg using 2 board", "craft 9 peg using 1 ash board", "craft 9 peg using 2 ash board,"),
        *("get 1 board", "craft 9 peg using 2 ash board", "craft mixed using 1 ash board, 1 ash board"),
        *("get 1 axe", "get 1 axe\nx"),
    )
    assert said == [
        *("Inventory: You are not carrying anything.", "Got 2 ash_log", "Got 0 elm log"),
        *("Inventory: [ash log] (2) [elm log] (0) ", "Crafted 4 minecraft:ash_board", "Crafted 4 minecraft:ash_board"),
        *("Inventory: [elm log] (0) [ash board] (8) ", "Could not find enough items to craft minecraft:peg"),
        "Could not find a valid recipe for "
        "ItemTagWithCount(item_tag=ItemTag(tag=None, item_id='minecraft:peg'), count=9)",
        *("Wrong item format: ", "Could not find board", "Crafted 1 minecraft:peg", "Crafted 1 minecraft:mixed"),
        *("Could not find axe", "Could not find axe"),
    ]
    assert not game.won and game.carried["minecraft:ash_board"] == 4


def test_nothing_is_made_from_what_is_not_there():
    """The original checks two inputs of one name apart from each other; the sum has to be there, too."""
    game = Crafting(WOOD, "minecraft:mixed")
    game.carried["minecraft:ash_board"] = 1
    assert game.act("craft mixed using 1 ash board, 1 ash board").text.startswith("Could not find enough items")
    game.carried |= {"minecraft:elm_board": 1}
    assert game.act("craft 1 mixed using 1 ash board, 1 elm board").done and game.won
    assert game.act("craft board using 1 fir log").text == "Could not find enough items to craft None"


@given(st.text(max_size=30), st.sampled_from(["{}", "get {}", "get 1 {}", "craft {} using {}", "craft a using 1 {}"]))
def test_any_text_is_answered(text, frame):
    game = Crafting(WOOD, "minecraft:axe")
    effect = game.act(frame.format(text, text))
    assert effect.text.encode() and (effect.done or not game.carried)


# --- the environment --------------------------------------------------------------------------------------------------


def test_admissible_crafts_work_and_cover_every_possible_one():
    """Random play in generated recipes: what is listed can be done, and no other shown craft can."""
    env = gymnasium.make("RoleAgent/TextCraft-v0", data_dir="generated").unwrapped
    rng = np.random.default_rng(0)
    for _ in range(30):
        _, info = env.reset(seed=int(rng.integers(2**31)))
        shown = [one.text for one in env._task.shown if not any(i.is_tag for i in one.ingredients)]
        for _ in range(20):
            before = env.snapshot()
            for command in info["admissible_actions"]:
                assert env.step(command)[-1]["valid_action"], command
                env.restore(before)
            listed = set(info["admissible_actions"])
            for command in set(shown) - listed:
                assert not env.step(command)[-1]["valid_action"], command
                env.restore(before)
            *_, over, truncated, info = env.step(str(rng.choice(info["admissible_actions"])))
            if over or truncated:
                break


def test_a_task_shows_the_same_in_every_process_and_copy(tmp_path):
    one, other = (gymnasium.make("RoleAgent/TextCraft-v0", seed=seed, data_dir="generated") for seed in (0, 1))
    text, info = one.reset(options={"task_id": "alder_boat"})
    assert text.startswith("Crafting commands:\ncraft ") and text.endswith("\n\nGoal: craft alder boat.")
    assert info["task_type"] == "depth_3" and info["grouping_state"] == "Inventory: You are not carrying anything."
    assert text.count("\n") == 17 and other.unwrapped.task_split != one.unwrapped.task_split
    small = gymnasium.make("RoleAgent/TextCraft-v0", data_dir="generated", max_depth=2, distractors=1).unwrapped
    assert {small.task_type(task_id) for task_id in small.task_split.task_ids} == {"depth_1", "depth_2"}
    assert len(small.reset(options={"task_id": "alder_door"})[0].splitlines()) == 1 + 2 + 1 + 2
    assert write_recipes(tmp_path / "made", 0) == 612
    written = gymnasium.make("RoleAgent/TextCraft-v0", data_dir=tmp_path / "made")
    assert written.unwrapped.task_split == one.unwrapped.task_split
    assert written.reset(options={"task_id": "alder_boat"}) == (text, info)


def test_training_in_many_worlds():
    env, one = (TextCraftEnv(data_dir="generated", worlds=n, max_depth=2, distractors=1) for n in (6, 1))
    others = [TextCraftEnv(split, "generated").task_split for split in ("valid", "test")]
    names = [task_id.partition(".")[0] for task_id in env.task_split.task_ids]
    assert set(one.task_split.task_ids) < set(env.task_split.task_ids)
    assert not any(name in split for name in names for split in others)
    assert len(names) > 4 * len(one.task_split) and len(set(names)) > 2 * len(one.task_split)
    for task_id in env.task_split.task_ids[:60]:
        assert env.task_type(task_id) == env.reset(options={"task_id": task_id})[1]["task_type"]
        assert by_expert(env, task_id)[-1][-1]["won"] and pickle.loads(pickle.dumps(env)).task_split == env.task_split


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_oracle_and_expert_craft_every_goal(split, textcraft_data):
    for data_dir in ("generated", textcraft_data[0]):
        env = gymnasium.make("RoleAgent/TextCraft-v0", split=split, data_dir=data_dir, disable_env_checker=True)
        for task_id in env.unwrapped.task_split.task_ids:
            env.reset(options={"task_id": task_id})
            for command in env.unwrapped.walkthrough():
                *_, info = env.step(command)
            assert info["won"], task_id
            assert by_expert(env, task_id)[-1][-1]["won"], task_id
