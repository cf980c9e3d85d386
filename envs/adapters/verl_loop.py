"""RoleAgent's environments for verl's agent loops, which replace its interactions from version 0.8 on.

    - name: alfworld                               # the file that rollout.agent.agent_loop_config_path names
      _target_: roleagent.envs.adapters.verl_loop.TextAgentLoop
      env: RoleAgent/ALFWorld-v0

Sampled tokens are kept as they are; verl's builder adds the tokens of the messages between them.
"""

# The package may be missing.
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any
from uuid import uuid4

from gymnasium.error import DependencyNotInstalled

from roleagent.envs.adapters.chat import PROMPT_TO_COME, ChatEpisode
from roleagent.envs.adapters.splits import Splits, chosen

try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
except ImportError as error:
    raise DependencyNotInstalled(f"verl is not installed ({error}): pip install 'roleagent[verl]'") from error


class TextAgentLoop(AgentLoopBase):
    """Plays one episode per call of :meth:`run`.

    Args:
        env: a Gymnasium id of an environment that has a split.
        arguments: of the environment.
        options: of :class:`~roleagent.envs.adapters.chat.ChatEpisode`, as a mapping.
        verl: what verl passes to every agent loop.
    """

    def __init__(
        self,
        *verl: Any,
        env: str,
        arguments: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        **more: Any,
    ):
        super().__init__(*verl, **more)
        self._env, self._arguments, self._options = env, dict(arguments or {}), dict(options or {})

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Plays the episode of a row until it is over or ``response_length`` is reached.

        Args:
            sampling_params: of the model.
            row: of the data; ``extra_info`` has ``task_id`` or ``seed``, and ``split``.

        Returns:
            the tokens, the reward, and the episode's figures as ``reward_extra_info``.

        Raises:
            ValueError: the split has no such task.
            Exception: the environment failed.
        """
        wanted = chosen(row.get("extra_info") or {})
        episode = ChatEpisode(self._env, self._arguments, **self._options)
        try:
            return await self._play(episode, wanted, sampling_params)
        finally:
            episode.close()

    async def _play(
        self, episode: ChatEpisode, wanted: Mapping[str, Any], sampling_params: dict[str, Any]
    ) -> AgentLoopOutput:
        limit, request_id = self.rollout_config.response_length, uuid4().hex
        messages: list[dict[str, Any]] = [dict(message) for message in episode.reset(**wanted)]
        tokens = await self.ct_build_initial_tokens(messages)
        mask: list[int] = []
        logprobs: list[float] | None = None
        scores: list[float] = []
        seconds = 0.0
        while not episode.over:
            begun = perf_counter()
            output = await self.server_manager.generate(
                request_id=request_id, prompt_ids=tokens, sampling_params=sampling_params
            )
            seconds += perf_counter() - begun
            if not mask and output.log_probs:
                logprobs = []
            merged, mask, logprobs = await self.ct_merge_assistant_token(
                tokens, output.token_ids, mask, logprobs, assistant_logprobs=output.log_probs or None
            )
            tokens = merged.token_ids
            if len(mask) >= limit:
                episode.finish()
                break
            reply = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
            observation = dict(episode.step(reply))
            scores.append(episode.step_reward)
            before, messages = messages, [*messages, {"role": "assistant", "content": reply}, observation]
            if episode.over:
                break
            merged, mask, logprobs = await self.ct_merge_context_msg(
                before + messages[-2:-1], messages, tokens, mask, logprobs
            )
            tokens = merged.token_ids
            if len(mask) >= limit:
                episode.finish()
        first = len(tokens) - len(mask)
        return AgentLoopOutput(
            prompt_ids=tokens[:first],
            response_ids=tokens[first:][:limit],
            response_mask=mask[:limit],
            response_logprobs=logprobs[:limit] if logprobs else None,
            reward_score=episode.reward,
            num_turns=2 * len(scores) + 1,
            metrics=AgentLoopMetrics(generate_sequences=seconds),
            extra_fields={"turn_scores": scores, "tool_rewards": [], "reward_extra_info": episode.metrics()},
        )


def rows(
    name: str,
    *,
    env: str,
    arguments: Mapping[str, Any] | None = None,
    split: str | None = None,
    limit: int | None = None,
    draws: int | None = None,
) -> list[dict[str, Any]]:
    """The rows of verl's data for a split.

    Args:
        name: of the agent loop in its configuration.
        env, arguments: as there.
        split, limit, draws: which tasks (:meth:`~roleagent.envs.adapters.splits.Splits.rows`).
    """
    splits = Splits(env, arguments or {})
    made = {
        "data_source": env,
        "agent_name": name,
        "prompt": list(PROMPT_TO_COME),
        "reward_model": {"style": "rule", "ground_truth": ""},
    }
    found = [{**made, "extra_info": row} for row in splits.rows(split, limit, draws)]
    splits.close()
    return found


__all__ = ["TextAgentLoop", "rows"]
