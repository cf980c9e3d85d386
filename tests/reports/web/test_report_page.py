"""The page of a report: what is in the document, and what a person can see and do with it in a browser."""

import copy
import json
import re
from importlib import resources

import pytest

from roleagent.reports.data.run_groups import group_runs, name_apart
from roleagent.reports.data.run_schema import ACTION, PREDICTION, PROMPT
from roleagent.reports.web.page import as_json, render

EVIL = "</script><img src=x onerror='window.hacked=1'><b>&amp;\u2028"
ITERATIONS = 8


def turn(number, action, prediction, observation, advantage, **others):
    """A turn that was predicted one step ahead; its score is not looked at by the page."""
    return {
        "action": action,
        "reply": None,
        "format_error": None,
        "valid": True,
        "observation": observation,
        "calls": [],
        "answer": "",
        "rewards": {},
        "reward": {},
        "predictions": [{"horizon": 1, "text": prediction, "actual": observation, "score": 0.75}],
        "return_task": 0.5,
        "return_predictive": 0.75,
        "return_others": 0.0,
        "return_modulated": 0.875,
        "state_group": number,
        "state_group_size": 3,
        "grouping_state": "A shut drawer.",
        "advantage_state": advantage - 1,
        "advantage_outcome": 1.0,
        "advantage_estimate": advantage,
        "advantage": advantage,
        "tokens": [["Task\n", PROMPT, 0.0], [action, ACTION, -0.25], [prediction, PREDICTION, -2.5]],
        **others,
    }


def episode(iteration, group, member, won, goal):
    analysis = {
        "mode": "navigation_loop",
        "detail": "It walked about.",
        "critical_step": 1,
        "lesson": "Open what is closed.",
        "query": "closed drawer",
        "source": "model",
        "repaired": False,
    }
    return {
        "id": f"{iteration}/{group}/{member}",
        "iteration": iteration,
        "group": group,
        "member": member,
        "task_id": f"task-{iteration}-{group}",
        "task_type": "heat" if group else "look",
        "goal": goal,
        "stop_reason": "won" if won else "max_steps",
        "won": won,
        "reward": float(won),
        "replaced": False,
        "chosen_because": "navigation_loop" if group else None,
        "chosen_reason": None,
        "lessons": ["Open the <b>drawer</b> first."] if group else [],
        "initial_observation": "You are in a kitchen.",
        "analysis": None if won else analysis,
        "whitening": None,
        "turns": [
            turn(
                0, "go to pan 1", "On the pan 1, you see a mug 2 and a fork 3.", "On the pan 1, you see an egg 1.", -1.5
            ),
            turn(1, "open drawer 1", "The drawer 1 is open.", "The drawer 1 is open.", 2.0, valid=won),
        ],
    }


def along(values):
    return {"step": list(range(1, ITERATIONS + 1)), "values": values}


def measured(success):
    part = {"n": 20, "success": success, "interval": [success - 0.1, success + 0.1], "steps": 4.0}
    by_type = {"heat": {**part}, "look": {**part, "success": success / 2}}
    return {
        **part,
        "reward": success,
        "prediction": 0.5,
        "by_type": by_type,
        "task_split": {"tasks": 20, "split": "test", "digest": "ab"},
    }


def gained(difference, lost, won):
    return {
        "tasks": 20,
        "difference": difference,
        "interval": [difference - 0.03, difference + 0.03] if lost or won else [0.0, 0.0],
        "only_before": lost,
        "only_last": won,
    }


def run_data(name="first", after=0.75, goal="heat an egg", **config):
    """A run of a few iterations with two groups of two episodes in the first and the last."""
    climb, level = [number / ITERATIONS for number in range(ITERATIONS)], [1.0] * ITERATIONS
    numbers = {
        "success": climb,
        "entropy": level,
        "prediction_score": climb,
        "groups": level,
        "zero_variance_groups": level,
        "world_loss_share": [0.0] * ITERATIONS,  # every run logs it
    }
    numbers["reward"] = climb  # no partial credit
    played = [(iteration, group, member) for iteration in (1, ITERATIONS) for group in (0, 1) for member in (0, 1)]
    return {
        "name": name,
        "path": f"/runs/{name}",
        "method": "role_agent",
        "env_id": "RoleAgent/Toy-v0",
        "seed": 0,
        "state": "finished",
        "steps": [ITERATIONS, ITERATIONS],
        "seconds": 64.0,
        "imitation_seconds": 180.0,
        "config": {"seed": "0", "loss.kl": "0.0", **config},
        "differing": ["seed"],
        "warmstart": {"step": [10, 20], "values": {"loss": [2.0, 1.0]}},
        "training": along(numbers),
        "success_by_type": along({"heat": climb, "look": [None, *climb[1:]]}),
        "time": along({"generation": [2.0] * ITERATIONS, "update": [6.0] * ITERATIONS}),
        "modes": along({"navigation_loop": [float(n) for n in range(ITERATIONS)]}),
        "mode_failures": along({"navigation_loop": [1.0] * ITERATIONS}),
        "written_tasks": None,
        "revisions": None,
        "lessons": [
            {"lesson": lesson, "episodes": 8, "tasks": 3, "success": 0.5, "compared": 6}
            | {"success_with": 0.25, "success_without": None, "interval": None}
            for lesson in ("", "Open the <b>drawer</b> first.")
        ],
        "suite": {
            "all": {"4": {"tasks": 4, "solved": 4}, "8": {"tasks": 4, "solved": 2}},
            "navigation_loop": {
                "4": {"tasks": 3, "solved": 3, "forgotten": 0, "regained": 0},
                "8": {"tasks": 3, "solved": 1, "forgotten": 2, "regained": 0},
            },
        },
        "evaluations": {"before": measured(0.25), "after": measured(after)},
        "gain": {
            "until": "after",
            "all": gained(after - 0.25, 1, 11),
            "by_type": {"heat": gained(after - 0.25, 1, 11), "look": gained(0.0, 0, 0)},
        },
        "counters": {},
        "alarms": [{"name": "entropy_fell", "step": 3, "until": 5}],
        "idle": ["aiw is on, but no task was ever sampled from the failure library"],
        "episodes": [episode(*place, bool(place[2]), goal if place[1] else "look at a mug") for place in played],
        "episodes_recorded": 4 * ITERATIONS,
        "notes": [],
    }  # fmt: skip


# --- the document ---


def embedded(document):
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    return data


def test_a_document_holds_its_stories_unharmed_and_asks_nobody():
    reported = [run_data(goal=EVIL), run_data("second <b>")]
    document = render(reported)
    assert json.loads(embedded(document)) == {"live": "", "runs": reported, "groups": group_runs(reported)}
    assert EVIL not in document and "<b>" not in embedded(document)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', document)[1]
    assert "default-src &#x27;none&#x27;" in policy and "connect-src &#x27;none&#x27;" in policy
    assert "unsafe-inline" not in policy.partition("style-src")[0]
    # Outside of what the plotting library and the run say, no address is named that a browser would fetch.
    page = re.sub(r"<script>.*?</script>", "", document, flags=re.DOTALL).replace(embedded(document), "")
    assert not re.findall(r"(?:src|href|url\()\W*(?:https?:)?//", page)
    assert "connect-src &#x27;self&#x27;" in render(reported, live="data.json")


def test_numbers_that_are_none_and_broken_text_still_make_json():
    text = as_json([float("inf"), {"a": (float("nan"), 1.5)}, "\ud800 \u2028 <&>"])
    assert json.loads(text) == [None, {"a": [None, 1.5]}, "\ud800 \u2028 <&>"]
    assert text.isascii() and not set(text) & set("<&>")


def test_text_of_a_run_never_becomes_markup():
    sources = [
        file.read_text() for file in resources.files("roleagent.reports.web").iterdir() if file.name.endswith(".js")
    ]
    assert len(sources) > 3
    for source in sources:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", source)


# --- in a browser ---


class Reader:
    """Somebody with a browser."""

    def __init__(self, browser):
        self.browser = browser

    def open(self, address, width=1400):
        self.browser.get("about:blank")
        self.browser.get_log("browser")
        self.prefer("light")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.browser.get(address)
        self.until("document.documentElement.dataset.drawn == 'true'")
        return self

    def prefer(self, scheme):
        wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        media = {"features": [{"name": name, "value": value} for name, value in wishes.items()]}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def ask(self, script, *arguments):
        return self.browser.execute_script(f"return {script}", *arguments)

    def see(self, selector):
        """What is written in the elements that can be seen, without what is there for screen readers alone."""
        return self.ask("[...document.querySelectorAll(arguments[0])].map(node => node.innerText.trim())", selector)

    def click(self, selector, place=0):
        self.ask("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, place)

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()

    def choose(self, name, value):
        chosen = f"document.querySelector('select[name={name}]')"
        self.ask(f"void ({chosen}.value = arguments[0])", value)
        self.ask(f"{chosen}.dispatchEvent(new Event('change'))")

    def until(self, script):
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 30, 0.05).until(lambda browser: browser.execute_script(f"return {script}"), script)

    def complaints(self):
        """What the console holds against the page, and what the page fetched."""
        fetched = self.ask("performance.getEntriesByType('resource').map(entry => entry.name)")
        return [entry["message"] for entry in self.browser.get_log("browser")] + fetched


@pytest.fixture
def reader(chromium):
    return Reader(chromium)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Addresses of documents: of one run, of two, of a hostile one."""
    folder = tmp_path_factory.mktemp("pages")
    reported = {
        "one": [run_data()],
        "two": [run_data(), run_data("second", after=0.5, **{"loss.kl": "0.001"})],
        "hostile": [run_data(name=EVIL, goal=EVIL)],
    }
    hostile = reported["hostile"][0]
    hostile["modes"]["values"] = {EVIL: [1.0] * ITERATIONS}
    for card in hostile["episodes"]:
        card["turns"][0].update(observation=EVIL, action=EVIL, reply=EVIL, tokens=[[EVIL, ACTION, -1.0]])
        card["turns"][0]["predictions"][0].update(actual=EVIL, text=EVIL[1:])
        if card["analysis"]:
            card["analysis"].update(mode=EVIL, lesson=EVIL, detail=EVIL)
    for name, runs in reported.items():
        (folder / f"{name}.html").write_text(render(runs), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in reported}


@pytest.mark.parametrize("width", [1400, 400])
def test_it_fits_and_is_accessible(reader, pages, width):
    """In both themes nothing runs off the page, and axe finds nothing to hold against it, with cards and folds open."""
    reader.open(pages["two"], width)
    reader.click(".card-head")
    reader.click(".turn dl button")
    for folds in ("#evaluation details", ".chart:first-child details", ".card details"):
        reader.ask("document.querySelectorAll(arguments[0]).forEach(fold => { fold.open = true })", folds)
    reader.ask("document.querySelector('.plot').scrollIntoView()")
    reader.until("document.querySelectorAll('.plot .main-svg').length > 0")
    axe = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    reader.browser.execute_script(resources.files(axe).joinpath("axe.min.js").read_text(encoding="utf-8"))
    # Of a theme only colors depend, and they not on the width.
    for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]}))[: 2 if width == 1400 else 1]:
        reader.prefer(scheme)
        background = reader.ask("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (scheme == "dark")
        assert reader.ask("document.documentElement.scrollWidth") <= width  # a small window's innerWidth grows with it
        check = "axe.run(document, arguments[0]).then(found => arguments[1](found.violations))"
        violations = reader.browser.execute_async_script(check, {"resultTypes": ["violations"], **rules})
        assert not violations, [(found["id"], [node["html"] for node in found["nodes"]]) for found in violations]
    assert reader.complaints() == []


def test_a_run_is_told_at_the_top(reader, pages):
    reader.open(pages["one"])
    [head] = reader.see("#runs")
    for text in (
        "role_agent on RoleAgent/Toy-v0",
        "seed 0",
        "25.0",
        "75.0",
        "+50.0 points",
        "15.0 to 35.0",
        "8.0 s per iteration",
    ):
        assert text in head
    assert "imitation 3 min" in head and "4 min" in head
    assert "Is there a learning signal?" in reader.see(".group h3")
    assert "Are tools used well?" not in reader.see(".group h3")  # nothing has tools here
    assert "entropy fell" in head and "iterations 3 to 5" in head and "No effect: aiw is on" in head
    rows = reader.see("#evaluations tbody tr")
    assert [row.split()[0] for row in rows] == ["all", "heat", "look"]
    assert "+50.0 (+47.0 to +53.0)" in rows[1] and "1 : 11" in rows[1]  # over pairs of tasks, where they are known
    uses = "8\t3\t50.0\u202f%\t6\t25.0\u202f%\t–\t–"
    assert reader.see("#lessons tbody tr") == [f"any lesson\t{uses}", f"Open the <b>drawer</b> first.\t{uses}"]
    assert reader.see("#suite tbody tr") == [
        "all\t4\t100\u202f%\t50\u202f%",
        "navigation loop\t3\t100\u202f%\t33\u202f% −2",
    ]
    assert "12.5" in rows[2] and "0.0 (all tasks alike)" in rows[2] and "0 : 0" in rows[2]
    assert not reader.ask("document.getElementById('comparison').checkVisibility()")


def numbers_in(text):
    return [float(number) for number in re.findall(r"-?[\d.]+", text.replace("−", "-").replace("- ", "-"))]


def test_the_equations_of_a_turn_add_up_with_every_term(reader, tmp_path):
    """As with penalties, another weight of the outcome, a normalized process reward, and whitening over the batch."""
    run = run_data(**{"estimator.alpha": "0.5"})
    run["episodes"] = run["episodes"][:1]
    [card] = run["episodes"]
    first = turn(0, "look", "A pan.", "A mug.", 0.25, return_task=0.5, return_predictive=0.7546, return_others=-0.195)
    first |= {
        "return_modulated": 0.6823,
        "advantage_state": -0.75,
        "advantage_outcome": 2.0,
        "advantage_estimate": 0.25,
    }
    first |= {"rewards": {"task": 1.0, "tool": 0.5}, "reward": {"task": 1.0, "format_error": -0.1, "tool": 0.025}}
    second = turn(1, "look", "A pan.", "A mug.", -0.5, return_others=0.125, return_predictive=None)
    second |= {"return_modulated": None, "advantage_state": None, "advantage_outcome": 1.5, "advantage_estimate": 1.5}
    second |= {"advantage": 1.5}
    card |= {"turns": [first, second], "whitening": None}
    whitened = card | {"id": "1/0/9", "whitening": [2.0, 0.5], "turns": [second | {"advantage": -1.0}]}
    run["episodes"].append(whitened)
    (tmp_path / "page.html").write_text(render([run]), encoding="utf-8")
    reader.open((tmp_path / "page.html").as_uri())
    reader.ask("document.querySelectorAll('.card-head').forEach(head => head.click())")
    credits = reader.ask(
        "[...document.querySelectorAll('.credit')].map(credit => [...credit.querySelectorAll('.credit-row')]"
        ".map(row => [row.children[0].innerText, row.children[1].innerText]))"
    )
    predicted, plain, whitened = map(dict, credits)
    task, one, factor, others, total = numbers_in(predicted["Return"])
    assert (one, others) == (1, -0.195) and task * (1 + factor) + others == pytest.approx(total, abs=1e-3)
    [of_state], [outcome], [advantage] = (
        numbers_in(predicted[name]) for name in ("A state", "0.500 × A outcome", "Advantage")
    )
    assert of_state + outcome == pytest.approx(advantage)
    *terms, total = numbers_in(predicted["Reward"])
    assert len(terms) == 3 and sum(terms) == pytest.approx(total) and "tool +0.500" in predicted["Rewards given"]
    task, others, total = numbers_in(plain["Return"])  # without a prediction there is no factor
    assert task + others == total and plain["A outcome"] == plain["Advantage"]
    estimate, mean, deviation = numbers_in(whitened["Whitened"])
    assert [(estimate + mean) / deviation] == numbers_in(whitened["Advantage"])


def test_a_card_shows_what_was_predicted_what_came_and_the_credit(reader, pages):
    reader.open(pages["one"])
    reader.click(".card-head")
    [card] = [text for text in reader.see(".card") if "Turn 1" in text]
    assert reader.see(".card del") == ["a mug 2 and a fork 3"] and reader.see(".card ins") == ["an egg 1"]
    assert "0.75 alike" in card and "as predicted" in card  # the second prediction came true
    assert "0.500 × (1 + 0.75) → 0.875" in " ".join(reader.see(".credit")[0].split())
    assert "−2.50" in card and "+1.00" in card and "−1.50" in card
    assert "critical step" in reader.see(".turn")[1] and "critical step" not in reader.see(".turn")[0]
    assert "did nothing" in reader.see(".turn")[1] and "Open what is closed." in card and "navigation loop" in card
    width, x = reader.ask(
        "['width', 'x'].map(name => Number(document.querySelector('rect.negative').getAttribute(name)))"
    )
    assert width == pytest.approx(50) and x == pytest.approx(0)  # −2.5 is the largest
    reader.click(".token-fold summary")
    reader.until("document.querySelectorAll('.tokens li').length == 3")
    kinds = reader.ask("[...document.querySelectorAll('.tokens li')].map(token => [token.className, token.title])")
    assert [kind for kind, _ in kinds] == ["t-prompt", "t-action", "t-prediction unsure"]
    assert "log-probability −0.250" in kinds[1][1] and "probability 0.779" in kinds[1][1]
    reader.click(".turn dl button")
    rows = reader.see(".twins tbody tr")
    assert len(rows) == 2 and rows[0].startswith("this turn") and rows[1].startswith("member 1, turn 1")
    assert "1 more turn in episodes that are not in this report" in reader.see(".twins")[0]
    assert "A shut drawer." in reader.see(".twins")[0]


def test_episodes_are_found(reader, pages):
    count = "document.getElementById('count').textContent"
    reader.open(pages["one"])
    assert reader.ask(count).startswith("8 episodes of 8") and "8 of the 32" in reader.see("#episodes-lead")[0]
    assert reader.ask("document.getElementById('count').getAttribute('aria-live')") == "polite"
    for wanted, found in [
        ({"outcome": "won"}, 4),
        ({"type": "heat"}, 4),
        ({"mode": "navigation_loop", "iteration": "1"}, 2),
        ({"group": "1", "iteration": "8", "outcome": "max_steps"}, 1),
    ]:
        for name, value in wanted.items():
            reader.choose(name, value)
        assert len(reader.see(".card")) == found and reader.ask(count).startswith(f"{found} episode")
        reader.click("#filters button")
    for text, found in [("HEAT egg", 4), ("open what", 4), ("drawer 1 is open", 8), ("nowhere", 0), ("", 8)]:
        field = reader.browser.find_element("id", "search")
        field.clear()
        field.send_keys(text or " ")
        reader.until(f"{count}.startsWith('{found} episode')")
    reader.choose("sort", "oldest")
    assert "iteration 1," in reader.see(".card")[0]
    reader.choose("sort", "newest")
    assert f"iteration {ITERATIONS}," in reader.see(".card")[0]


def test_two_runs_are_told_apart(reader, pages):
    reader.open(pages["two"])
    rows = reader.see("#differences tbody tr")
    assert rows[0].startswith("all tasks") and "−25.0" in rows[0] and "75.0" in rows[0] and "50.0" in rows[0]
    assert rows[-1].split() == ["loss.kl", "0.0", "0.001"]
    assert [text for text in reader.see("#legend li") if text in ("first", "second")] == ["first", "second"]
    reader.ask("document.querySelector('.plot').scrollIntoView()")
    reader.until("document.querySelector('.plot path.js-line')")
    styles = "[...document.querySelector('.plot').querySelectorAll('path.js-line')].map(line => line.style)"
    strokes = reader.ask(f"{styles}.map(style => [style.stroke, style.strokeDasharray])")
    assert {bool(dash) for _, dash in strokes} == {True, False} and len({stroke for stroke, _ in strokes}) == 2
    assert len(reader.see(".card")) == 16
    reader.choose("run", "1")
    assert len(reader.see(".card")) == 8 and all("second" in text for text in reader.see(".card"))


@pytest.fixture(scope="module")
def ten_runs():
    """Three methods of three seeds, and a run of a fourth; folders have the same names, as each sweep has its own."""
    runs = []
    for place in range(10):
        method, seed = ("role_agent", "gigpo", "grpo", "rloo")[place // 3], place % 3
        config = {"method": method, "seed": str(seed), "run_dir": f"/sweeps/{method}/{seed}"}
        one = run_data(str(seed), after=0.5 + 0.1 * seed, **config)
        one |= {"method": method, "seed": seed, "path": f"/sweeps/{method}/{seed}"}
        one["training"]["values"]["success"] = [0.25 * seed] * ITERATIONS
        runs.append(one)
    return runs


def test_runs_are_grouped_by_what_differs(ten_runs):
    runs = copy.deepcopy(ten_runs)
    name_apart(runs)
    assert [run["name"] for run in runs[:4]] == ["role_agent/0", "role_agent/1", "role_agent/2", "gigpo/0"]
    assert group_runs(runs) == [
        {"name": "method=role_agent", "runs": [0, 1, 2], "seeds": [0, 1, 2]},
        {"name": "method=gigpo", "runs": [3, 4, 5], "seeds": [0, 1, 2]},
        {"name": "method=grpo", "runs": [6, 7, 8], "seeds": [0, 1, 2]},
        {"name": "method=rloo", "runs": [9], "seeds": [0]},
    ]
    [seeds] = group_runs(runs[:3])
    assert seeds["name"] == "role_agent on RoleAgent/Toy-v0"
    every = [{**run, "config": {**run["config"], "loss.kl": str(place)}} for place, run in enumerate(runs)]
    assert [group["name"] for group in group_runs(every)] == [run["name"] for run in runs]  # nothing to average
    runs[4]["config"]["loss.kl"] = "0.5"
    names = [group["name"] for group in group_runs(runs)]
    assert names[1:3] == ["method=gigpo, loss.kl=0.0", "method=gigpo, loss.kl=0.5"] and len(set(names)) == 5
    del runs[4]["config"]["loss.kl"]  # of another version
    assert len(group_runs(runs)) == 4


def test_hostile_text_stays_text(reader, pages):
    reader.open(pages["hostile"])
    reader.ask("document.querySelectorAll('.card-head').forEach(head => head.click())")
    reader.ask("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
    reader.ask("document.querySelectorAll('.plot').forEach(plot => plot.scrollIntoView())")
    reader.until("document.querySelectorAll('.plot .main-svg').length > 0")
    assert reader.ask("window.hacked") is None and reader.ask("document.querySelectorAll('main img').length") == 0
    shown = reader.ask("document.querySelector('main').textContent")
    assert shown.count(EVIL) > 8
    assert reader.complaints() == []
