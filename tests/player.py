"""What a good model would say: the environments' own experts, who know no more than a conversation tells them.

A player is a reply of the fake server (``fake_openai``): from a request's body and its number to an answer. It keeps
nothing between requests, so that a question which is put twice has the same answer.
"""

import re

import numpy as np

from roleagent.envs.alfworld.expert import SearchExpert
from roleagent.envs.searchqa.expert import ResearchExpert
from roleagent.envs.toy.expert import ToyExpert
from roleagent.envs.webshop.expert import ShoppingExpert

LESSON = "I looked around all the time. Next time I go to where things are kept, and open what is closed."


def understood(first):
    """Expert and goal for a first observation."""
    if found := re.search(r"Instruction: \[SEP\] (.*?) \[SEP\]", first):
        return ShoppingExpert(), found[1]
    if found := re.search(r"Your task is to: (.*?)\.?$", first, re.MULTILINE):
        return (SearchExpert(np.random.default_rng(0)) if "TextWorld" in first else ToyExpert()), found[1]
    return ResearchExpert(), first.splitlines()[0]


def seen(message):
    """The observation in a message of the user."""
    return message["content"].removeprefix("Observation: ").partition("\n\nPossible commands:")[0]


def next_command(messages):
    """What the expert does now."""
    users = [message for message in messages if message["role"] == "user"]
    said = [message["content"].rpartition("Action: ")[2] for message in messages if message["role"] == "assistant"]
    expert, goal = understood(seen(users[0]))
    expert.reset(goal, seen(users[0]))
    for command, user in zip(said, users[1:], strict=True):
        expert.act()
        expert.observe(command, seen(user))
    return expert.act()


def player(body, number=0):
    """Plays as the expert does, and says it in the form that is asked for."""
    messages = body["messages"]
    if messages[0]["content"].startswith("You have tried a task"):
        return LESSON
    command = next_command(messages)
    return f"Thought: that is next.\nAction: {command}" if "Action:" in messages[0]["content"] else command


def learner(body, number=0):
    """Does something useless until it reads its own lesson."""
    reported = body["messages"][0]["content"]
    if "Action:" in reported and LESSON not in reported:
        return "Thought: I look around.\nAction: look"
    return player(body)
