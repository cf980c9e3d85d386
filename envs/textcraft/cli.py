"""``roleagent textcraft <verb>``: prepares recipe files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roleagent.commands import Parser, choose, complain, out_folder, whole


def generate(arguments: Sequence[str]) -> int:
    """Write generated recipes as recipe files."""
    from roleagent.envs.textcraft.data.generate import write_recipes

    parser = Parser(
        "roleagent textcraft generate",
        f"{generate.__doc__}\n\nNeeds nothing. A file is one recipe in Minecraft's format.",
        "roleagent textcraft generate --out recipes\nroleagent textcraft generate --out recipes --seed 3",
    )
    parser.add_argument("--out", type=out_folder, required=True, metavar="DIR", help="where the files go")
    parser.add_argument("--seed", type=whole, default=0, help="of all numbers in the recipes (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        count = write_recipes(options.out, options.seed)
    except OSError as error:
        return complain("roleagent textcraft generate", error)
    print(f"{count} recipes in {options.out}; play them with TEXTCRAFT_DATA={options.out}")
    return 0


VERBS: dict[str, Callable[[Sequence[str]], int]] = {"generate": generate}


def main(arguments: Sequence[str]) -> int:
    """The group of verbs; returns the exit status."""
    return choose("roleagent textcraft", VERBS, arguments, "Recipes to craft by.")


__all__ = ["VERBS", "main"]
