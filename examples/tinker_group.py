"""Rolls out groups with Tinker's own loop, with a tiny model on this machine in place of Tinker's service.

python examples/tinker_group.py
"""

# The trainer may be missing.
# pyright: reportMissingImports=false
import argparse
import asyncio

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.rollouts import do_group_rollout
from tiny_model import TinyModel, tiny_tokenizer

from roleagent.envs.adapters.tinker import TaskDataset


class TinyCompleter(TokenCompleter):
    """Replace this with ``TinkerTokenCompleter`` and a sampling client."""

    def __init__(self, tokenizer):
        self.model = TinyModel(tokenizer)

    async def __call__(self, model_input, stop, *, max_tokens=None):
        tokens, logprobs = self.model.sample(model_input.to_ints())
        return TokensWithLogprobs(tokens, logprobs, "stop" if tokens[-1] in stop else "length")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="RoleAgent/Toy-v0", help="a Gymnasium id (default: %(default)s)")
    parser.add_argument("--group-size", type=int, default=2)
    options = parser.parse_args()
    tokenizer = tiny_tokenizer()
    renderer = get_renderer("qwen3_instruct", tokenizer, model_name="tiny")
    dataset = TaskDataset(
        options.env, renderer=renderer, batch_size=2, group_size=options.group_size, limit=4, horizon=None
    )
    policy = TinyCompleter(tokenizer)
    for builder in dataset.get_batch(0):
        group = asyncio.run(do_group_rollout(builder, policy))
        last = group.trajectories_G[0].transitions[-1].metrics
        print(f"{builder.row['task_id']}: rewards {group.get_total_rewards()}, {last}")


if __name__ == "__main__":
    main()
