"""Play an environment yourself in a terminal, with the observations of an agent.

While you play, ? lists what can be done, hint asks an expert who sees what you see, goal repeats the task, and quit
leaves; none of them costs a step. A command that cannot be carried out but is near one that can is not played at once:
y plays what was probably meant, the same line again what you typed.

examples:
  a household task, in small rooms; in official games
      roleagent play ALFWorld --env-arg size=tiny
      roleagent play ALFWorld --env-arg data_dir=~/alfworld --env-arg split=valid_seen
  a shop; questions for a search engine; a kitchen; your tools
      roleagent play WebShop
      roleagent play SearchQA
      roleagent play Toy
      roleagent play ToolEnv --env-arg tools=my_tools.py --env-arg tasks=tasks.jsonl
  which tasks there are, and one of them
      roleagent play ALFWorld --list heat
      roleagent play Toy --task-id bring-egg-table-1
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from roleagent.commands import Parser, complain, pairs, printable, whole
from roleagent.env_card import card_of
from roleagent.envs.registry import environment_id, make_env
from roleagent.envs.retrieval.passages import RetrievalError
from roleagent.envs.tools.calls.command import read_command
from roleagent.envs.wrappers import ToolReader, ToolTags
from roleagent.reports.play_hints import Guide, columns, meant
from roleagent.slow_notice import waiting

WORDS = ("?", "hint", "goal", "quit")
"""What a player can say that is no command of the game."""


def main(arguments: Sequence[str]) -> int:
    """The verb ``play``; returns the exit status."""
    parser = Parser("roleagent play", __doc__)
    parser.add_argument("env", metavar="ENV", help="a Gymnasium id, e.g. RoleAgent/ALFWorld-v0, or its name: ALFWorld")
    parser.add_argument("--task-id", metavar="ID", help="the task (default: one at random)")
    parser.add_argument("--seed", type=whole, help="of the random choice")
    parser.add_argument(
        "--list", nargs="?", const="", metavar="TEXT", help="print the ids of all tasks (that contain TEXT), and stop"
    )
    parser.add_argument(
        "--env-arg",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="argument of the environment, e.g. split=train",
    )
    options = parser.parse_args(arguments)
    task = {"task_id": options.task_id} if options.task_id else None
    try:
        with waiting(f"{options.env}: its games, products or passages"):
            env = make_env(environment_id(options.env), pairs(options.env_arg))
            if env.has_wrapper_attr("tools"):
                env = ToolTags(env, format="python", answer="plain", horizon=0)  # a person types name(key=value)
            task_split = getattr(env.unwrapped, "task_split", None)
            if task_split is None:
                raise ValueError(f"{options.env} has no task_split: it is no environment of RoleAgent's kind")
            if options.list is None:
                observation, info = env.reset(seed=options.seed, options=task)
        if options.list is not None:
            return print_tasks(task_split, options.list)
        return Game(env, observation, info, np.random.default_rng(options.seed)).play()
    except (gymnasium.error.Error, TypeError, ValueError, OSError, RetrievalError) as error:
        return complain("roleagent play", error)


def print_tasks(task_split: Any, text: str) -> int:
    """Prints the task ids of a split that contain ``text``, one per line; a description goes to stderr."""
    found = [task_id for task_id in task_split.task_ids if text.casefold() in task_id.casefold()]
    kinds = Counter(re.split(r"[-/]", task_id)[0] for task_id in found)
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(8)) or "none"
    print(
        f"{len(found)} of {len(task_split)} tasks of {task_split.env_id}, split {task_split.split}: {named}",
        file=sys.stderr,
    )
    print("\n".join(found))
    return 0 if found else 2


class Game:
    """One game of a person.

    Args:
        env: the environment, after ``reset``.
        observation, info: what ``reset`` returned.
        rng: of the expert whom ``hint`` asks.
    """

    def __init__(self, env: Any, observation: str, info: dict[str, Any], rng: np.random.Generator):
        self._env, self._observation, self._info = env, observation, info
        self._guide = Guide(env, observation, info, rng)
        self._forms = card_of(env).load("command_forms") or ()
        self._reader: ToolReader | None = env.reader if isinstance(env, ToolTags) else None
        self._limit: int | None = getattr(env.unwrapped, "max_steps", None)
        self._steps, self._reward, self._hints = 0, 0.0, 0
        self._offered: tuple[str, str] | None = None  # what was typed, and what was probably meant
        self._at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._width = min(shutil.get_terminal_size().columns, 100)

    def play(self) -> int:
        """Until the game or the input ends; returns the exit status."""
        self._introduce()
        self._show(self._observation)
        with _completing(lambda: [*WORDS, *self._listed()], self._at_terminal):
            while True:
                line = self._ask()
                if line is None or line.casefold() in ("quit", "exit", "q"):
                    print(f"left {self._so_far()}")
                    return 0
                command = self._understand(line)
                if command is not None and self._play(command):
                    return 0

    def _introduce(self) -> None:
        info = self._info
        left = f"You have {self._limit} steps. " if self._limit else ""
        forms = " or ".join(form.example for form in self._forms)
        commands = f"a command, e.g. {forms}" if forms else "a command"
        commands = "a call, name(key=value), or the answer; or a command of JSON" if self._reader else commands
        lines = [
            f"{info['task_id']} ({info['task_type']}, {info['split']})",
            f"Your task: {info['goal']}",
            f"{left}Type {commands}; what comes back is what an agent would read.",
            "?  what can be done     hint  ask an expert     goal  the task again     quit",
        ]
        if self._at_terminal:
            lines.append("Tab completes a command, and the arrow keys bring back earlier ones.")
        self._show("\n".join([*lines, ""]))

    def _ask(self) -> str | None:
        """The player's input, without blanks around it; None at the end of the input."""
        left = f", {self._limit - self._steps} steps left" if self._limit else f", step {self._steps + 1}"
        try:
            line = input(f"[reward {self._reward:g}{left}] > ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return None
        if not self._at_terminal:
            print(line)  # a transcript without the commands would be hard to read
        return line

    def _understand(self, line: str) -> str | None:
        """The command to be played; None where the line was about something else."""
        offered, self._offered = self._offered, None
        if not line:
            print("(say something: ? lists what can be done, quit leaves)")
        elif line == "?" or (line.casefold() == "help" and "help" not in self._listed()):
            self._list()
        elif line.casefold() == "hint":
            self._hint()
        elif line.casefold() == "goal":
            print(self._info["goal"])
        elif line.casefold() in ("y", "yes"):
            if offered:
                return offered[1]
            print("(nothing was asked)")
        elif offered and line == offered[0]:
            return line
        elif form := next((form for form in self._forms if line.casefold() in (form.verb, f"{form.verb}[]")), None):
            print(f"not played: it {form.description}, but needs words, e.g. {form.example}")
        elif (near := meant(line, self._listed(), self._forms)) is not None:
            self._offered = line, near
            print(f"not played: did you mean {near!r}?  (y plays that, the same line again what you typed)")
        else:
            return line
        return None

    def _play(self, command: str) -> bool:
        """One step; whether the game is over."""
        if self._reader and not read_command(command).error:  # the environment's own form, as the documents show it
            command = self._reader.write(command)
        self._observation, reward, terminated, truncated, self._info = self._env.step(command)
        self._steps, self._reward = self._steps + 1, self._reward + float(reward)
        self._guide.observe(self._reader.read(command).command if self._reader else command, self._observation)
        self._show(self._observation)
        if not self._info.get("valid_action", True):
            print("(that did nothing, and cost a step; ? lists what can be done)")
        if terminated or truncated:
            self._conclude()
        return terminated or truncated

    def _so_far(self) -> str:
        return f"after {self._steps} step{'s' if self._steps != 1 else ''}, reward {self._reward:g}"

    def _conclude(self) -> None:
        won = "won" if self._info["won"] else "not solved"
        words = [f"{won} {self._so_far()}"]
        words += [f"{name} {self._info[name]:.2f}" for name in ("score", "f1") if name in self._info]
        if self._hints:
            words.append(f"{self._hints} hint{'s' if self._hints > 1 else ''}")
        print("\n" + ", ".join(words))
        if known := self._guide.walkthrough():
            print(f"Somebody who knows everything needs {len(known)}: {'; '.join(map(self._typed, known))}")

    def _listed(self) -> Sequence[str]:
        return self._info.get("admissible_actions") or ()

    def _typed(self, command: str) -> str:
        """A command as the player types it."""
        return self._reader.write(command) if self._reader else command

    def _list(self) -> None:
        for form in self._forms:
            print(f"{form.verb}{'[…]' if form.brackets else ' …'}  {form.description}, e.g. {form.example}")
        for tool in self._reader.tools if self._reader else ():
            named = ", ".join(tool.parameters.get("properties", {}))
            print(f"{tool.name}({named})  {tool.description.partition(chr(10))[0]}")
        listed = self._listed()
        if listed:
            print(columns(listed, self._width) if self._at_terminal else "\n".join(listed))
        elif not self._forms and not self._reader:
            print("this environment does not list its commands")

    def _hint(self) -> None:
        command, source = self._guide.advise()
        command = self._typed(command)
        self._hints += bool(command)
        print(f"{command}  ({source})" if command else f"no hint: {source}")

    def _show(self, text: str) -> None:
        """What there is to read; on a terminal its lines are broken between words."""
        if self._at_terminal:
            # A shop's texts are not to move the cursor; what stands in columns stays there.
            lines = [
                line if line.isprintable() and len(line) <= self._width else printable(line)
                for line in text.split("\n")
            ]
            text = "\n".join(textwrap.fill(line, self._width, break_on_hyphens=False) for line in lines)
        print(text)


@contextlib.contextmanager
def _completing(candidates: Any, at_terminal: bool) -> Any:
    """Tab completes whole commands, and the arrow keys bring back earlier ones, where Python has readline."""
    try:
        if not at_terminal:
            raise ImportError
        import readline
    except ImportError:
        yield
        return

    def complete(text: str, state: int) -> str | None:
        matching = [name for name in candidates() if name.casefold().startswith(text.casefold())]
        return matching[state] if state < len(matching) else None

    before = readline.get_completer(), readline.get_completer_delims()
    readline.set_completer(complete)
    readline.set_completer_delims("\n")  # commands have blanks in them
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before[0])
        readline.set_completer_delims(before[1])
