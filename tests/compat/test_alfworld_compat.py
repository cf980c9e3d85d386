"""The interface of the ``alfworld`` package: clients with the calls of well-known projects, and lock step with it."""

import pickle
import random
from pathlib import Path

import pytest
import yaml
from programs import load

import roleagent.compat.alfworld as alfworld
from roleagent.compat.alfworld.agents.environment import AlfredTWEnv, get_environment
from roleagent.compat.alfworld.agents.environment.alfred_tw_env import TASK_TYPES
from roleagent.envs.alfworld.official.games import list_games, read_game

walks = load("benchmarks/parts/alfworld_walks")

CONFIG = """
dataset:
  data_path: '$ALFWORLD_DATA/train'
  eval_id_data_path: '$ALFWORLD_DATA/valid_seen'
  eval_ood_data_path: '$ALFWORLD_DATA/valid_unseen'
  num_train_games: -1
  num_eval_games: -1
logic:
  domain: '$ALFWORLD_DATA/logic/alfred.pddl'
  grammar: '$ALFWORLD_DATA/logic/alfred.twl2'
env:
  type: 'AlfredTWEnv'
  domain_randomization: False
  task_types: [1, 2, 3, 4, 5, 6]
  expert_type: 'handcoded'
  goal_desc_human_anns_prob: 0.0
general:
  training_method: 'dagger'
rl:
  training:
    max_nb_steps_per_episode: 50
dagger:
  training:
    max_nb_steps_per_episode: 50
"""
"""The settings of alfworld's base_config.yaml that the text environment reads."""
EVAL = "eval_in_distribution"
BASICS = {"won", "admissible_commands", "extra.gamefile"}


@pytest.fixture
def data(official_games, monkeypatch):
    """The folder with the official games of valid_seen; the training folder is the same."""
    (seen,) = official_games["current"].rglob("valid_seen")
    train = seen.parent / "train"
    if not train.exists():
        train.symlink_to(seen, target_is_directory=True)
    monkeypatch.setenv("ALFWORLD_DATA", str(seen.parent))
    return seen.parent


@pytest.fixture
def config():
    return yaml.safe_load(CONFIG)


def walkthrough(gamefile):
    trial = gamefile.removesuffix("/game.tw-pddl")
    folder, task, name = trial.rsplit("/", 2)
    return read_game(Path(folder), f"{task}/{name}").walkthrough


# --- clients ----------------------------------------------------------------------------------------------------------


def test_a_client_like_reacts_wins_by_walkthrough(data, config):
    """It takes the class by name, reads the task out of the observation, and tells the type by the file's name."""
    env = getattr(alfworld.agents.environment, config["env"]["type"])(config, train_eval=EVAL)
    assert env.num_games == len(env.game_files) == 140
    env = env.init_env(batch_size=1)
    for _ in range(5):
        ob, info = env.reset()
        ob = "\n".join(ob[0].split("\n\n")[1:])
        assert ob.startswith("You are in the middle of a room.")
        assert "\nYour task is to: " in ob
        name = "/".join(info["extra.gamefile"][0].split("/")[-3:-1])
        assert name.split("-")[0] in TASK_TYPES.values()
        for action in walkthrough(info["extra.gamefile"][0]):
            observation, reward, done, info = env.step([action])
            observation, reward, done = observation[0], info["won"][0], done[0]
            assert observation != "Nothing happens."
        assert reward is True
        assert done is True
    env.close()


def test_a_client_like_verl_agents_plays_groups(data, config):
    """Each worker has a batch of one made from one pickled base environment; equal seeds give equal games."""
    config["general"]["training_method"] = "dqn"
    base = get_environment(config["env"]["type"])(config, train_eval="train")
    workers = []
    for seed in (7, 7, 8, 8):
        worker = pickle.loads(pickle.dumps(base)).init_env(batch_size=1)
        worker.seed(seed)
        workers.append(worker)
    for _ in range(3):
        games = []
        for worker in workers:
            obs, infos = worker.reset()
            infos["observation_text"] = obs
            info = {key: value[0] for key, value in infos.items()}
            assert set(info) == BASICS | {"observation_text"}
            games.append(info["extra.gamefile"])
            obs, scores, dones, infos = worker.step([info["admissible_commands"][0]])
            assert (scores, dones, infos["won"]) == ((0,), (False,), [False])
        assert games[0] == games[1] != games[2] == games[3]


def test_a_client_like_etos_jumps_to_its_part(data, config):
    def names(env, number):
        return [env.reset()[1]["extra.gamefile"][0] for _ in range(number)]

    whole = AlfredTWEnv(config, train_eval=EVAL)
    everything = names(whole.init_env(batch_size=1), 140)
    assert sorted(everything) == whole.game_files
    second = whole.init_env(batch_size=1)
    second.skip(70)
    assert names(second, 70) == everything[70:]
    assert sorted(names(second, 140)) == whole.game_files  # the next round is shuffled again


def test_a_client_like_agentgyms_chooses_the_game(data, config, tmp_path):
    """It replaces the constructor, reads the logic, and assigns the game of every episode."""
    config["logic"] = {"domain": str(tmp_path / "alfred.pddl"), "grammar": str(tmp_path / "alfred.twl2")}
    (tmp_path / "alfred.pddl").write_text("(domain)", "utf-8")
    (tmp_path / "alfred.twl2").write_text("grammar", "utf-8")

    class Single(AlfredTWEnv):
        def __init__(self, config, train_eval="eval_out_of_distribution"):
            self.config, self.train_eval = config, train_eval
            self.get_game_logic()
            self.game_files, self.num_games = [], 0

    env = Single(config)
    assert env.game_logic == {"pddl_domain": "(domain)", "grammar": "grammar"}
    (folder,) = data.glob("valid_seen")
    for task_id in list_games(folder)[3:6]:
        env.game_files = [str(folder / task_id / "game.tw-pddl")]
        playing = env.init_env(batch_size=1)
        _, info = playing.reset()
        assert "/".join(info["extra.gamefile"][0].split("/")[-3:-1]) == task_id
        *_, info = playing.step(["look"])
        assert float(info["won"][0]) == 0.0
        assert info.get("admissible_commands", [[]])[0]


def test_a_dagger_client_follows_the_expert(data, config):
    env = AlfredTWEnv(config, train_eval="train").init_env(batch_size=10)
    _, infos = env.reset()
    assert infos["extra.expert_plan"] == [["look"]] * 10
    for _ in range(50):
        _, _, dones, infos = env.step([plan[0] for plan in infos["extra.expert_plan"]])
        for plan, commands in zip(infos["extra.expert_plan"], infos["admissible_commands"], strict=True):
            assert plan[0] in commands
    assert all(dones)
    assert sum(infos["won"]) >= 8
    assert set(AlfredTWEnv(config, train_eval=EVAL).init_env(1).reset()[1]) == BASICS


# --- details ----------------------------------------------------------------------------------------------------------


def test_a_game_that_is_over_repeats_its_last_result(data, config):
    config["dagger"]["training"]["max_nb_steps_per_episode"] = 3
    env = AlfredTWEnv(config, train_eval=EVAL).init_env(batch_size=2)
    env.reset()
    for _ in range(2):
        assert env.step(["look", "inventory"])[2] == (False, False)
    last = env.step(["inventory", "look"])
    assert last[2] == (True, True)
    assert env.step(["go to bed 1", "help"]) == last
    assert env.reset()[0] != last[0]


def test_numbers_are_shuffled_by_the_seed_alone(data, config):
    def play(randomize, seed, split="train"):
        config["env"]["domain_randomization"] = randomize
        env = AlfredTWEnv(config, train_eval=split)
        env.game_files = env.game_files[:1]
        env = env.init_env(batch_size=1)
        env.seed(seed)
        return [env.reset()[0][0] for _ in range(4)]

    plain = play(False, 1)
    assert len(set(plain)) == 1
    shuffled = play(True, 1)
    assert len(set(shuffled)) > 1
    assert shuffled == play(True, 1)
    assert shuffled != play(True, 2)
    assert play(True, 1, EVAL) == plain


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ("config['dataset']['eval_id_data_path'] = '$ALFWORLD_DATA/nowhere'", FileNotFoundError, "ALFWORLD_DATA"),
        ("config['dataset']['eval_id_data_path'] = None", ValueError, "eval_id_data_path"),
        ("del config['dataset']", ValueError, "dataset.eval_id_data_path"),
        ("config['env']['task_types'] = []", ValueError, "1 to 6"),
        ("config['env']['task_types'] = [9]", ValueError, "1 to 6"),
        ("config['general']['training_method'] = 'ppo'", NotImplementedError, "dqn, dagger"),
        ("config['dagger']['training']['max_nb_steps_per_episode'] = 0", ValueError, "at least 1"),
    ],
)
def test_a_bad_config_gets_one_line(data, config, change, error, words):
    exec(change)
    with pytest.raises(error, match=words) as caught:
        AlfredTWEnv(config, train_eval=EVAL).init_env(batch_size=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["AlfredThorEnv", "AlfredHybrid"])
def test_the_visual_environments_are_refused(name):
    for take in (get_environment, lambda name: getattr(alfworld.agents.environment, name)):
        with pytest.raises(NotImplementedError, match="has the text environment"):
            take(name)


# --- the original -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "rounds", "split"), [(1, 44, EVAL), (3, 2, "train")])
def test_alfworld_returns_the_same(data, config, batch_size, rounds, split):
    """The installed alfworld and this one, in lock step over 50 games: every returned value, types included."""
    original = pytest.importorskip("alfworld.agents.environment.alfred_tw_env")
    from textworld_cached import cached_textworld

    config["general"]["training_method"] = "dqn"
    config["rl"]["training"]["max_nb_steps_per_episode"] = 12
    ours = AlfredTWEnv(config, train_eval=split)
    rng = random.Random(split)
    won = over = 0
    with cached_textworld():
        theirs = original.AlfredTWEnv.__new__(original.AlfredTWEnv)
        theirs.config, theirs.train_eval, theirs.game_files = config, split, ours.game_files
        ours, theirs = ours.init_env(batch_size), theirs.init_env(batch_size)
        for env in (ours, theirs):
            env.seed(20)
            env.skip(2)
        for _ in range(rounds):
            begin = ours.reset()
            assert_equal(begin, theirs.reset())
            plans = [iter(walkthrough(name)) for name in begin[1]["extra.gamefile"]]
            infos = begin[1]
            for _ in range(14):
                commands = [
                    next(plan, "look") if rng.random() < 0.85 else rng.choice([*admissible, rng.choice(walks.JUNK)])
                    for plan, admissible in zip(plans, infos["admissible_commands"], strict=True)
                ]
                answer = ours.step(commands)
                assert_equal(answer, theirs.step(commands))
                infos = answer[3]
            assert ours.render("text") == theirs.render("text")
            won, over = won + sum(infos["won"]), over + sum(answer[2])
    assert over == rounds * batch_size
    assert 0 < won < over


def assert_equal(ours, theirs):
    """Equal, and of equal types down to the entries of every list."""
    assert ours == theirs
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        ours, theirs = list(ours.values()), [theirs[key] for key in ours]
    if isinstance(ours, tuple | list):
        for one, other in zip(ours, theirs, strict=True):
            assert_equal(one, other)
