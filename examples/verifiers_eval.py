"""Evaluates a model in verifiers (before 0.4), with its rubric. Without --url a random player answers.

python examples/verifiers_eval.py
python examples/verifiers_eval.py --url http://127.0.0.1:8001/v1 --model Qwen/Qwen3-0.6B --env RoleAgent/ALFWorld-v0
"""

# The trainer may be missing.
# pyright: reportMissingImports=false
import os
from contextlib import nullcontext

from random_player import arguments, endpoint
from verifiers.types import ClientConfig

from roleagent.envs.adapters.verifiers import load_environment


def main() -> None:
    options = arguments(__doc__)
    os.environ.setdefault("OPENAI_API_KEY", "none")
    env = load_environment(options.env, split=options.split, limit=options.tasks, horizon=None)
    with nullcontext(options.url) if options.url else endpoint() as url:
        client = ClientConfig(api_key_var="OPENAI_API_KEY", api_base_url=url)
        outputs = env.evaluate_sync(client, options.model, rollouts_per_example=2, state_columns=["task_id"])["outputs"]
    for output in outputs:
        metrics = {name: round(value, 2) for name, value in output["metrics"].items()}
        print(f"{output['task_id']}: reward {output['reward']:g}, {metrics}")
    print(f"{len(outputs)} rollouts of {len({output['task_id'] for output in outputs})} tasks")


if __name__ == "__main__":
    main()
