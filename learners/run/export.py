"""``roleagent export``: the policy of a run as a plain Hugging Face folder, for any program that loads such folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

import roleagent
from roleagent.agents.policies.hf import HFPolicy
from roleagent.config import Config, ConfigError, to_dict
from roleagent.files import make_whole
from roleagent.learners.run.checkpoints import CheckpointError, Checkpoints, save_policy
from roleagent.learners.run.folder import read_config
from roleagent.learners.run.trackers import without_secrets

NOT_MEASURED = "not measured", "the held-out split"

CARD = """\
---
library_name: transformers
pipeline_tag: {pipeline}
tags: [roleagent]
---
# {name}

A policy trained by RoleAgent {version}: `{method}` on `{env}`, from `{run}`, checkpoint `{checkpoint}`.

| | |
|---|---|
| stage and step | {stage}, {step} |
| updates since the warm start | {updates} |
| success on {task_split} | {success} |
| parameters | {size:,} ({dtype}) |
| context | {context} tokens |
| configuration | {digest} |

```python
from transformers import {model}, AutoTokenizer

model, tokenizer = (kind.from_pretrained("{folder}") for kind in ({model}, AutoTokenizer))
```

In RoleAgent, use it with `policy.path={folder}` and the options `prompt` and `env` below: it was trained with them.

```yaml
{config}```
"""


def export(run: Path, out: Path, checkpoint: str = "", dtype: str = "") -> dict[str, Any]:
    """Writes a run's policy into a new folder: configuration, safetensors, tokenizer and a model card.

    Args:
        run: the run folder.
        out: must not exist, or be empty.
        checkpoint: ``step-500004`` or its number; empty: the newest.
        dtype: ``"float32"`` or ``"bfloat16"``; empty: that of the run.

    Returns:
        the facts of the card.

    Raises:
        ConfigError, CheckpointError: the message is one line.
    """
    config = read_config(run)
    path = _chosen(Checkpoints(run / "checkpoints").all(), run, checkpoint)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not empty: name another folder")
    Checkpoints.check(path, "policy/")
    policy = Checkpoints.policy(path, torch.Generator(), config.policy)
    if dtype:
        policy.model.to(getattr(torch, dtype))
    card = _facts(run, path, config, policy)
    text = yaml.safe_dump(without_secrets(to_dict(config)), sort_keys=False)

    def fill(folder: Path) -> None:
        policy.tokenizer.model_max_length = policy.context_length
        save_policy(policy, folder)
        _name_plainly(folder / "tokenizer_config.json")
        named = CARD.format(**card, folder=out.resolve().name, config=text)
        (folder / "README.md").write_text(named, encoding="utf-8")

    make_whole(out, fill)
    return card


def _chosen(known: Sequence[Path], run: Path, wanted: str) -> Path:
    if not known:
        raise CheckpointError(f"{run} has no checkpoint yet")
    if not wanted:
        return known[-1]
    name = f"step-{wanted.lstrip('0').zfill(6)}" if wanted.isdecimal() else wanted
    for path in known:
        if path.name == name:
            return path
    raise CheckpointError(f"{run} has no checkpoint {name[:100]}; it has {', '.join(path.name for path in known)}")


def _name_plainly(path: Path) -> None:
    """Calls a tokenizer's class by the name that all versions of transformers know."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":  # its name since transformers 5
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _facts(run: Path, path: Path, config: Config, policy: HFPolicy) -> dict[str, Any]:
    progress = Checkpoints.progress(path)
    imitating = progress.stage == "warmstart"  # its updates are counted from 0 again when it is over
    updates = 0 if imitating else progress.version
    success, task_split = NOT_MEASURED if imitating else _measured(run, updates)
    causal = type(policy.model.config) in MODEL_FOR_CAUSAL_LM_MAPPING  # others have a class with images alone
    configured = json.dumps(to_dict(config), sort_keys=True).encode()
    return {
        "name": f"{config.method}, {config.environment}, seed {config.seed}",
        "version": roleagent.__version__,
        "method": config.method,
        "env": config.environment,
        "run": run.resolve().name,
        "checkpoint": path.name,
        "stage": progress.stage,
        "step": progress.step,
        "updates": updates,
        "success": success,
        "task_split": task_split,
        "size": sum(parameter.numel() for parameter in policy.model.parameters()),
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "context": policy.context_length,
        "model": "AutoModelForCausalLM" if causal else "AutoModelForImageTextToText",
        "pipeline": "text-generation" if causal else "image-text-to-text",
        "digest": hashlib.sha256(configured).hexdigest()[:12],
    }


def _measured(run: Path, version: int) -> tuple[str, str]:
    """Success of a version of the policy and its task split, if the run evaluated that version."""
    names = ("after.json", "before.json", "iteration-*.json", "revision/after-*.json")
    for path in (path for name in names for path in sorted(run.glob(name))):
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found.get("policy_version") == version:
            low, high = found["interval"]
            success = f"{found['success']:.1%} (95 % interval {low:.1%} to {high:.1%}, n = {found['n']})"
            return success, f"{found['task_split']['split']}, digest {found['task_split']['digest']}"
    return NOT_MEASURED


__all__ = ["export"]
