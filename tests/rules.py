"""How each command of the documents is run here: one rule per command, which :mod:`test_commands` holds to."""

import sys
from dataclasses import dataclass, field

SMALL = (
    "policy.hidden_size=32 policy.layers=1 policy.heads=2 policy.kv_heads=1 policy.mlp_size=32 policy.vocabulary=600 "
    "policy.context=2048 warmstart.episodes=6 warmstart.epochs=1 warmstart.rounds=0 warmstart.failures=2 "
    "warmstart.optimizer=adamw rollout.num_groups=2 rollout.group_size=2 rollout.eval_batch=2 "
    "rollout.action_tokens=12 rollout.prediction_tokens=24 "
    "curriculum.reflection_tokens=200 curriculum.selection_tokens=80 env.eval_tasks=2 train.iterations=1"
)
"""What makes any training run one of seconds."""
TOY = f"--config configs/toy.yaml {SMALL} run_dir=runs/other"
NEW = {"run_dir=runs/toy": "run_dir=runs/new"}  # the folder runs/toy lies there already
TOOLS = {"my_tools.py": "{tools}/my_tools.py", "tasks.jsonl": "{tools}/tasks.jsonl"}
DATA = {"alfworld": "{alfworld}", "webshop": "{webshop}", "searchqa": "{searchqa}", "recipes": "{recipes}"}
DATA = {f"/path/to/{name}": put for name, put in DATA.items()}


@dataclass(frozen=True)
class Rule:
    """One way to run commands.

    Attributes:
        pattern: a regular expression for all of a command.
        how: ``quick``: always run; ``slow``: run by ``pytest -m slow``; ``serves``: as slow, and stopped when it
            answers; ``parsed``: its arguments are read and no more, for the reason ``why``.
        more: arguments that make it small.
        put: what takes the place of words, or of parts of words. ``{…}`` names something that the tests make.
        says: a regular expression that its output must have somewhere; of a server, a page that it has.
        types: what a person types.
        needs: a package without which it is not run (not read, if it is only parsed).
    """

    pattern: str
    how: str
    more: str = ""
    put: dict[str, str] = field(default_factory=dict)
    why: str = ""
    says: str = ""
    types: str = ""
    needs: str = ""


def parsed(pattern, why, **put):
    return Rule(pattern, "parsed", why=why, put={"…": "", **put})


RULES = [
    # --- installing and checking ---
    parsed(r"pip (un)?install .*", "it changes the environment that the tests run in; .ci installs in fresh ones"),
    parsed(r"pytest( -m slow)?", "it is what runs this test"),
    parsed(r"\.ci/(run|full|docs)", "it makes an environment of its own, and runs these tests"),
    parsed(r"mkdocs serve", "what it shows is built strictly by .ci/docs"),
    parsed(r"benchmarks/gpu_smoke\.sh", "it is for GPUs"),
    Rule(r"roleagent doctor", "quick", more="--quick", says="ALFWorld"),
    parsed(
        r"python evaluate\.py .* --env RoleAgent/(BFCL|APIBank)-v0 .*",
        "the published data are no part of the repository; tests/envs/test_next_call.py runs it where they are",
    ),
    # --- playing ---
    Rule(
        r"python examples/plug_your_agent\.py",
        "quick",
        says=r"score [01] after \d+ steps; \d+ predictions, mean similarity 0\.\d+",
    ),
    Rule(r"python examples/two_roles\.py", "quick"),
    Rule(r"python examples/plug_your_tool\.py", "quick", says="bought, 10 euros are left"),
    Rule(r"python examples/mcp_tool\.py", "slow", says="reward 1", needs="mcp"),
    Rule(r"roleagent tools show my_tools\.py", "quick", put=TOOLS, says="what is wanted"),
    Rule(r"roleagent tools call my_tools\.py price .*", "quick", put=TOOLS, says="^25"),
    Rule(
        r"roleagent tools show mcp:python examples/mcp_tool\.py --serve",
        "slow",
        put={"mcp:python": f"mcp:{sys.executable}"},
        says='"price"',
        needs="mcp",
    ),
    Rule(
        r"roleagent play RoleAgent/ToolEnv-v0 .*", "quick", put=TOOLS, types="quit\n", says="What do a .* cost together"
    ),
    Rule(r"roleagent play RoleAgent/ALFWorld-v0 --env-arg size=tiny", "quick", types="?\nhint\nquit\n", says="go to"),
    Rule(r"roleagent play RoleAgent/ToolEnv-v0", "quick", types="?\nhint\nquit\n", says=r"convert\(amount"),
    Rule(r"roleagent tools show roleagent\.envs\.tools\.examples", "quick", says="Converts a distance to meters"),
    Rule(r"roleagent tools call roleagent\.envs\.tools\.examples convert .*", "quick", says=r"3000\.0"),
    Rule(r"roleagent games .*--out games", "slow", says="game", needs="alfworld"),
    # --- with other libraries ---
    Rule(r"python examples/vector\.py( --mode async)?", "quick", says=r"12 tasks, \d+ won; 600 steps"),
    Rule(r"python examples/trl_grpo\.py", "slow", says=r"step +10: reward (0\.9|1)"),
    parsed(r"python examples/trl_grpo\.py --model .*", "it takes a pretrained model"),
    Rule(r"roleagent serve RoleAgent/ALFWorld-v0 --port 8000", "serves", put={"8000": "0"}, says="/health"),
    Rule(r"python examples/openenv_client\.py http://\S+", "slow", put={"http://127.0.0.1:8000": "{openenv}"}),
    *(
        Rule(
            pattern, "parsed", why="the trainer has an environment of its own, where .ci/adapters runs it", needs=needs
        )
        for pattern, needs in (
            (r"vf-eval roleagent\.envs\.adapters\.verifiers .*", "verifiers"),
            (r"python examples/verifiers_eval\.py", "verifiers"),
            (r"python examples/skyrl_env\.py", "skyrl_gym"),
            (r"python examples/tinker_group\.py", "tinker_cookbook"),
            (r"python examples/verl_agent_loop\.py", "verl"),
        )
    ),
    Rule(
        r"roleagent serve RoleAgent/ALFWorld-v0 --protocol agentgym --port 36001",
        "serves",
        put={"36001": "0"},
        says="/list_envs",
    ),
    Rule(r"python examples/agentgym_client\.py http://\S+", "slow", put={"http://127.0.0.1:36001": "{agentgym}"}),
    # --- training ---
    Rule(
        r"python train\.py env\.id=RoleAgent/ToolEnv-v0 .*rollout\.action_tokens=40",
        "slow",
        more=f"{SMALL} rollout.action_tokens=60 run_dir=runs/other",
        put=TOOLS,
        says="success on valid",
    ),
    parsed(r"python train\.py env\.id=RoleAgent/ToolEnv-v0 .*policy\.path=Qwen/.*", "it takes a pretrained model"),
    Rule(r"python train\.py", "slow", more=f"{SMALL} run_dir=runs/other"),
    Rule(r"python train\.py (method|estimator)\S*=.*", "slow", more=f"{SMALL} run_dir=runs/other"),
    Rule(r"python train\.py --config configs/toy\.yaml run_dir=runs/toy", "slow", more=SMALL, put=NEW),
    Rule(r"python train\.py --config configs/toy\.yaml run_dir=runs/(?!toy)\S+ .*", "slow", more=SMALL),
    Rule(
        r"python train\.py --config configs/toy\.yaml run_dir=runs/toy --resume",
        "slow",
        more=f"{SMALL} train.iterations=3",
    ),
    Rule(
        r"python train\.py --config configs/(webshop|searchqa|office)\.yaml",
        "slow",
        more=f"{SMALL} rollout.action_tokens=32 run_dir=runs/other",
    ),
    Rule(
        r"python train\.py --config configs/alfworld_official\.yaml",
        "slow",
        more=f"{SMALL} env.kwargs.max_steps=30 curriculum.analyst=rule run_dir=runs/other",
        put=DATA,
    ),
    Rule(
        r"python train\.py … --resume",
        "slow",
        more="train.iterations=3",
        put={"…": f"{SMALL} --config configs/toy.yaml run_dir=runs/toy"},
    ),
    Rule(
        r"python train\.py curriculum\.analyst=endpoint .*",
        "slow",
        more=f"{TOY} curriculum.endpoint.timeout=5",
        put={"https://host/v1": "{server}", "=NAME": "={model}"},
    ),
    Rule(
        r"python train\.py policy\.path=Qwen/\S+ .*lora\.rank=32.*",
        "slow",
        more=f"{TOY} warmstart.episodes=0",
        put={"Qwen/Qwen2.5-1.5B-Instruct": "{policy}"},
    ),
    Rule(
        r"python train\.py \[.*\]",
        "parsed",
        put={
            "[--config": "--config",
            "FILE]": "configs/toy.yaml",
            "[key=value": "seed=1",
            "…]": "",
            "[--resume]": "--resume",
        },
        why="it shows the form of all training commands",
    ),
    parsed(
        r"python train\.py --config configs/published/\S+",
        "it takes a GPU and a pretrained model; tests/core/test_configurations.py trains all of these in small",
    ),
    parsed(
        r"(torchrun|deepspeed) .*",
        "it takes several GPUs or hosts; tests/learners/test_launchers.py and .ci/hosts do it with two processes",
        HOST0="10.0.0.1",
    ),
    parsed(
        r"python train\.py --config … rollout\.backend=vllm .*",
        "vLLM is not installed here; .ci/vllm trains with it",
        **{"…": "configs/toy.yaml"},
    ),
    parsed(
        r"python -m roleagent\.agents\.policies\.vllm\.server MODEL .*",
        "vLLM is not installed here; .ci/vllm starts this server",
    ),
    # --- what a run leaves behind ---
    Rule(r"roleagent failures (list|modes|growth) runs/toy.*", "quick"),
    Rule(r"roleagent failures show runs/toy 17", "quick", put={"17": "1"}, says="navigation_loop|mode"),
    Rule(r"roleagent failures export runs/toy .*", "quick"),
    Rule(r"python -m roleagent\.learners\.run\.nan_dump runs/…/halted/.*", "slow", put={"runs/…": "runs/toy"}),
    Rule(r"roleagent export runs/toy --out policy.*", "slow", put={"step-500004": "step-500001"}),
    Rule(
        r"roleagent report runs/(toy|role_agent-alfworld-v0-seed0)",
        "quick",
        put={"role_agent-alfworld-v0-seed0": "toy"},
        says="report.html",
    ),
    Rule(
        r"roleagent report runs/toy runs/gigpo --out comparison.html", "quick", put={"gigpo": "toy"}, says="comparison"
    ),
    Rule(
        r"roleagent watch runs/(toy|role_agent-alfworld-v0-seed0)",
        "serves",
        more="--port 0",
        put={"role_agent-alfworld-v0-seed0": "toy"},
        says="/",
    ),
    # --- evaluating ---
    Rule(r"python evaluate\.py .*--agent my_module:MyAgent", "slow", more="--tasks 2"),
    Rule(r"python evaluate\.py --agent runs/toy", "slow", more="--tasks 2"),
    Rule(
        r"python evaluate\.py --agent (random|oracle|expert) (?!.*(BFCL|APIBank|ScienceWorld)).*",
        "slow",
        more="--tasks 2",
        put=DATA,
    ),
    Rule(r"python evaluate\.py --agent oracle .*ScienceWorld.*", "slow", more="--tasks 2", needs="scienceworld"),
    Rule(
        r"python evaluate\.py --agent (plain|react|reflexion) (?!.*(BFCL|APIBank)).*--base-url \S+ .*",
        "slow",
        more="--tasks 2",
        put={"http://127.0.0.1:8000/v1": "{server}"},
    ),
    Rule(r"python evaluate\.py --agent plain --run runs/toy .*", "slow", more="--tasks 2"),
    Rule(r"python evaluate\.py --agent runs/toy --temperature 1 --repeats 5", "slow", more="--tasks 2"),
    Rule(
        r"python evaluate\.py --base-url \S+ .*",
        "slow",
        more="--tasks 2",
        put={"http://127.0.0.1:8000/v1": "{server}"},
        says="cost",
    ),
    Rule(r"python evaluate\.py compare runs/toy/before\.json runs/toy/after\.json", "slow", says="bootstrap"),
    Rule(
        r"python evaluate\.py compare runs/gigpo-0 .*--against .*",
        "slow",
        put={f"runs/{name}-{seed}": "runs/toy" for name in ("gigpo", "toy") for seed in (0, 1)},
        says="over seeds",
    ),
    parsed(r"python evaluate\.py --agent runs/(alfworld|webshop|searchqa)\b.*", "it takes a run of eight GPUs"),
    parsed(r"python evaluate\.py --agent Qwen/\S+ .*", "it takes a pretrained model"),
    parsed(r"python evaluate\.py --agent react --model-path .*", "it takes a pretrained model"),
    # --- data ---
    Rule(r"roleagent webshop build --data \$WEBSHOP_DATA", "slow", put=DATA),
    Rule(
        r"roleagent index build .* --encoder e5:models/e5-base-v2 .*",
        "slow",
        put={"corpus.jsonl": "{searchqa}/corpus.jsonl", "models/e5-base-v2": "{encoder}"},
    ),
    Rule(
        r"roleagent index serve --index wiki --port 8000",
        "serves",
        put={"wiki": "{index}", "8000": "0"},
        says="/health",
    ),
    # --- benchmarks ---
    parsed(r"python benchmarks/(overhead|evaluation|dropin)\.py", "a minute; .ci/full runs every benchmark"),
    parsed(r"python benchmarks/(overhead|kills)\.py (.* )?--full", "it takes an hour"),
    Rule(
        r"python benchmarks/experiment\.py --config benchmarks/plans/\w+\.yaml( --plan| --seeds [\d ]+)?",
        "quick",
        more="--plan",
        says=r"left: \d+ x ",
    ),
    parsed(
        r"python benchmarks/quickstart\.py --seeds 3 --controls",
        "it takes hours; tests/benchmarks/test_quickstart.py runs it in small",
    ),
]
