"""Tools of MCP servers (Model Context Protocol): ``tools="mcp:npx -y some-server"`` or ``tools="mcp:https://…"``.

One background thread with an event loop holds all sessions. Each episode has a session of its own, so that the
episodes of a group begin alike; a session in which an episode has only read serves the next one. Only tools that
declare ``readOnlyHint`` are used unless the user allows others: a policy in training explores.
"""

from roleagent.envs.tools.mcp.client import MCPClient, MCPError, MCPTool, load_tools

__all__ = ["MCPClient", "MCPError", "MCPTool", "load_tools"]
