"""RoleAgent's environments for TRL: ``GRPOTrainer(environment_factory=…)``.

TRL plays an episode as a conversation with tool calls, and finds the tools of an environment in the public methods of
its class. Here they are those of the environment's view (:class:`~roleagent.envs.tools.views.ToolView`), or the
environment's own tools and an answer. TRL lists them before the first ``reset``. Where they depend on the task, there
is one tool ``call`` instead, and each prompt ends with the descriptions of the task's tools. The dataset names the task
of a row, so that the G rollouts of a group play the same one. An episode's reward is the sum of its ``task`` terms.
Nothing of TRL is imported.

    trainer = GRPOTrainer(
        model="Qwen/Qwen3-0.6B",
        train_dataset=tasks_dataset("RoleAgent/ALFWorld-v0"),
        environment_factory=environment_factory("RoleAgent/ALFWorld-v0"),
        args=GRPOConfig(max_completion_length=4096, max_tool_calling_iterations=50, …),
    )
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from keyword import iskeyword
from typing import Any, Literal, Union

import gymnasium
from gymnasium.error import DependencyNotInstalled

from roleagent.env_card import instructions_of
from roleagent.envs.adapters.splits import Splits
from roleagent.envs.tools.calls.command import answer_command, call_command
from roleagent.envs.tools.definition.function_tool import DescribedTool, function_schema
from roleagent.markers import escape_markers
from roleagent.tools import Call, Tool
from roleagent.types import reward_terms

OVER = "The episode is over."
CALL = "call"
"""The tool of environments whose tools depend on the task."""
_CALLS = {
    "type": "array",
    "items": {"type": "object"},
    "description": 'Each is {"name": "the function", "arguments": {"its argument": "the value"}}.',
}
_TEXT = {"type": "string", "description": "As short as possible."}
ANSWER = DescribedTool(
    "answer",
    "Give the answer, which ends the task.",
    {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]},
)
_TYPES: dict[Any, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


class Episodes:
    """One environment of TRL's, and what its reward functions may look at.

    Every public method of a subclass is a tool, except those that TRL knows: ``reset`` and ``get_reward``.

    Args:
        splits: the environments.
        hints: whether observations end with what can be done now, where the environment lists it.

    Attributes:
        info: what the environment last reported (see :mod:`roleagent.types`).
        commands: what was done in this episode so far: of a view the environment's commands, else the calls.
        rewards: the sum of each named reward term.
        over: whether the episode has ended.
        failure: what the environment raised, if it has failed; None otherwise.
    """

    info: dict[str, Any]
    commands: list[str]
    rewards: dict[str, float]
    over: bool
    failure: str | None
    _listed: frozenset[str]  # tools that TRL lists

    def __init__(self, splits: Splits, hints: bool = True):
        self._splits, self._hints = splits, hints
        self._env: gymnasium.Env | None = None
        self.info, self.commands, self.rewards, self.over, self.failure = {}, [], {}, True, None

    def reset(self, task_id: str | None = None, split: str | None = None, **row: Any) -> str:
        """Starts the episode of a dataset row; returns the text that continues the prompt.

        Raises:
            ValueError: there is no such task, or it has a tool that TRL does not list.
        """
        self.over, self.failure = True, "the episode has not begun"  # until reset: no steps after an error
        self.commands, self.rewards = [], {}
        self._env = env = self._splits(split)
        text, self.info = env.reset(options={} if task_id is None else {"task_id": task_id})
        self.over, self.failure = False, None
        tools = env.get_wrapper_attr("tools")
        if tools_by_task(env):
            described = [json.dumps(function_schema(tool)["function"], ensure_ascii=False) for tool in tools]
            text = "\n".join((text, "", f"The functions, which the tool {CALL} calls:", *described))
        elif new := {tool.name for tool in tools} - self._listed:
            raise ValueError(
                f"the task {self.info.get('task_id')!r} offers the tool {min(new)!r}, which TRL has not listed: give "
                "the environment the attribute tools_by_task = True"
            )
        return self._shown(text)

    def get_reward(self) -> float | None:
        """The sum of the task terms; None if the environment has failed.

        TRL warns of a None and then counts it as a 0, for it has no way to leave a rollout out.
        """
        return None if self.failure is not None else float(self.rewards.get("task", 0.0))

    def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Calls a tool of the class."""
        env = self._env
        own = env is not None and not env.has_wrapper_attr("hints")
        if env is not None and own and tool == CALL and tools_by_task(env):
            return self._do(json.dumps(arguments))
        if own and tool == ANSWER.name:
            return self._do(answer_command(str(arguments["text"])))
        return self._do(call_command([Call(tool, arguments)]))

    def _do(self, action: str) -> str:
        if self.over or self._env is None:
            return OVER
        try:
            text, reward, terminated, truncated, self.info = self._env.step(action)
        except Exception as error:
            self.over, self.failure = True, f"{type(error).__name__}: {error}"
            gymnasium.logger.warn(f"{self.info.get('task_id')} has failed: {self.failure}")
            raise
        self.commands.append(self.info.get("command", action))
        for name, value in reward_terms(self.info, reward).items():
            self.rewards[name] = self.rewards.get(name, 0.0) + value
        self.over = bool(terminated or truncated)
        return self._shown(text)

    def _shown(self, text: str) -> str:
        """What the model reads. Its markers are replaced: TRL recognizes special tokens in it."""
        commands = self._possible() if self._hints and not self.over else ()
        hints = f"\nPossible now: {', '.join(commands)}" if commands else ""
        return escape_markers(text + hints, "tool_call", "think") + (f"\n{OVER}" if self.over else "")

    def _possible(self) -> list[str]:
        env = self._env
        return env.get_wrapper_attr("hints")(self.info) if env is not None and env.has_wrapper_attr("hints") else []


def environment_factory(env_id: str, *, hints: bool = True, **arguments: Any) -> Callable[[], Episodes]:
    """The ``environment_factory`` of ``GRPOTrainer``; it can be pickled, as the asynchronous trainer requires.

    Args:
        env_id: a Gymnasium id of an environment that has a split.
        hints: whether observations end with what can be done now.
        arguments: of the environment.

    >>> episodes = environment_factory("RoleAgent/Toy-v0")()
    >>> print(episodes.reset("bring-egg-tray-1")[:20], "|", episodes.act("look")[:34])
    You are in a kitchen | You are in the middle of the kitch
    """
    return partial(_episodes, env_id, arguments, hints)


def tools_by_task(env: gymnasium.Env) -> bool:
    """Whether an environment's tools depend on the task: by its attribute, else whether it starts without any."""
    name = "tools_by_task"
    return bool(env.get_wrapper_attr(name)) if env.has_wrapper_attr(name) else not env.get_wrapper_attr("tools")


def _episodes(env_id: str, arguments: Mapping[str, Any], hints: bool) -> Episodes:
    splits = _splits(env_id, arguments)
    env = splits()
    tools: list[Tool] = list(env.get_wrapper_attr("tools"))
    if tools_by_task(env):
        most = env.get_wrapper_attr("max_calls") if env.has_wrapper_attr("max_calls") else 1
        about = "Calls a function." if most == 1 else f"Calls functions: all that are needed at once, at most {most}."
        schema = {"type": "object", "properties": {"calls": _CALLS}, "required": ["calls"]}
        tools = [DescribedTool(CALL, about, schema)]
    if not env.has_wrapper_attr("hints"):  # no view: the environment's own tools
        tools.append(ANSWER)
    name = f"{env_id.rpartition('/')[2].partition('-')[0]}Episodes"
    return _class(name, tuple((tool.name, tool.description, json.dumps(tool.parameters)) for tool in tools))(
        splits, hints
    )


def _splits(env_id: str, arguments: Mapping[str, Any]) -> Splits:
    """The environments, each with tools."""
    splits = Splits(env_id, dict(arguments))
    return splits if splits().has_wrapper_attr("tools") else Splits(env_id, {**arguments, "view": "tools"})


@lru_cache(maxsize=64)
def _class(name: str, tools: tuple[tuple[str, str, str], ...]) -> type[Episodes]:
    """Episodes with a method for every tool: its name, its description, and its schema as JSON.

    Raises:
        ValueError: the names of two tools, or of two parameters, are one in Python; it names them.
    """
    taken = {*dir(Episodes), *Episodes.__annotations__}
    names = _identifiers([tool for tool, *_ in tools], taken, "tools", public=True)
    methods = {
        names[tool]: _method(tool, names[tool], description, json.loads(schema)) for tool, description, schema in tools
    }
    about = {"__doc__": Episodes.__doc__, "__module__": __name__, "_listed": frozenset(names)}
    return type(name, (Episodes,), {**methods, **about})


def _identifiers(given: Iterable[str], taken: Collection[str], kind: str, public: bool = False) -> dict[str, str]:
    """For each name one that Python accepts: ``user-id`` becomes ``user_id``, and ``from`` becomes ``from_``.

    Args:
        given: different names.
        taken: names that have another meaning.
        kind: what they are, for an error.
        public: whether a name may not begin with ``_``.

    >>> _identifiers(["user-id", "from", "2d"], (), "parameters")
    {'user-id': 'user_id', 'from': 'from_', '2d': '_2d'}
    """
    found: dict[str, str] = {}
    for name in given:
        plain = "".join(letter if f"_{letter}".isidentifier() else "_" for letter in name)
        plain = plain.lstrip("_") if public else plain
        plain = plain if plain.isidentifier() else f"{'tool' * public}_{plain}"
        plain = f"{plain}_" if iskeyword(plain) or plain in taken else plain
        if other := next((one for one, used in found.items() if used == plain), None):
            raise ValueError(
                f"TRL cannot offer the {kind} {other!r} and {name!r}: both are {plain} in Python; rename one"
            )
        found[name] = plain
    return found


def _method(tool: str, name: str, description: str, schema: Mapping[str, Any]) -> Callable[..., str]:
    """A method of this name that calls a tool, as TRL describes it to a model: by its signature and its docstring."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    names = _identifiers(properties, ("self",), f"parameters of the tool {tool!r},")
    meant = {plain: key for key, plain in names.items()}

    def method(self: Episodes, *given: Any, **named: Any) -> str:
        values = signature.bind(self, *given, **named).arguments
        return self._call(tool, {meant[key]: value for key, value in values.items() if key in meant})

    kinds = {names[key]: _kind(about) for key, about in properties.items()}
    order = sorted(properties, key=lambda key: key not in required)
    parameters = [
        inspect.Parameter(
            names[key],
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            annotation=kinds[names[key]],
            default=inspect.Parameter.empty if key in required else properties[key].get("default"),
        )
        for key in order
    ]
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([receiver, *parameters], return_annotation=str)
    lines = [f"    {names[key]}: {_line(properties[key].get('description')) or key}" for key in order]
    about = ["Args:", *lines, ""] if lines else []
    method.__name__, method.__qualname__ = name, name
    method.__doc__ = "\n".join([_line(description), "", *about, "Returns:", "    What happens."])
    method.__annotations__ = {**kinds, "return": str}
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


def _line(text: Any) -> str:
    """A description on one line, without markers: in a docstring, further lines would be read as other parameters."""
    return escape_markers(" ".join(str(text or "").split()), "tool_call", "think")


def _kind(schema: Any) -> Any:
    """The Python type that TRL describes by this schema."""
    about = schema if isinstance(schema, Mapping) else {}
    values, kind = about.get("enum"), about.get("type")
    if values and all(isinstance(value, str | int | float | None) for value in values):
        return Literal[tuple(values)]
    if parts := [{**about, "type": one} for one in kind] if isinstance(kind, list) else about.get("anyOf"):
        return Union[tuple(map(_kind, parts))]  # noqa: UP007
    return list[_kind(about["items"])] if kind == "array" and "items" in about else _TYPES.get(kind, Any)


def tasks_dataset(env_id: str, *, split: str | None = None, limit: int | None = None, **arguments: Any) -> Any:
    """The tasks of a split as TRL's dataset, a row each: the instruction as ``prompt``, ``task_id`` and ``split``.

    The environment's first observation is added to the prompt when the row is played.

    Args:
        env_id: a Gymnasium id.
        split: of the split; None: the environment's own.
        limit: at most so many tasks, of all types.
        arguments: of the environment.

    Raises:
        gymnasium.error.DependencyNotInstalled: the package ``datasets``, which comes with TRL, is missing.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise DependencyNotInstalled(
            f"TRL's datasets are not installed ({error}): pip install 'roleagent[trl]'"
        ) from error
    splits = _splits(env_id, arguments)
    rows, guide = splits.rows(split, limit), instructions_of(splits())
    splits.close()
    prompt = [{"role": "user", "content": f"{guide.rules}\n\n"}]
    return Dataset.from_list([{"prompt": prompt, **row} for row in rows])


__all__ = ["Episodes", "environment_factory", "tasks_dataset"]
