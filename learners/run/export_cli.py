"""``roleagent export``: the command line of :mod:`roleagent.learners.run.export`; ``--help`` loads no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from roleagent.commands import Parser, complain, out_folder

DTYPES = ("float32", "bfloat16")  # of policy.dtype


def main(arguments: Sequence[str]) -> int:
    """The verb; returns the exit status."""
    parser = Parser(
        "roleagent export",
        "Write the policy of a run as a plain Hugging Face folder, for any program that loads such folders.\n\n"
        "Needs a run that has left a checkpoint. The run is not changed.",
        "roleagent export runs/toy --out policy\n"
        "roleagent export runs/toy --out policy-8 --checkpoint 500008 --dtype bfloat16",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--out", type=out_folder, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--checkpoint", default="", metavar="STEP", help="step-500004 or 500004 (default: the newest)")
    parser.add_argument("--dtype", choices=DTYPES, default="", help="of the weights (default: the run's)")
    options = parser.parse_args(arguments)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # transformers loads DeepSpeed to save, which would wonder aloud
    import transformers

    from roleagent.config import ConfigError
    from roleagent.learners.run.checkpoints import CheckpointError
    from roleagent.learners.run.export import export

    transformers.logging.disable_progress_bar()
    try:
        card = export(options.run, options.out, options.checkpoint, options.dtype)
    except (ConfigError, CheckpointError, OSError) as error:
        return complain("roleagent export", error)
    print(f"{options.out}: {card['name']}, {card['checkpoint']}, {card['size']:,} parameters in {card['dtype']}")
    return 0


__all__ = ["main"]
