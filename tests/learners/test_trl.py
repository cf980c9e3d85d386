"""The same loss as TRL's on the same tensors, by TRL's own code."""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from roleagent.config.settings import LossConfig
from roleagent.learners.loss import SampledTokens, policy_loss, token_weights
from roleagent.types import Segment

pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[test]'")
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

WIDTH, LENGTHS, LIMIT = 7, (7, 3, 5, 1), 9


def tensors():
    generator = torch.Generator().manual_seed(0)
    logprobs = -3 * torch.rand(4, WIDTH, generator=generator)
    old, reference = (logprobs + 0.4 * torch.randn(4, WIDTH, generator=generator) for _ in range(2))
    mask = (torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]).long()
    return logprobs, old, reference, mask, torch.tensor([1.3, -0.4, -1.1, 0.2])


def trainer(**attributes):
    """What TRL's loss looks at of its trainer: one process, in evaluation, so that nothing is accumulated."""
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x
    )
    args = SimpleNamespace(use_bias_correction_kl=False, delta=None)
    given = {"accelerator": accelerator, "args": args, "model": SimpleNamespace(training=False)}
    given |= {"aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None}
    given |= {"importance_sampling_level": "token", "beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.28}
    given |= {"use_vllm": False, "vllm_importance_sampling_correction": False, "_entropy_bonus_enabled": False}
    given |= {"max_completion_length": LIMIT, "_metrics": defaultdict(lambda: defaultdict(list))}
    return SimpleNamespace(**given | attributes)


def theirs(cls, attributes, correction=None):
    logprobs, old, reference, mask, advantages = tensors()
    logprobs.requires_grad_()
    stand_in = trainer(**attributes)
    stand_in._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None)
    ids = torch.ones_like(mask)
    inputs = {"prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": mask}
    inputs |= {"advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": reference}
    inputs |= {
        "old_logps": (old * mask).sum(1),
        "num_items_in_batch": mask.sum(),
        "importance_sampling_ratio": correction,
    }
    loss = cls._compute_loss(stand_in, None, inputs)
    loss.backward()
    return loss.item(), logprobs.grad


def ours(aggregation, level="token", kl=0.0, correction=None, clip_high=0.28):
    logprobs, old, reference, mask, advantages = tensors()
    logprobs.requires_grad_()
    nothing = (0.0,) * WIDTH
    segments = [Segment((1,) * WIDTH, tuple(row), nothing, nothing, i) for i, row in enumerate(mask.tolist())]
    weights = torch.tensor(
        np.stack(token_weights(segments, 4, aggregation=aggregation, divisor=LIMIT)), dtype=torch.float32
    )
    rows, columns = mask.nonzero(as_tuple=True)
    tokens = SampledTokens(
        logprobs[rows, columns],
        old[rows, columns],
        advantages[rows],
        weights[rows, columns],
        mask[rows, columns],
        segments=rows,
        entropies=torch.zeros(len(rows)),
        ref_logprobs=reference[rows, columns] if kl else None,
        importance=None if correction is None else correction[rows, columns],
    )
    loss, _ = policy_loss(tokens, LossConfig(clip_high=clip_high, kl=kl, importance_level=level))
    loss.backward()
    return loss.item(), logprobs.grad


@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("kind", "aggregation"), [("grpo", "trajectory"), ("dapo", "token"), ("bnpo", "token"), ("dr_grpo", "constant")]
)
def test_the_losses_of_grpo_dapo_dr_grpo_and_gspo(kind, aggregation, level, kl):
    found = ours(aggregation, level, kl)
    expected = theirs(GRPOTrainer, {"loss_type": kind, "importance_sampling_level": level, "beta": kl})
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    torch.testing.assert_close(found[1], expected[1])
    assert found[1].abs().max() > 1e-3


def test_the_loss_of_rloo():
    found, expected = ours("trajectory", "product"), theirs(RLOOTrainer, {})
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    torch.testing.assert_close(found[1], expected[1])


def test_the_correction_for_another_engine():
    correction = 0.5 + torch.rand(4, WIDTH, generator=torch.Generator().manual_seed(1))
    attributes = {"loss_type": "grpo", "beta": 0.1, "use_vllm": True, "vllm_importance_sampling_correction": True}
    found, expected = ours("trajectory", kl=0.1, correction=correction), theirs(GRPOTrainer, attributes, correction)
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    torch.testing.assert_close(found[1], expected[1])
