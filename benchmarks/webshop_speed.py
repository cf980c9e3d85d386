"""Measures speed and memory of WebShop.

    python benchmarks/webshop_speed.py [--data DIR] [--products 1000] [--steps 20000]
    python benchmarks/webshop_speed.py --scale 100000     (minutes: first writes and indexes as many products)

Load times and memory are measured in separate processes, in CPU time. The same episodes are also played in the usual
way: every page is rendered with an HTML template and parsed with BeautifulSoup. ``html_ratio`` is that CPU time over
the shop's. The original spends three quarters of its time on these two. Published figures of the original on two cores,
not measured here: 60 steps/s, 9–15 s to import, 755 MB per process, one process per environment.

``lucene_identical`` is the share of queries with exactly Lucene's top 50, measured if pyserini and Java are installed.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FULL_SIZE = 1_180_000  # products of the published catalogue
TEMPLATE = """<!DOCTYPE html><html><head><title>WebShop</title></head><body><div class="container">
{% for line in heading %}<h4>{{ line }}</h4>
{% endfor %}{% if search %}<input id="search_input">{% endif %}
{% for text, kind, group in parts %}
{% if kind == "button" %}<form method="post"><button class="btn btn-primary">{{ text }}</button></form>
{% elif kind == "link" %}<h4><a class="product-link" href="#">{{ text }}</a></h4>
{% elif kind == "option" %}<input type="radio" name="{{ group }}" value="{{ text }}"><label>{{ text }}</label>
{% else %}<p>{{ text }}</p>{% endif %}
{% endfor %}</div></body></html>"""


def memory() -> tuple[float, float]:
    """Resident MB of this process, and private MB; mapped files are shared."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        held, own = (int(lines[name].split()[0]) / 1e3 for name in ("VmRSS", "RssAnon"))
    except (OSError, KeyError):  # not Linux: the most it ever held
        import resource

        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
        own = held
    return held, own


# --- in a process of its own ------------------------------------------------------------------------------------------


def measure(data: str, envs: int, steps: int) -> dict[str, Any]:
    """Loads the shop, plays in ``envs`` environments side by side, and searches."""
    began = time.process_time()
    from roleagent.envs.webshop.env import WebShopEnv

    imported, before = time.process_time(), memory()
    stages = [WebShopEnv("train", data_dir=data) for _ in range(envs)]
    stages[0].reset(seed=0)
    loaded = time.process_time()
    rng = random.Random(0)
    script: list[tuple[int, str | None, str]] = []  # environment, the task that it begins, command

    def once() -> None:
        """Writes the script: random clicks, and searches for the request."""
        info: list[dict[str, Any] | None] = [None] * envs
        for number in range(steps):
            index = number % envs
            task_id, known = None, info[index]
            if known is None:
                task_id = stages[index].task_split.task_ids[rng.randrange(min(len(stages[index].task_split), 500))]
                known = stages[index].reset(options={"task_id": task_id})[1]
            command = rng.choice(known["admissible_actions"] or [f"search[{known['goal']}]"])
            *_, terminated, truncated, info[index] = stages[index].step(command)
            script.append((index, task_id, command))
            if terminated or truncated:
                info[index] = None

    def again() -> None:
        for index, task_id, command in script:
            if task_id is not None:
                stages[index].reset(options={"task_id": task_id})
            stages[index].step(command)

    cold = cpu_seconds(once)
    warm = min(cpu_seconds(again) for _ in range(3))
    held, own = (
        after - first for after, first in zip(memory(), before, strict=True)
    )  # before the searches below: no episode searches that much
    shop = stages[0].shop
    queries = [shop.goals[index].instruction for index in range(min(500, len(shop.goals)))]
    cpu_seconds(lambda: shop.index.search("warm up"))
    searched = cpu_seconds(lambda: [shop.index.search(query) for query in queries])
    return {
        "import_s": imported - began,
        "load_s": loaded - imported,
        "rss_mb": held,
        "own_mb": own,
        "cold_steps_per_s": steps / cold,
        "steps_per_s": steps / warm,
        "cold_search_ms": 1000 * searched / len(queries),
        "products": len(shop.catalogue),
        "goals": len(shop.goals),
    }


def cpu_seconds(action: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    began = time.process_time()
    action()
    return time.process_time() - began


# --- beside others ----------------------------------------------------------------------------------------------------


def html_ratio(data: str, episodes: int = 20) -> float | None:
    """CPU time of the same steps through a template and an HTML parser, over the shop's; None without the libraries.

    Raises:
        AssertionError: the two ways show different texts or clickables.
    """
    try:
        from bs4 import BeautifulSoup
        from jinja2 import Environment
    except ImportError:
        print("html_ratio: needs beautifulsoup4 and jinja2")
        return None
    from roleagent.envs.webshop.engine.pages import heading
    from roleagent.envs.webshop.engine.session import Session
    from roleagent.envs.webshop.engine.shop import open_shop

    shop, engine = open_shop(data), Environment(autoescape=True)

    def read(session: Session) -> tuple[str, list[str]]:
        page = session.page
        html = engine.from_string(TEMPLATE).render(
            heading=heading(page, session.goal.instruction), parts=page.parts, search=page.has_search_bar
        )
        tree = BeautifulSoup(html, "html.parser")
        hidden = ("title", "[document]", None)
        strings = (
            string for string in tree.find_all(string=True) if getattr(string.parent, "name", None) not in hidden
        )
        text = " [SEP] ".join(string.strip() for string in strings if string != "\n")
        tree = BeautifulSoup(html, "html.parser")  # once for the observation, once for the clickables, as the original
        names = [tag.get_text().lower() for tag in tree.find_all(class_="btn") + tree.find_all(class_="product-link")]
        names += [str(tag["value"]) for tag in tree.select('input[type="radio"]')]
        return text, list(dict.fromkeys(names))

    def play(look: Callable[[Session], tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
        rng, seen = random.Random(1), []
        for _ in range(episodes):
            session = Session(shop, shop.goals[rng.randrange(len(shop.goals))])
            for _ in range(15):
                session.act(rng.choice(session.page.commands or (f"search[{session.goal.instruction}]",)))
                seen.append(look(session))
                if session.done:
                    break
        return seen

    def direct(session: Session) -> tuple[str, list[str]]:
        return session.observe(), list(session.clickables)

    assert play(direct) == play(read), "the two ways disagree"
    return cpu_seconds(lambda: play(read)) / min(cpu_seconds(lambda: play(direct)) for _ in range(3))


def lucene(data: str, queries: int = 200) -> dict[str, float] | None:
    """How often the top 50 are Lucene's, and its time per search; None where it is not installed."""
    from gymnasium.error import DependencyNotInstalled

    from roleagent.envs.webshop.engine.shop import RESULTS, open_shop

    try:
        theirs = open_shop(data, search="pyserini").index
    except (DependencyNotInstalled, ImportError) as error:
        print(f"lucene_identical: {str(error).splitlines()[0]}")
        return None
    shop = open_shop(data)
    asked = [
        shop.goals[index * len(shop.goals) // queries].instruction for index in range(min(queries, len(shop.goals)))
    ]
    theirs.search("warm up")
    found: list[list[int]] = []
    seconds = cpu_seconds(lambda: found.extend(theirs.search(query, RESULTS) for query in asked))
    same = sum(shop.index.search(query, RESULTS) == answer for query, answer in zip(asked, found, strict=True))
    return {"lucene_identical": same / len(asked), "lucene_search_ms": 1000 * seconds / len(asked)}


# --- the program ------------------------------------------------------------------------------------------------------


def in_child(data: str, envs: int, steps: int) -> dict[str, Any]:
    """:func:`measure` in a fresh process."""
    arguments = ["--child", "--data", data, "--envs", str(envs), "--steps", str(steps)]
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def serve(folder: Path, products: int, steps: int) -> dict[str, float]:
    """Writes, stores and serves a large catalogue; what each of it takes."""
    from roleagent.envs.webshop.data.build import build_store
    from roleagent.envs.webshop.data.generate import write_catalogue

    write_catalogue(folder, products)
    began = time.process_time()
    store = build_store(folder).folder
    built = time.process_time() - began
    assert store is not None
    found = in_child(str(folder), 256, steps)
    figures = {
        "build_s": built,
        "store_mb": sum(path.stat().st_size for path in store.rglob("*") if path.is_file()) / 1e6,
        "load_s": found["load_s"],
        "rss_mb_256": found["rss_mb"],
        "own_mb_256": found["own_mb"],
        "search_ms": found["cold_search_ms"],
        "steps_per_s": found["steps_per_s"],
    }
    print(f"{products} products, {found['goals']} goals: {json.dumps({k: round(v, 3) for k, v in figures.items()})}")
    return figures


def at_scale(folder: Path, products: int, steps: int) -> dict[str, float]:
    """A large catalogue from a store on disk, and the straight line through it and a quarter of it at the full size."""
    quarter, whole = (serve(folder / str(n), n, steps) for n in (products // 4, products))
    result = {"scale_products": products} | {f"scale_{name}": round(value, 3) for name, value in whole.items()}
    for name in ("build_s", "store_mb", "load_s", "rss_mb_256", "own_mb_256", "search_ms"):
        slope = (whole[name] - quarter[name]) / (products - products // 4)
        result[f"full_{name}"] = round(whole[name] + slope * (FULL_SIZE - products), 1)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with official files (default: generated products)")
    parser.add_argument("--products", type=int, default=1000, help="how many to generate")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--scale", type=int, help="also generate and serve so many products from a store")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--envs", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.data, options.envs, options.steps)))
        return 0

    with tempfile.TemporaryDirectory() as folder:
        data = options.data
        if data is None:
            from roleagent.envs.webshop.data.generate import write_catalogue

            data = str(Path(folder) / "small")
            write_catalogue(Path(data), options.products)
        found = {envs: in_child(data, envs, options.steps) for envs in (1, 8, 256)}
        one, most = found[1], found[256]
        print(f"{one['products']} products, {one['goals']} goals; import {one['import_s']:.2f} s")
        for envs, figures in found.items():
            print(
                f"{envs:4} environments: load {figures['load_s']:.2f} s, {figures['rss_mb']:5.1f} MB more than the "
                f"imports, {figures['steps_per_s']:8.0f} steps/s warm, {figures['cold_steps_per_s']:6.0f} cold"
            )
        result: dict[str, Any] = {
            "steps_per_s": round(most["steps_per_s"]),
            "load_s": round(one["load_s"], 3),
            "rss_mb_256": round(most["rss_mb"], 1),
            "cold_search_ms": round(one["cold_search_ms"], 3),
            "lucene_identical": "not run: Lucene is not installed",
            "import_s": round(one["import_s"], 2),
            "cold_steps_per_s": round(one["cold_steps_per_s"]),
            "rss_mb_1": round(one["rss_mb"], 1),
            "rss_mb_8": round(found[8]["rss_mb"], 1),
        }
        ratio = html_ratio(data)
        result["html_ratio"] = "not run: no HTML parser is installed" if ratio is None else round(ratio, 1)
        result |= lucene(data) or {}
        if options.scale:
            result |= at_scale(Path(folder) / "large", options.scale, options.steps)
    print("RESULT", json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
