"""An MCP server for tests: ``python mcp_server.py [FILE]`` serves over stdio; FILE counts its starts."""

import os
import sys
from pathlib import Path

import anyio
from mcp.types import ToolAnnotations

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # SDK 1.x
    from mcp.server.fastmcp import FastMCP as MCPServer

# The SDK renamed the hints' fields, not their names in the protocol.
READS = ToolAnnotations.model_validate({"readOnlyHint": True, "openWorldHint": False})


def build(name="shelf", die=lambda: os._exit(1), clears=False):
    """A server with a shelf that it keeps in memory, a tool that ends it, and one that clears the shelf if wanted."""
    server, shelf = MCPServer(name), []

    @server.tool(annotations=READS)
    def add(a: int, b: int) -> str:
        """Adds two numbers."""
        return str(a + b)

    @server.tool(annotations=READS)
    def look() -> str:
        """Lists what lies on the shelf."""
        return ", ".join(shelf) or "empty"

    @server.tool()
    def put(thing: str) -> str:
        """Puts a thing on the shelf."""
        shelf.append(thing)
        return "done"

    @server.tool(annotations=READS)
    async def misbehave(how: str) -> str:
        """Hangs, dies, raises, or says too much."""
        if how == "hang":
            await anyio.sleep(3600)
        if how == "die":
            die()
        if how == "raise":
            raise ValueError("it does not work")
        return "x" * 3_000_000 if how == "much" else how

    if clears:

        @server.tool()
        def clear() -> str:
            """Clears the shelf, unless something sticks to it."""
            if "glue" in shelf:
                raise ValueError("it sticks")
            shelf.clear()
            return "done"

    return server


if __name__ == "__main__":
    if sys.argv[1:]:
        with Path(sys.argv[1]).open("a", encoding="utf-8") as starts:
            starts.write(f"{os.getpid()}\n")
    build().run()
