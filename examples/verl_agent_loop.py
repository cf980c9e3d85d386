"""Plays episodes in verl's agent loop (from 0.9 on), with a tiny model in place of the rollout server.

python examples/verl_agent_loop.py
"""

# The trainer may be missing.
# pyright: reportMissingImports=false
import argparse
import asyncio

from omegaconf import OmegaConf
from tiny_model import TinyModel, tiny_tokenizer
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from roleagent.envs.adapters.verl_loop import TextAgentLoop, rows


class TinyServer:
    """What the loop asks for tokens; verl has its own."""

    def __init__(self, tokenizer):
        self.model = TinyModel(tokenizer)

    async def generate(self, request_id, prompt_ids, sampling_params, **_):
        tokens, logprobs = self.model.sample(prompt_ids)
        return TokenOutput(token_ids=tokens, log_probs=logprobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="RoleAgent/Toy-v0", help="a Gymnasium id (default: %(default)s)")
    options = parser.parse_args()
    tokenizer = tiny_tokenizer()
    lengths = {"prompt_length": 4096, "response_length": 8192}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": lengths}})

    async def play(row):
        loop = TextAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=TinyServer(tokenizer),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(OmegaConf.create({})),
            env=options.env,
            options={"horizon": None},
        )
        return await loop.run({}, **row)

    for row in rows("world", env=options.env, limit=2):
        output = asyncio.run(play(row))
        sampled = sum(output.response_mask)
        print(
            f"{row['extra_info']['task_id']}: reward {output.reward_score:g}, {sampled} of {len(output.response_ids)} "
            f"tokens sampled, {output.extra_fields['reward_extra_info']}"
        )


if __name__ == "__main__":
    main()
