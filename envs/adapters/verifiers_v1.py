"""RoleAgent's environments for verifiers from 0.4 on (``verifiers.v1``): a taskset, its environment, and a harness.

    vf-eval roleagent-verifiers --env.taskset.env RoleAgent/ALFWorld-v0 --env.taskset.split valid_unseen

The environment plays the user: each reply of the player is a step, each observation the next message. verifiers knows
the three by the module ``roleagent_verifiers``. :mod:`roleagent.envs.adapters.verifiers` has the interface before 0.4.
"""

# Where the package is missing, pyright finds this module in its place.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from gymnasium.error import DependencyNotInstalled
from pydantic import Field

from roleagent.envs.adapters.chat import ChatEpisode
from roleagent.envs.adapters.splits import Splits

try:
    import httpx
    import verifiers.v1 as vf
    from verifiers.v1.dialects.chat import message_to_wire
except ImportError as error:
    raise DependencyNotInstalled(
        f"verifiers from 0.4 on is not installed ({error}): pip install 'roleagent[verifiers]'"
    ) from error


class TextTasksetConfig(vf.TasksetConfig):
    """``--env.taskset.…``: which tasks of which environment, and how they are played.

    Attributes:
        env: a Gymnasium id of an environment that has a split.
        arguments: of the environment.
        split: None: the environment's default.
        limit, draws: which tasks (:meth:`~roleagent.envs.adapters.splits.Splits.rows`).
        weights: of the named reward terms; None: ``{"task": 1.0}``, and with predictions ``"prediction": 0.0``.
        horizon, think, hints, wrappers, on_episode: as :class:`~roleagent.envs.adapters.chat.ChatEpisode` has them;
            functions are named as ``module:function``.
    """

    env: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    split: str | None = None
    limit: int | None = None
    draws: int | None = None
    weights: dict[str, float] | None = None
    horizon: int | None = 0
    think: Literal["none", "optional", "required"] = "optional"
    hints: bool = True
    wrappers: list[str] = Field(default_factory=list)
    on_episode: str | None = None


class TextData(vf.TaskData):
    """A task. Its prompt is written when its episode begins.

    Attributes:
        row: arguments of :meth:`~roleagent.envs.adapters.chat.ChatEpisode.reset`.
    """

    row: dict[str, Any] = Field(default_factory=dict)


class TextTask(vf.Task[TextData, vf.State, vf.TaskConfig]):
    """A task whose rewards are recorded by :class:`TextEnv`."""


class TextTaskset(vf.Taskset[TextTask, TextTasksetConfig]):
    """The tasks of a split."""

    def load(self) -> Iterator[TextTask]:
        if not self.config.env:
            raise ValueError("name an environment: --env.taskset.env RoleAgent/ALFWorld-v0")
        splits = Splits(self.config.env, self.config.arguments)
        rows = splits.rows(self.config.split, self.config.limit, self.config.draws)
        splits.close()
        for row in rows:
            yield TextTask(TextData(name=row.get("task_id", f"draw {row.get('seed')}"), row=row), self.config.task)


class TextEnvConfig(vf.EnvConfig):
    """The environment and its one agent.

    Attributes:
        taskset: see :class:`TextTasksetConfig`.
        player: the model; by default :class:`ChatHarness` calls it in this process.
    """

    player: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class TextEnv(vf.Env[TextEnvConfig]):
    """Plays the user of an episode, and records its named rewards and figures."""

    async def run(self, task: TextTask, agents: vf.Agents) -> None:
        chosen: TextTasksetConfig = self.config.taskset
        weights = {"task": 1.0, **({"prediction": 0.0} if chosen.horizon != 0 else {})}
        weights = weights if chosen.weights is None else chosen.weights
        how = chosen.model_dump(include={"horizon", "think", "hints", "wrappers", "on_episode"})
        episode = ChatEpisode(chosen.env, chosen.arguments, weights=weights, **how)
        try:
            system, first = episode.reset(**task.data.row)
            given = {"system_prompt": task.data.system_prompt or system["content"], "prompt": first["content"]}
            async with agents.player.interaction(task.with_data(**given)) as interaction:
                segment = await interaction.turn()
                while not segment.terminated:
                    observation = episode.step(segment.last_reply)
                    if episode.over:
                        break
                    segment = await interaction.turn(observation["content"])
        finally:
            episode.close()
        for name, weight in weights.items():
            interaction.trace.record_reward(name, episode.rewards.get(name, 0.0), weight)
        interaction.trace.record_metrics(episode.metrics())
        interaction.trace.info["task_id"] = episode.info.get("task_id", "")


class ChatHarness(vf.Harness[vf.HarnessConfig]):
    """One model call for each observation, in this process: no program is started, no tools are called."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        async with httpx.AsyncClient(timeout=None) as client:  # verifiers has the limits of time
            answer = await client.post(
                f"{endpoint.rstrip('/')}/chat/completions",
                headers={"Authorization": f"Bearer {secret}"},
                json={"model": ctx.model, "messages": messages},
            )
        return vf.ProgramResult(0, "", "") if answer.is_success else vf.ProgramResult(1, "", answer.text)


__all__ = ["ChatHarness", "TextEnv", "TextTaskset"]
