"""An MCP server in twenty lines, and an agent that calls its tool: `pip install 'roleagent[mcp]'`."""

import argparse
import shlex
import sys
from typing import Literal

import gymnasium
from mcp.server.mcpserver import MCPServer  # SDK 2; in SDK 1 it is mcp.server.fastmcp.FastMCP
from mcp.types import ToolAnnotations

from roleagent.envs.tools.calls.command import answer_command, call_command
from roleagent.tools import Call

server = MCPServer("shop")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))  # a tool without this hint needs allow=["stock"]
def stock(item: Literal["kettle", "lamp", "radio"]) -> int:
    """Returns how many of an item there are."""
    return {"kettle": 4, "lamp": 25, "radio": 6}[item]


def agent(prompt, observation):
    """Calls the tool for the item that the task names, and answers with the result. A model would do that."""
    if observation != prompt:
        return answer_command(observation)
    return call_command([Call("stock", {"item": prompt.split()[2]})])


def main():
    """Plays a task with the tools of the server, which runs as a process of its own."""
    command = shlex.join([sys.executable, __file__, "--serve"])
    tasks = [{"id": "lamp", "prompt": "Of the lamp there are how many?", "answer": 25}]
    env = gymnasium.make("RoleAgent/ToolEnv-v0", tools=f"mcp:{command}", tasks=tasks, split="all")
    prompt, info = env.reset()
    print("tools:", *(tool["function"]["name"] for tool in info["tools"]))
    observation, over = prompt, False
    while not over:
        action = agent(prompt, observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
        print(f"{action} → {observation}")
    print(f"reward {float(reward):.0f}")
    env.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="be the server, over standard input and output")
    server.run() if parser.parse_args().serve else main()
