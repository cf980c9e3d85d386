"""The target of an evaluation: an agent, and the model or server behind it."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import marshal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roleagent.agents.evaluation.baselines import PROMPTING, SCRIPTED, prompts
from roleagent.config import ConfigError
from roleagent.options import home_expanded, user_path

STANDARD = "prompts"
"""The agent that uses the prompts of training (:mod:`roleagent.agents.rendering`)."""


@dataclass(frozen=True)
class EvalTarget:
    """An agent and its model.

    Attributes:
        plays: :data:`STANDARD`, a name of :mod:`roleagent.agents.evaluation.baselines`, or ``module:Class``.
        run: a run folder, whose checkpoint is the model.
        model: a folder or hub name of a causal language model.
        url: of an OpenAI-compatible server.
    """

    plays: str
    run: Path | None = None
    model: str = ""
    url: str = ""

    @property
    def prompts(self) -> bool:
        """Whether the agent has a model."""
        return bool(self.run or self.model or self.url)

    def name(self, served: str = "") -> str:
        """Its name: the model's name (of a server: ``served``) and the agent's."""
        behind = self.run.resolve().name if self.run else served or self.model.rstrip("/").rpartition("/")[2]
        parts = [part for part in (behind, self.plays) if part and part != STANDARD]
        return "-".join(parts)


def eval_target(agent: str | None, run: Path | None = None, model: str = "", url: str = "") -> EvalTarget:
    """The target that the command line names.

    Args:
        agent: an agent's name, a run folder, a model, or None: the standard prompts.
        run, model, url: the model behind it, at most one of them.

    Raises:
        ConfigError, ValueError: no such agent or folder, or a missing or superfluous model.
    """
    model = home_expanded(model)
    given = [name for name, value in (("--run", run), ("--model-path", model), ("--base-url", url)) if value]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} name two models; give one")
    if agent is None:
        if not given:
            raise ConfigError("no agent: give --agent, or a model with --run, --model-path or --base-url")
        plays = STANDARD
    elif agent in (*SCRIPTED, *PROMPTING) or ":" in agent:
        plays = agent
    elif given:
        known = ", ".join(PROMPTING)
        raise ConfigError(f"--agent {agent} cannot use {given[0]}: give {known} or module:NAME, or leave --agent out")
    elif path := _folder(agent):
        plays = STANDARD
        run, model = (path, "") if (path / "config.yaml").exists() else (None, str(path))
    elif _hub_name(agent):
        plays, model = STANDARD, agent
    else:
        known = ", ".join((*SCRIPTED, *PROMPTING))
        raise ConfigError(f"no agent {agent!r}: give a run folder, a model (folder or hub), {known} or module:NAME")
    if run is not None and not (run / "config.yaml").exists():
        raise ConfigError(f"{run} is not a run folder: it has no config.yaml")
    if plays != STANDARD and prompts(plays) != bool(given):
        needs = "needs a model" if not given else "takes no model"
        raise ConfigError(f"the agent {plays} {needs} (--run, --model-path or --base-url)")
    return EvalTarget(plays, run, model, url)


def _folder(agent: str) -> Path | None:
    """The folder of a run or model that ``agent`` names; None if it names none."""
    path = user_path(agent)
    if path.is_dir():
        if not any((path / name).exists() for name in ("config.yaml", "config.json")):
            raise ConfigError(f"{path} is neither a run folder (no config.yaml) nor a model (no config.json)")
        return path
    # A name with one slash may be on the hub, unless it begins like a local path.
    if "/" in agent and (not _hub_name(agent) or path.parts[0] == "runs" or Path(path.parts[0]).is_dir()):
        raise ConfigError(f"no run folder {agent!r}: there is no such directory")
    return None


def _hub_name(agent: str) -> bool:
    owner, stroke, name = agent.partition("/")
    return bool(stroke and owner.strip(".~") and name) and "/" not in name


def weights_digest(folder: str | Path) -> str:
    """A digest of the weights in a folder, or in the cached files of a hub name.

    Returns:
        the first 16 hex digits of a SHA-256.
    """
    if not Path(folder).is_dir():
        from huggingface_hub import try_to_load_from_cache  # here: agents without a local model do without it

        config = try_to_load_from_cache(str(folder), "config.json")
        assert isinstance(config, str)  # it has just been loaded
        folder = Path(config).parent
    digest = hashlib.sha256()
    for path in sorted(Path(folder).glob("*.safetensors")):
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


def _own_source(agent: Any) -> bytes:
    """The source of a function or class, or the code of one that was typed in."""
    try:
        return inspect.getsource(agent).encode()
    except (OSError, TypeError):
        functions = vars(agent).values() if isinstance(agent, type) else (agent,)
        return marshal.dumps([one.__code__ for one in functions if hasattr(one, "__code__")])


def source_digest(agent: str) -> dict[str, Any]:
    """``{"source": digest}`` of the file that defines ``module:Class``; empty for built-in agents.

    Of an agent of a notebook it is its own source, and where there is none, its code.
    """
    module, separator, name = agent.partition(":")
    try:
        if module == "__main__" and not hasattr(sys.modules[module], "__file__"):
            source = _own_source(getattr(sys.modules[module], name))
        elif module == "__main__":
            source = Path(str(sys.modules[module].__file__)).read_bytes()
        else:
            found = importlib.util.find_spec(module) if separator else None
            source = Path(found.origin).read_bytes() if found is not None and found.origin else None
    except (ImportError, ValueError, OSError, TypeError):
        source = None
    return {} if source is None else {"source": hashlib.sha256(source).hexdigest()[:16]}
