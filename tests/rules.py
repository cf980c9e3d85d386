"""How commands of the documents are run here; :mod:`test_commands` reads all others to their last argument."""

from dataclasses import dataclass, field

SMALL = (
    "policy.hidden_size=32 policy.layers=1 policy.heads=2 policy.kv_heads=1 policy.mlp_size=32 policy.vocabulary=600 "
    "policy.context=2048 warmstart.episodes=6 warmstart.epochs=1 warmstart.rounds=0 warmstart.failures=2 "
    "warmstart.optimizer=adamw rollout.num_groups=2 rollout.group_size=2 rollout.eval_batch=2 "
    "rollout.action_tokens=12 rollout.prediction_tokens=24 "
    "curriculum.reflection_tokens=200 curriculum.selection_tokens=80 env.eval_tasks=2 train.iterations=1"
)
"""What makes any training run one of seconds."""
TOY = {"role_agent-alfworld-v0-seed0": "toy", "gigpo": "toy"}


@dataclass(frozen=True)
class Rule:
    """One way to run commands.

    Attributes:
        pattern: a regular expression for all of a command.
        how: ``quick``: always run; ``slow``: run by ``pytest -m long``; ``serves``: as slow, and stopped when it
            answers; ``made``: the run that slow commands are run beside.
        more: arguments that make it small.
        put: what takes the place of words, or of parts of words. ``{…}`` names something that the tests make.
        says: a regular expression that its output must have somewhere; of a server, a page that it has.
        types: what a person types.
        needs: a package without which it is not run.
    """

    pattern: str
    how: str
    more: str = ""
    put: dict[str, str] = field(default_factory=dict)
    says: str = ""
    types: str = ""
    needs: str = ""


def quick(pattern, says="", more="", types="", **put):
    return Rule(pattern, "quick", more, put, says, types)


def slow(pattern, more="", says="", needs="", **put):
    return Rule(pattern, "slow", more, put, says, needs=needs)


def serves(pattern, page, more="", **put):
    return Rule(pattern, "serves", more, put, page)


RULES = [
    quick(r"roleagent doctor", "ALFWorld", "--quick"),
    # --- playing ---
    quick(r"python examples/plug_your_agent\.py", r"score [01] after \d+ steps; \d+ predictions, mean"),
    quick(r"python examples/two_roles\.py"),
    quick(r"python examples/plug_your_tool\.py", "bought, 10 euros are left"),
    slow(r"python examples/mcp_tool\.py", says="reward 1", needs="mcp"),
    quick(r"roleagent tools show my_tools\.py", "what is wanted"),
    quick(r"roleagent tools call my_tools\.py price .*", "^10"),
    slow(r"roleagent tools show mcp:python .*", says='"stock"', needs="mcp"),
    quick(r"roleagent play RoleAgent/ToolEnv-v0 .*", "What do a .* cost together", types="quit\n"),
    quick(r"roleagent play RoleAgent/ALFWorld-v0 --env-arg size=tiny", "go to", types="?\nhint\nquit\n"),
    quick(r"roleagent tools call roleagent\.envs\.tools\.examples convert .*", r"3000\.0"),
    slow(r"roleagent games .*--out games", says="game", needs="alfworld"),
    # --- with other libraries ---
    quick(r"python examples/vector\.py( --mode async)?", r"12 tasks, \d+ won; 600 steps"),
    slow(r"python examples/trl_grpo\.py", says=r"step +10: reward (0\.9|1)"),
    serves(r"roleagent serve RoleAgent/ALFWorld-v0 --port 8000", "/health", **{"8000": "0"}),
    slow(r"python examples/openenv_client\.py http://\S+", **{"http://127.0.0.1:8000": "{openenv}"}),
    serves(r"roleagent serve RoleAgent/ALFWorld-v0 --protocol agentgym .*", "/list_envs", **{"36001": "0"}),
    slow(r"python examples/agentgym_client\.py http://\S+", **{"http://127.0.0.1:36001": "{agentgym}"}),
    # --- training: tests/core/test_configurations.py trains every configuration in small ---
    slow(r"python train\.py", f"{SMALL} run_dir=runs/other"),
    slow(r"python train\.py --config (tools|countdown)\.yaml"),
    Rule(r"python train\.py --config configs/toy\.yaml run_dir=runs/toy", "made"),
    slow(r"python train\.py --config configs/toy\.yaml run_dir=runs/toy --resume", says="is finished"),
    slow(r"python train\.py --resume runs/toy", says="is finished"),
    quick(r"pip install \.", more="--quiet --no-deps --no-index --no-build-isolation --target installed"),
    # --- what a run leaves behind ---
    quick(r"roleagent failures (list|modes|growth|export) runs/toy.*"),
    quick(r"roleagent failures show runs/toy 17", "navigation_loop|mode", **{"17": "1"}),
    slow(r"python -m roleagent\.learners\.run\.nan_dump runs/…/halted/.*", **{"runs/…": "runs/toy"}),
    slow(r"roleagent export runs/toy --out .*"),
    slow(r"tail -n 1 runs/toy/metrics\.jsonl"),
    quick(r"roleagent report runs/\S+", "report.html", **TOY),
    quick(r"roleagent report runs/toy runs/gigpo --out comparison.html", "comparison", **TOY),
    serves(r"roleagent watch runs/\S+", "/", "--port 0", **TOY),
    quick(r"roleagent tasks propose countdown:Countdown-v1"),
    # --- evaluating ---
    quick(r"python evaluate\.py --env RoleAgent/Toy-v0 .*--agent my_module:MyAgent"),
    quick(r"python evaluate\.py --agent (expert|random) --env RoleAgent/Toy-v0 .*"),
    quick(r"python evaluate\.py compare expert\.jsonl --against random\.jsonl"),
    quick(r"python evaluate\.py table expert\.jsonl random\.jsonl"),
    slow(r"python evaluate\.py table runs/toy runs/gigpo --format latex", says="tabular", **{"runs/gigpo": "runs/toy"}),
    slow(r"python evaluate\.py --agent oracle --config mcp\.yaml", needs="mcp"),
    slow(r"python evaluate\.py --agent runs/toy"),
    slow(r"python evaluate\.py --agent runs/toy --temperature 1 --repeats 5", "--tasks 2"),
    slow(r"python evaluate\.py --agent oracle .*ScienceWorld.*", "--tasks 2", needs="scienceworld"),
    slow(r"python evaluate\.py --agent oracle .*TextWorldExpress.*", needs="textworld_express"),
    slow(r"python evaluate\.py compare runs/toy/after\.json --against runs/toy/before\.json", says="bootstrap"),
    slow(
        r"python evaluate\.py compare runs/toy-0 .*--against .*",
        says="over seeds",
        **{f"runs/{name}-{seed}": "runs/toy" for name in ("gigpo", "toy") for seed in (0, 1)},
    ),
    quick(r"roleagent experiment genenv_toy --plan"),
    slow(r"roleagent experiment my_plan\.yaml", f"--seeds 0 --arms GRPO GiGPO --set {SMALL}", "the report is"),
    # --- data ---
    slow(r"roleagent searchqa generate --out searchqa", says="2886 passages"),
    slow(r"roleagent index build --corpus searchqa/corpus\.jsonl --out wiki"),
    slow(
        r"roleagent index build .* --encoder e5:models/e5-base-v2 .*",
        **{"corpus.jsonl": "{searchqa}/corpus.jsonl", "models/e5-base-v2": "{encoder}"},
    ),
    serves(r"roleagent index serve --index wiki --port 8000", "/health", **{"8000": "0"}),
]
