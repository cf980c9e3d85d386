"""The header of a record file: what was evaluated, how, and with which versions."""

from __future__ import annotations

import argparse
import platform
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import roleagent
from roleagent.agents.builders import EnvSplit
from roleagent.agents.chat.endpoint import Endpoint
from roleagent.agents.evaluation.records import PROTOCOL
from roleagent.agents.evaluation.targets import STANDARD, EvalTarget, source_digest, weights_digest
from roleagent.commands import pairs
from roleagent.env_card import step_limit
from roleagent.options import user_path

if TYPE_CHECKING:  # torch takes seconds to load: only a local model needs it
    from roleagent.agents.policies.hf import HFPolicy


def header_of(
    options: argparse.Namespace,
    target: EvalTarget,
    env_split: EnvSplit,
    model: HFPolicy | Endpoint | None,
    checkpoint: Path | None,
) -> dict[str, Any]:
    """Agent, split, settings and versions of an evaluation. It contains no secrets.

    Args:
        model: a local policy, a server, or None for an agent without a model.
        checkpoint: the checkpoint that the model was read from, or None.
    """
    config = env_split.config
    agent: dict[str, Any] = {"name": target.name(), "plays": target.plays, **source_digest(target.plays)}
    if options.agent_arg:
        agent["arguments"] = pairs(options.agent_arg)
    if checkpoint is not None:
        weights = weights_digest(checkpoint / "policy")
        agent |= {"run": str(target.run), "checkpoint": checkpoint.name, "weights": weights}
    elif isinstance(model, Endpoint):
        agent |= {"name": target.name(model.model), "model": model.model, "url": model.url}
    elif model is not None:
        agent |= {"model": target.model, "weights": weights_digest(target.model)}
    settings: dict[str, Any] = {"temperature": None, "max_tokens": None, "batch": None, "prompt": None}
    if model is not None:
        rollout, local, standard = config.rollout, not isinstance(model, Endpoint), target.plays == STANDARD
        horizon = env_split.horizon if standard and local else 0
        settings = {
            "temperature": rollout.eval_temperature,
            "max_tokens": rollout.action_tokens,
            "batch": rollout.eval_batch if local else None,
            "prompt": asdict(config.prompt) if standard else None,
            "horizon": horizon,
            "prediction_tokens": rollout.prediction_tokens if horizon else None,
            "similarity": config.estimator.similarity if horizon else None,
            "context": config.policy.context if local else None,
            "dtype": config.policy.dtype if local else None,
            **({"sampler": rollout.backend} if local and rollout.backend != "local" else {}),
            "notes": config.prompt.notes if standard else 0,
        }
        if config.agent.command:
            settings["program"] = {name: getattr(config.agent, name) for name in ("command", "replies", "timeout")}
    cut = options.cut_failures
    return {
        "protocol": PROTOCOL,
        "versions": {
            "roleagent": roleagent.__version__,
            "python": platform.python_version(),
            "torch": _version("torch"),
            "transformers": _version("transformers"),
            "platform": f"{platform.system()} {platform.machine()}",
        },
        **env_split.manifest(),
        **_made_as(env_split),
        "agent": agent,
        **settings,
        **_lessons(env_split),
        **_files(env_split),
        "seed": options.seed,
        **({"cut_failures": sha256(cut.read_bytes()).hexdigest()[:16]} if cut else {}),
    }


def _lessons(env_split: EnvSplit) -> dict[str, Any]:
    """Which lessons the prompts hold; nothing without any."""
    if env_split.lessons is None:
        return {}
    shown = env_split.config.lessons
    own = {"show": shown.show, "most": shown.most, "tokens": shown.tokens, "library": env_split.lessons.digest}
    return {"lessons": own}


def _files(env_split: EnvSplit) -> dict[str, Any]:
    """The digests of a user's files that an evaluation runs or shows: agent programs, templates, tools, judges."""
    config = env_split.config
    named = [*shlex.split(config.agent.command), config.prompt.templates]
    for part in env_split.environments.values():
        named += [word.partition(":")[0] for word in _texts(part.config.env.kwargs) if ".py" in word]
    files = {name: user_path(name) for name in named if name}
    found = {name: sha256(path.read_bytes()).hexdigest()[:16] for name, path in files.items() if path.is_file()}
    return {"files": found} if found else {}


def _texts(value: Any) -> Iterator[str]:
    """The texts in options of an environment."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)


def _made_as(env_split: EnvSplit) -> dict[str, Any]:
    """How the environment was made; of several environments each value by name."""
    found: dict[str, dict[str, Any]] = {"made_as": {}, "kwargs": {}, "max_steps": {}}
    for name, part in env_split.environments.items():
        env = part.config.env
        found["made_as"][name] = env.id  # several ids may be one class, and have one split
        found["kwargs"][name], found["max_steps"][name] = dict(env.kwargs), step_limit(part.base)
    return found if env_split.parts else {name: value[""] for name, value in found.items()}


def _version(package: str) -> str | None:
    """The installed version; None: agents without a local model do without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
