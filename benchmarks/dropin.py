"""How much faster are the drop-in interfaces than the originals, and do they return the same?

    python benchmarks/dropin.py [--games 8] [--steps 20] [--episodes 50]
    python benchmarks/dropin.py --only-adapters --python /path/to/venv/bin/python

ALFWorld: the batched environments of ``alfworld`` and ``roleagent.compat.alfworld`` play the same generated games with
the same commands, 8 at a time. ``alfworld_mismatches`` is the number of batched answers that differ, ``alfworld_ratio``
the ratio of their batched steps per second. It comes from CPU times (Linux), so that a busy machine changes nothing.
The original's games run in a process each: its time is divided by the cores that they can use. Both say "not run" where
alfworld is not installed (``pip install 'roleagent[alfworld]'``).

WebShop: the original cannot be installed everywhere. Its environment parses every page twice with BeautifulSoup, for
the clickables and for the observation. ``webshop_ratio`` is the CPU time of this parsing over that of all of
``WebAgentTextEnv`` on the same pages; the whole original is slower still. ``webshop_mismatches`` counts the steps at
which what is parsed differs from what ``WebAgentTextEnv`` returns.

``adapters`` is the number of adapters whose example ran to its end with the expected output, each with the really
installed package: in this environment, or in that of a ``--python``. ``.ci/adapters`` makes those and passes them all.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "dataset": {"num_train_games": -1, "num_eval_games": -1},
    "env": {
        "domain_randomization": False,
        "task_types": [1, 2, 3, 4, 5, 6],
        "expert_type": "handcoded",
        "goal_desc_human_anns_prob": 0.0,
    },
    "general": {"training_method": "dqn"},
    "rl": {"training": {"max_nb_steps_per_episode": 50}},
}
EXAMPLES = Path(__file__).parents[1] / "examples"
# name: the module that must be installed, the example and its arguments, what it prints, the protocol that is served
ADAPTERS: dict[str, tuple[str, list[str], str, str]] = {
    "gymnasium.vector": ("gymnasium", ["vector.py"], r"12 tasks, \d+ won; 600 steps", ""),
    "TRL": ("trl", ["trl_grpo.py"], r"step +10: reward (0\.9|1)", ""),
    "OpenEnv": ("openenv", ["openenv_client.py", "URL"], r"Gymnasium: .*\nOpenEnv: .*reward", "openenv"),
    "AgentGym": ("starlette", ["agentgym_client.py", "URL"], r"reward [01] after \d+ steps; closed", "agentgym"),
    "verifiers": ("verifiers.v1.harness", ["verifiers_taskset.py"], r"8 rollouts, 0 with errors", ""),
    "verifiers before 0.4": ("verifiers.envs.multiturn_env", ["verifiers_eval.py"], r"8 rollouts of 4 tasks", ""),
    "SkyRL": ("skyrl_gym", ["skyrl_env.py"], r"mean of 4 episodes: .*'prediction_similarity': 0\.[1-9]", ""),
    "Tinker": ("tinker_cookbook", ["tinker_group.py"], r"(?s)(rewards \[.*'predictions_absent'.*){2}", ""),
    "verl": ("verl.experimental.agent_loop", ["verl_agent_loop.py"], r"(?s)(reward 0, \d+ of \d+ tokens.*){2}", ""),
}
REPEATS = 20
HIDDEN = {"style", "script", "head", "title", "meta", "[document]"}


def cpu_seconds() -> float:
    """CPU seconds of this process and of its live children."""
    ticks = 0
    for child in multiprocessing.active_children():
        with open(f"/proc/{child.pid}/stat", encoding="utf-8") as file:
            ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def play(env: Any, script: list[list[str]] | None, steps: int) -> tuple[list[Any], list[list[str]], float]:
    """One episode of every game: the answers, the commands, and the CPU seconds of the steps.

    Without a script it draws admissible commands.
    """
    rng, commands = random.Random(0), []
    answers = [env.reset()]
    began = cpu_seconds()
    for number in range(steps):
        admissible = answers[-1][-1]["admissible_commands"]
        commands.append([rng.choice(some) for some in admissible] if script is None else script[number])
        answers.append(env.step(commands[-1]))
    return answers, commands, cpu_seconds() - began


def alfworld(batch: int, steps: int) -> dict[str, Any]:
    """The batched environments of both packages, side by side."""
    if find_spec("alfworld") is None or find_spec("textworld") is None:
        return dict.fromkeys(("alfworld_ratio", "alfworld_mismatches"), "not run: alfworld is not installed")
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv as Original  # pyright: ignore[reportMissingImports]

    from roleagent.compat.alfworld.agents.environment import AlfredTWEnv
    from roleagent.compat.alfworld.batch import SEED
    from roleagent.envs.alfworld.generated.generate import generate, split_ids, write_game

    with tempfile.TemporaryDirectory() as folder:
        for task_id in split_ids("train", "standard")[:batch]:
            write_game(generate(task_id), folder)
        config = CONFIG | {"dataset": CONFIG["dataset"] | {"data_path": folder}}
        ours = AlfredTWEnv(config)
        theirs = Original.__new__(Original)  # its constructor demands ALFRED's traj_data.json beside every game
        theirs.config, theirs.train_eval, theirs.game_files = config, "train", ours.game_files
        native = ours.init_env(batch_size=batch)
        answers, script, _ = play(native, None, steps)
        native.seed(SEED)
        native.reset()
        began = time.process_time()
        for _ in range(REPEATS):  # too fast to be timed once
            native.seed(SEED)
            play(native, script, steps)  # its resets count against it
        took = (time.process_time() - began) / REPEATS
        with contextlib.redirect_stdout(io.StringIO()):
            original = theirs.init_env(batch_size=batch)
            expected, _, reference = play(original, script, steps)
            original.close()
    mismatches = sum(one != other for one, other in zip(answers, expected, strict=True))
    reference /= min(batch, len(os.sched_getaffinity(0)))
    rates = [f"{batch * steps / seconds:,.1f}" for seconds in (took, reference)]
    print(f"ALFWorld, {batch} games at a time: {rates[0]} steps/s, the original {rates[1]}")
    return {"alfworld_ratio": round(reference / took, 1), "alfworld_mismatches": mismatches}


def webshop(episodes: int) -> dict[str, Any]:
    """The shop against the reading of its pages."""
    from bs4 import BeautifulSoup

    from roleagent.compat.webshop import SimServer, WebAgentTextEnv

    server = SimServer(file_path="generated", num_products=1000)
    text, html = WebAgentTextEnv("text", server=server), WebAgentTextEnv("html", server=server)
    rng, script = random.Random(0), []
    for goal in range(episodes):
        text.reset(session=goal)
        script.append((goal, [f"search[{server.goals[goal]['query']}]"]))
        text.step(script[-1][1][0])
        for _ in range(10):
            choices = text.get_available_actions()["clickables"]
            if not choices:
                break
            script[-1][1].append(f"click[{rng.choice(choices)}]")
            text.step(script[-1][1][-1])
    seen: list[tuple[str, dict[str, Any]]] = []
    began = time.process_time()
    for goal, actions in script:
        text.reset(session=goal)
        for action in actions:
            seen.append((text.step(action)[0], text.get_available_actions()))
    ours = time.process_time() - began
    pages = []
    for goal, actions in script:
        html.reset(session=goal)
        pages += [html.step(action)[0] for action in actions]
    began = time.process_time()
    read = [
        (observation(BeautifulSoup(page, "html.parser")), clickables(BeautifulSoup(page, "html.parser")))
        for page in pages
    ]
    theirs = time.process_time() - began
    mismatches = sum(
        page != words or set(names) != set(actions["clickables"])
        for (page, names), (words, actions) in zip(read, seen, strict=True)
    )
    rates = [f"{len(seen) / seconds:,.0f}" for seconds in (ours, theirs)]
    print(f"WebShop, {len(seen)} steps: {rates[0]} steps/s, the original's parsing alone {rates[1]}")
    return {"webshop_ratio": round(theirs / ours, 1), "webshop_mismatches": mismatches}


def observation(page: Any) -> str:
    """The visible strings of a page, as the original joins them."""
    strings = [text for text in page.find_all(string=True) if text.parent.name not in HIDDEN and text != "\n"]
    return " [SEP] ".join(text.strip() for text in strings)


def clickables(page: Any) -> list[str]:
    """The names that can be clicked, as the original finds them."""
    names = [tag.get_text().lower() for tag in page.find_all(class_="btn") + page.find_all(class_="product-link")]
    return names + [radio.get("value") for radio in page.select('input[type="radio"]')]


def adapters(pythons: list[str]) -> dict[str, Any]:
    """How many adapters pass: each example in the first of the environments that has its package.

    Returns:
        ``adapters``, and ``adapters_left_out`` if packages are missing.
    """
    passed, missing = 0, []
    for name, (module, (program, *arguments), expected, protocol) in ADAPTERS.items():
        python = next((path for path in pythons if _has(path, module)), None)
        if python is None:
            missing.append(name)
            continue
        with tempfile.TemporaryDirectory() as folder, _served(python, protocol) as url:
            command = [python, str(EXAMPLES / program), *(url if word == "URL" else word for word in arguments)]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
        sound = done.returncode == 0 and re.search(expected, done.stdout) is not None
        print(f"adapter {name}: {'passed' if sound else f'FAILED ({done.returncode})'}")
        if not sound:
            print(done.stdout[-500:], done.stderr[-500:])
        passed += sound
    left_out = f"not run: packages are not installed for {', '.join(missing)}"
    return {"adapters": passed, **({"adapters_left_out": left_out} if missing else {})}


def _has(python: str, module: str) -> bool:
    """Whether an environment has a module."""
    found = f"import importlib.util as u; raise SystemExit(u.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", found], capture_output=True).returncode == 0


@contextlib.contextmanager
def _served(python: str, protocol: str) -> Iterator[str]:
    """The address of a server in a protocol; ``""`` without one."""
    if not protocol:
        yield ""
        return
    serve = "import sys; from roleagent.cli import main; sys.exit(main())"
    command = [python, "-c", serve, "serve", "RoleAgent/ALFWorld-v0", "--port", "0", "--protocol", protocol]
    with subprocess.Popen([*command, "--env-arg", "size=tiny"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = next((match for line in server.stdout if (match := re.search(r"http://\S+", line))), None)
            yield found[0] if found else ""
        finally:
            server.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=8, help="of ALFWorld, played at a time")
    parser.add_argument("--steps", type=int, default=20, help="of ALFWorld, per game")
    parser.add_argument("--episodes", type=int, default=50, help="of WebShop")
    parser.add_argument("--only-adapters", action="store_true", help="compare no speeds")
    parser.add_argument(
        "--python", action="append", default=[], metavar="PATH", help="of an environment with a trainer's package"
    )
    options = parser.parse_args()
    if min(options.games, options.steps, options.episodes) < 1:
        parser.error("--games, --steps and --episodes must be at least 1")
    compared: dict[str, Any] = {}
    if not options.only_adapters:
        compared = alfworld(options.games, options.steps) | webshop(options.episodes)
    print("RESULT", json.dumps(compared | adapters([sys.executable, *map(os.path.abspath, options.python)])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
