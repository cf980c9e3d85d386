"""Prompts in tokens: what grows, what is written anew, and that a chat template is followed to the letter."""

import re

import pytest
from tiny import TEMPLATE, Script, qwen
from tokenizers.processors import TemplateProcessing

from roleagent.agents.builders import EnvSplit
from roleagent.agents.rendering import (
    STYLES,
    PlainRenderer,
    Transcript,
    Window,
    renderer_of,
)
from roleagent.config import load
from roleagent.env_card import UNKNOWN, instructions_of, registered
from roleagent.envs.tools.env import ToolEnv
from roleagent.types import Completion

GOAL = "put a hot egg on the table"
FIRST = f"You are in a kitchen. There are: cupboard 1, table. Your task is to: {GOAL}."
STEPS = (
    ("go to cupboard 1", "You arrive at cupboard 1. It is closed."),
    ("open cupboard 1", "You open the cupboard 1. You see egg."),
    ("take egg from cupboard 1", "You take the egg."),
    ("go to table", "You arrive at table."),
)


@pytest.fixture(scope="module", params=["plain", "chat"])
def policy(request):
    return qwen(chat_template=TEMPLATE if request.param == "chat" else None)


@pytest.fixture(scope="module")
def chat():
    return qwen(chat_template=TEMPLATE)


def said(policy, text, ended=True):
    ids = [*policy.encode(text), *([policy.eos_id] if ended else [])]
    return Completion(tuple(ids), (0.0,) * len(ids), "stop" if ended else "length")


def info(*admissible):
    return {"goal": GOAL, "admissible_actions": list(admissible)}


def play(policy, conversation, horizon, ended=True):
    """Takes all steps; yields (prompt, reply, follow-up prompt, prediction)."""
    for command, observation in STEPS:
        prompt = conversation.action_prompt()
        reply = said(policy, f"<action>{command}</action>", ended)
        stream, last, asked, answer = (*prompt, *reply.token_ids), reply.token_ids, None, None
        if horizon:
            asked = conversation.prediction_prompt(reply)
            answer = said(policy, f'<prediction h="1">{observation}</prediction>', ended)
            stream, last = (*asked, *answer.token_ids), answer.token_ids
        yield prompt, reply, asked, answer
        conversation.advance(stream, last, command, observation, info("look"))


def spell(policy, ids):
    return policy.tokenizer.decode(list(ids), skip_special_tokens=False)


@pytest.mark.parametrize("horizon", [0, 1])
def test_a_transcript_only_grows(policy, horizon):
    """Every prompt begins with all that was read and said before, token for token."""
    conversation = Transcript(renderer_of(policy), horizon, "none", FIRST, info())
    before = ()
    for prompt, reply, asked, answer in play(policy, conversation, horizon):
        assert prompt[: len(before)] == before and len(prompt) > len(before)
        before = (*prompt, *reply.token_ids)
        if asked is not None:
            assert asked[: len(before)] == before and len(asked) > len(before)
            before = (*asked, *answer.token_ids)
    text = spell(policy, conversation.action_prompt())
    assert all(command in text and observation in text for command, observation in STEPS)
    assert text.count(GOAL) == 1


def test_a_reply_stands_in_the_transcript_as_it_was_sampled(policy):
    """Also where the tokenizer would have cut the same text into other tokens."""
    conversation = Transcript(renderer_of(policy), 0, "none", FIRST, info())
    odd = tuple(token for letter in "<action>table</action>" for token in policy.encode(letter))
    assert odd != tuple(policy.encode("<action>table</action>"))
    prompt = conversation.action_prompt()
    conversation.advance((*prompt, *odd), odd, "table", "Nothing happens.", info())
    assert conversation.action_prompt()[len(prompt) : len(prompt) + len(odd)] == odd


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "cut off"])
@pytest.mark.parametrize("horizon", [0, 1])
def test_the_transcript_is_what_the_template_would_render(chat, horizon, ended):
    """A reply that was cut off is closed by the template's own end, one that ended itself is not closed twice."""
    renderer = renderer_of(chat)
    guide = instructions_of("RoleAgent/Toy-v0")
    conversation = Transcript(renderer, horizon, "none", FIRST, info(), guide=guide)
    messages = [{"role": "user", "content": f"{renderer.instructions(horizon, 'none', guide.rules, '')}\n\n{FIRST}"}]

    def rendered():
        return chat.encode(chat.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    for (prompt, reply, asked, answer), (_, observation) in zip(
        play(chat, conversation, horizon, ended), STEPS, strict=True
    ):
        assert list(prompt) == rendered()
        messages.append({"role": "assistant", "content": chat.decode(reply.token_ids)})
        if asked is not None:
            messages.append({"role": "user", "content": renderer.prediction_request(horizon)})
            assert list(asked) == rendered()
            messages.append({"role": "assistant", "content": chat.decode(answer.token_ids)})
        messages.append({"role": "user", "content": observation})
    assert list(conversation.action_prompt()) == rendered()


@pytest.mark.parametrize("filter", ["lower", "upper", "capitalize", "replace('Reply', '')"])
def test_a_template_that_rewrites_messages_is_refused(filter):
    policy = qwen(chat_template=TEMPLATE.replace("message.content", f"message.content | {filter}"))
    with pytest.raises(ValueError, match="rewrites or repeats messages") as caught:
        renderer_of(policy)
    assert "\n" not in str(caught.value)


# --- window -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", [0, 1, 2, 10])
def test_a_window_shows_the_task_the_last_steps_and_what_can_be_done(policy, history):
    conversation = Window(renderer_of(policy), 0, "none", FIRST, info("look", "help"), history)
    seen = [(None, FIRST), *STEPS]
    for number, (command, observation) in enumerate(seen):
        if command is not None:
            admissible = ("help", f"do {number}", f"undo {number}")
            conversation.advance((), (), command, observation, info(*admissible))
        text = spell(policy, conversation.action_prompt())
        assert GOAL in text and observation in text
        shown = range(max(0, number - history), number)
        for past in range(number):
            reported = seen[past + 1][0] in text.replace(observation, "").replace(GOAL, "")
            assert reported == (past in shown)
        assert "\nhelp\n" not in text
        if command is not None:
            assert f"\ndo {number}\nundo {number}" in text
            assert f"\ndo {number - 1}\n" not in text


# --- instructions -----------------------------------------------------------------------------------------------------

# Environments of commands; those of tools take calls.
WORLDS = sorted(
    card.env_id
    for card in registered()
    if card.expert and not card.extra and not issubclass(card.load("entry_point"), ToolEnv)
)
DATA = {"RoleAgent/ALFWorld-v0": "{data_dir: generated, size: tiny, max_steps: 6}"}
DATA |= dict.fromkeys(("RoleAgent/WebShop-v0", "RoleAgent/SearchQA-v0"), "{data_dir: generated, max_steps: 4}")


def echo(prompt):
    """A reply that copies the first form of a command that stands as it is: a placeholder in capitals is no command."""
    bracketed = re.search(r"\w+\[[^\[\]\n]+\]", prompt)
    lines = prompt.partition("Commands:\n")[2].splitlines()
    forms = [form.partition(" – ")[0] for line in lines for form in line.split(" · ")]
    command = bracketed[0] if bracketed else next((form for form in forms if form and form == form.lower()), "")
    thought = "<think>I copy.</think>" if "<think>" in prompt else ""
    return f"{thought}<action>{command}</action>"


@pytest.fixture
def world(request, monkeypatch):
    """The split of an environment, with generated data where it has data."""
    env_id, style, think = request.param
    kwargs = DATA.get(env_id, "{max_steps: 4}")
    options = [f"env.id={env_id}", f"env.kwargs={kwargs}", f"prompt.style={style}", f"prompt.think={think}"]
    options += ["wia=off", "rollout.action_tokens=200"]
    return EnvSplit.open(load(overrides=options), "train", 1)


EVERYWHERE = pytest.mark.parametrize(
    "world",
    [(env_id, style, think) for env_id in WORLDS for style in STYLES for think in ("none", "required")],
    indirect=True,
)


@EVERYWHERE
def test_a_model_that_has_never_seen_the_environment_acts_in_every_turn(world):
    """The first prompt and the last one name the forms of all commands."""
    policy = Script(lambda prompt, slot: echo(prompt), context=65536, chat_template=TEMPLATE)
    rollout = world.rollout(policy)
    [[trajectory]] = [group.trajectories for group in rollout.play(world.task_split.task_ids, 1, 1.0)]
    assert trajectory.stop_reason == "max_steps" and len(trajectory.turns) == world.base.unwrapped.max_steps
    assert all(turn.info["valid_action"] for turn in trajectory.turns), [turn.action for turn in trajectory.turns]
    for prompt in (policy.prompts[0], policy.prompts[-1]):
        assert prompt.count(instructions_of(world.base).rules) == 1


@pytest.mark.parametrize("style", STYLES.values())
@pytest.mark.parametrize("env_id", ["RoleAgent/WebShop-v0", "Somebody/Else-v0"])
def test_instructions_change_no_token_of_a_policy_that_is_trained_to_know(style, env_id):
    policy = qwen()
    plain, guided = (
        style(renderer_of(policy), 0, "none", FIRST, info("look"), 2, guide)
        for guide in (UNKNOWN, instructions_of(env_id))
    )
    for prompts in zip(*(play(policy, conversation, 0) for conversation in (plain, guided)), strict=True):
        assert prompts[0] == prompts[1]
    assert "Commands" not in spell(policy, plain.action_prompt()) or style is Window


def test_plain_prompts_begin_as_the_tokenizer_begins_texts():
    tokenizer = (policy := Script(lambda prompt, slot: "")).tokenizer
    assert PlainRenderer(policy).first_message("look") == tokenizer.encode("look\n")
    tokenizer.bos_token, begin = tokenizer.eos_token, tokenizer.eos_token_id
    pair = (tokenizer.bos_token, begin)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{pair[0]} $A", special_tokens=[pair])
    renderer = PlainRenderer(policy)
    assert renderer.first_message("look") == tokenizer.encode("look\n") and tokenizer.encode("look")[0] == begin
    assert begin not in renderer.next_message("open it", [])
