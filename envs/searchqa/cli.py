"""``roleagent searchqa <verb>``: prepares question files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roleagent.commands import Parser, choose, complain, natural, out_folder, whole


def generate(arguments: Sequence[str]) -> int:
    """Write a generated world as published data: a corpus, and questions of every split."""
    from roleagent.envs.searchqa.data.world import PEOPLE, write_world
    from roleagent.envs.searchqa.data.world import generate as make

    parser = Parser(
        "roleagent searchqa generate",
        f"{generate.__doc__}\n\nNeeds nothing. corpus.jsonl and the questions have the form that Search-R1 publishes.",
        "roleagent searchqa generate --out qa\nroleagent searchqa generate --out qa --people 200 --seed 3",
    )
    parser.add_argument("--out", type=out_folder, required=True, metavar="DIR", help="where the four files go")
    parser.add_argument("--people", type=natural, default=PEOPLE, metavar="N", help="16 or more (default: %(default)s)")
    parser.add_argument("--seed", type=whole, default=0, help="of everything random (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        world = make(options.seed, options.people)
        write_world(world, options.out)
    except (ValueError, OSError) as error:
        return complain("roleagent searchqa generate", error)
    counts = ", ".join(f"{len(world.questions[part])} {part}" for part in ("train", "valid", "test"))
    print(
        f"{len(world.passages)} passages and questions ({counts}) in {options.out}; "
        f"play them with SEARCHQA_DATA={options.out}"
    )
    return 0


VERBS: dict[str, Callable[[Sequence[str]], int]] = {"generate": generate}


def main(arguments: Sequence[str]) -> int:
    """The group of verbs; returns the exit status."""
    return choose("roleagent searchqa", VERBS, arguments, "Questions to search for.")


__all__ = ["VERBS", "main"]
