"""Cards of environments: what they name exists, unknown environments have none, and no other package names one."""

import gymnasium
import pytest

import roleagent  # noqa: F401  (registers the environments)
from roleagent.env_card import EnvCard, card_of, instructions_of, make_expert, register_env, registered
from roleagent.envs.registry import make_env
from roleagent.failures.modes import UNKNOWN, diagnose, failure_modes_of, taxonomy
from roleagent.types import Expert, Task, Trajectory

OURS = [card for card in registered() if card.env_id.startswith("RoleAgent/")]


def test_every_environment_has_a_card():
    assert [card.env_id for card in OURS] == [name for name in gymnasium.registry if name.startswith("RoleAgent/")]


@pytest.mark.parametrize("card", [card for card in OURS if card.failure_modes], ids=lambda card: card.env_id)
def test_a_card_is_complete(card):
    """Every mode of the taxonomy has a detector and a script, and the other fields name what they should."""
    modes = failure_modes_of(card.env_id)
    assert sorted(detector.__name__ for detector in modes.detectors) == sorted(modes.meanings)
    assert tuple(card.load("scripted_failures")) == tuple(modes.meanings)
    assert len(set(modes.meanings.values())) == len(modes.meanings)
    assert instructions_of(card.env_id).example
    if not card.extra:  # which may be missing
        assert isinstance(make_expert(gymnasium.make(card.env_id, disable_env_checker=True), None), Expert)


def test_wrappers_are_followed_and_nothing_is_guessed():
    env = gymnasium.make("RoleAgent/Toy-v0")
    assert card_of(gymnasium.wrappers.TimeLimit(env, 5)) == card_of(env) == card_of("some.module:RoleAgent/Toy-v0")
    assert card_of(env.unwrapped.__class__()) == card_of(env)  # made without gymnasium.make: known by its tasks
    for name in ("RoleAgent/Toy-v1", "RoleAgent/ALFWorldLike-v0", "Someone/WebShop-v0"):
        assert card_of(name) == EnvCard(name)
        assert taxonomy(name) == () and instructions_of(name).listed
        assert diagnose(Trajectory(Task(name, "1"), (), False, True, "max_steps", ""))[0] == UNKNOWN
    assert card_of(gymnasium.make("CartPole-v1")).load("expert") is None
    with pytest.raises(ValueError, match="CartPole-v1 has no scripted expert"):
        make_expert(gymnasium.make("CartPole-v1"), None)


def test_a_module_that_registers_an_environment_is_found_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "kitchen_of_mine.py").write_text(
        "import roleagent\n"
        "from roleagent.env_card import EnvCard\n"
        "roleagent.register_env(EnvCard('Mine/Kitchen-v0', entry_point='roleagent.envs.toy.env:ToyKitchen'))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert make_env("kitchen_of_mine:Mine/Kitchen-v0", {"max_steps": 3}).unwrapped.max_steps == 3


def test_a_wrong_import_string_names_the_environment_and_the_field():
    register_env(EnvCard("Test/Broken-v0", expert="roleagent.envs.toy.expert:no_such_name"))
    with pytest.raises(ImportError, match=r"expert='roleagent.envs.toy.expert:no_such_name' .*Test/Broken-v0"):
        card_of("Test/Broken-v0").load("expert")
