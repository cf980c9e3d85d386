"""Log-probabilities and entropies are those of log_softmax, whatever the way, and no way keeps all the logits."""

import pytest
import torch
from torch import nn

from roleagent.learners.engine.logprobs import head_logprobs

N, D, VOCABULARY = 7, 5, 11


class Adapted(nn.Linear):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, states):
        return super().forward(states) * self.scale


def case(kind, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    head = Adapted(D, VOCABULARY, bias=False) if kind == "adapted" else nn.Linear(D, VOCABULARY, bias=kind == "bias")
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim():
                parameter.normal_(generator=generator)
    states = torch.randn(N, D, generator=generator)
    return states.to(dtype).requires_grad_(), head.to(dtype), torch.randint(VOCABULARY, (N,), generator=generator)


def plainly(states, head, ids, temperature):
    """By the book: every logit at once."""
    logprobs = (head(states).float() / temperature).log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, ids[:, None])[:, 0], entropies.detach()


def gradients(values, states, head):
    upstream = torch.linspace(-1, 2, len(values))
    (values * upstream).sum().backward()
    found = [tensor.grad.clone() for tensor in (states, *head.parameters())]
    for tensor in (states, *head.parameters()):
        tensor.grad = None
    return found


@pytest.mark.parametrize("kind", ["matrix", "bias", "adapted"])
@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_head_gives_what_the_whole_logits_give(kind, rows, temperature):
    states, head, ids = case(kind)
    expected, undecided = plainly(states, head, ids, temperature)
    slopes = gradients(expected, states, head)
    for entropy in (False, True):
        found, entropies = head_logprobs(states, head, ids, temperature, entropy, rows)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(entropies, undecided if entropy else torch.empty(0))
        assert not entropies.requires_grad
        torch.testing.assert_close(gradients(found, states, head), slopes)
    with torch.no_grad():
        torch.testing.assert_close(head_logprobs(states, head, ids, temperature, rows=rows)[0], expected)


@pytest.mark.parametrize("rows", [2, 100])
def test_a_half_precise_model_is_scored_in_full_precision(rows):
    states, head, ids = case("matrix", torch.bfloat16)
    expected, undecided = plainly(states, head, ids, 0.7)
    found, entropies = head_logprobs(states, head, ids, 0.7, True, rows)
    assert found.dtype == entropies.dtype == torch.float32
    torch.testing.assert_close((found, entropies), (expected, undecided))
    slopes = gradients(expected, states, head)
    mine = gradients(found, states, head)
    assert [slope.dtype for slope in mine] == [torch.bfloat16] * 2
    torch.testing.assert_close(mine, slopes, atol=2e-2, rtol=2e-2)


def test_a_token_that_is_ruled_out_leaves_numbers():
    head = nn.Linear(D, 3)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([0.0, 0.0, -torch.inf]))
    logprobs, entropies = head_logprobs(torch.randn(2, D), head, torch.tensor([0, 2]), entropy=True)
    assert logprobs.tolist() == pytest.approx([-torch.log(torch.tensor(2.0)).item(), -torch.inf])
    assert entropies.tolist() == pytest.approx([torch.log(torch.tensor(2.0)).item()] * 2)


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        given = function(*arguments, **(options or {}))
        for tensor in given if isinstance(given, (tuple, list)) else (given,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return given


@pytest.mark.parametrize("kind", ["matrix", "adapted"])
@pytest.mark.parametrize("entropy", [False, True])
def test_no_tensor_holds_the_logits_of_all_tokens(kind, entropy):
    _, head, _ = case(kind)
    states = torch.randn(400, D, requires_grad=True)
    with Largest() as seen:
        logprobs, _ = head_logprobs(states, head, torch.zeros(400, dtype=torch.int64), 0.9, entropy, rows=10)
        logprobs.sum().backward()
    assert states.grad is not None
    assert seen.numbers == max(10 * VOCABULARY, states.numel())
