"""A user's prompts: a file of texts, and a style of their own."""

import pytest
from programs import ROOT
from tiny import TEMPLATE, qwen

from roleagent.agents.analysts.prompts import AnalystPrompts
from roleagent.agents.prompt_templates import read_templates
from roleagent.agents.rendering import Transcript, Window, renderer_of
from roleagent.config import ConfigError, load
from roleagent.env_card import Instructions
from roleagent.learners.run.conflicts import check_learning

FILE = """
instructions: "RULES {rules} FORM {form}"
first_turn: "GOAL {task} SEE {observation} CAN {commands}"
later_turn: "PAST {history} N {steps} NOW {observation} {{json}}"
prediction: "NEXT {horizon}: {form}"
reflection: "WHY? {types}"
selection: "PICK {most}"
verdict: "GOOD?"
revisions: ["I go back."]
"""
INFO = {"goal": "boil egg", "admissible_actions": ["look", "take egg"]}


@pytest.fixture
def templates(tmp_path):
    (tmp_path / "mine.yaml").write_text(FILE)
    return read_templates(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize("style", [Transcript, Window])
def test_the_prompt_of_every_turn_is_the_users(style, templates):
    policy = qwen(chat_template=TEMPLATE)
    renderer = renderer_of(policy, True, templates)
    guide = Instructions("go, take", form="<action>")
    talk = style(renderer, 2, "none", "A pan.", INFO, 1, guide)

    def prompt():
        return policy.tokenizer.decode(list(talk.action_prompt()))

    assert "RULES go, take FORM <action>" in prompt()
    assert "GOAL boil egg SEE A pan. CAN look\ntake egg" in prompt()
    reply = policy.encode("<action>look</action>")
    talk.advance((*talk.action_prompt(), *reply), reply, "look", "An egg.", INFO)
    past = "A pan.\n> look N 1" if style is Window else " N "
    assert f"PAST {past} NOW An egg. {{json}}" in prompt()
    assert "NEXT 2: <prediction" in renderer.prediction_request(2)


def test_the_questions_of_the_analyst_are_the_users(templates):
    prompts = AnalystPrompts(len, 10**6, 10**6, templates=templates, most=3)
    assert prompts.instructions("RoleAgent/Toy-v0").startswith("WHY? - ")
    assert templates.revisions == ("I go back.",) and templates.fill("selection", most=3) == "PICK 3"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("first_turn: 'GOAL {task}'", "first_turn lacks {observation}"),
        ("first_turn: '{observation} {goal}'", "names {goal}; it may name {observation}, {task}, {commands}"),
        ("first_turn: '{observation!r}'", "first_turn names {observation}; it may name"),
        ("later_turn: '{observation'", "later_turn is no template"),
        ("verdict: '{step}'", "verdict names {step}; it may name no placeholder"),
        ("frist_turn: x", "has the unknown key 'frist_turn': there are instructions, first_turn"),
        ("first_turn: 3", "first_turn must be a text, not 3"),
        ("revisions: no", "revisions must be a list of texts"),
        ("- a", "must hold texts under the keys"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_wrong_file_is_one_line(text, words, tmp_path):
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        check_learning(load(overrides=[f"prompt.templates={tmp_path}/wrong.yaml"]))
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ("diary", "prompt.style must be one of transcript, window or module:Class, not 'diary'"),
        ("fractions:Fraction", "prompt.style=fractions:Fraction is no class derived from"),
        ("roleagent.agents.rendering:Conversation", "has no _open"),
        ("no_such_module:Style", "cannot load 'no_such_module:Style'"),
    ],
)
def test_a_wrong_style_is_one_line(style, words):
    with pytest.raises(ConfigError) as caught:
        check_learning(load(overrides=[f"prompt.style={style}"]))
    assert words in str(caught.value)


def test_a_style_of_ones_own_is_refused_or_taken_before_anything_is_built(monkeypatch):
    monkeypatch.chdir(ROOT)
    check_learning(load(overrides=["prompt.style=examples.methods.commands_style:Commands"]))
