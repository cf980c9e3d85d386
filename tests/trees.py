"""Search trees of the toy kitchen made by hand: paths of commands, played in the world."""

from functools import partial

from tiny import qwen, world_of

from roleagent.agents.builders import make_wrapped
from roleagent.envs.pool import EnvPool
from roleagent.learners.agent_r.search import Node, Tree
from roleagent.types import Task

SETTINGS = ("method=agent_r", "rollout.action_tokens=80", "policy.context=2000", "curriculum.analyst=rule")


def kitchen(*overrides, context=2000):
    """A split of the kitchen as Agent-R plays it, and a policy."""
    return world_of(*SETTINGS, *overrides), qwen(context=context)


def note(text="I look again."):
    return f"revise[{text}]"


def grow(split, policy, task_id, paths):
    """The tree of some paths, each a list of commands; equal beginnings are the same nodes."""
    rollout = split.rollout(policy)
    pool = EnvPool(partial(make_wrapped, split.config, "train", 0))
    first = pool.reset(0, task_id)
    tree = Tree(Task.of("RoleAgent/Toy-v0", task_id, first.info), Node(observation=first.observation, info=first.info))
    for path in paths:
        node, conversation = tree.root, rollout.open(first.observation, first.info)
        pool.reset(0, task_id)
        for place, command in enumerate(path, start=1):
            text, prompt = rollout.reader.write(command, policy.literal), conversation.action_prompt()
            reply = rollout.text_reply(text, rollout.action_stops)
            found = pool.step(0, text)
            child = next((one for one in node.children if one.command == command), None)
            if child is None:
                child = Node(parent=node, command=command, reply=text, completion=reply, prompt_ids=prompt)
                child.observation, child.info, child.reward = found.observation, found.info, found.reward
                child.outcome = node.outcome + found.info["rewards"].get("task", 0.0)
                child.terminated, child.truncated = found.terminated, found.truncated
                over = found.terminated or found.truncated
                child.stop_reason = ("won" if found.info["won"] else "max_steps") if over else ""
                tree.add(child)
            if place == len(path):
                child.stop_reason = child.stop_reason or "depth"
                child.back_up()
            conversation.advance((*prompt, *reply.token_ids), reply.token_ids, command, found.observation, found.info)
            node = child
    return tree
