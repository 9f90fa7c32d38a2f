"""Adam against torch's own."""

import torch
from torch import nn
from torch_samples import one_thread  # noqa: F401

from foxflow_torch.adam import Adam


def test_twenty_steps_equal_those_of_torch_with_and_without_decay() -> None:
    g = torch.Generator().manual_seed(0)
    start = [torch.randn(3, 2, dtype=torch.float64, generator=g), torch.randn(4, dtype=torch.float64, generator=g)]
    ours, theirs = ([nn.Parameter(t.clone()) for t in start] for _ in range(2))
    adam = Adam([([ours[0]], 0.3), ([ours[1]], 0.0)])
    oracle = torch.optim.AdamW(
        [{"params": [theirs[0]], "weight_decay": 0.3}, {"params": [theirs[1]], "weight_decay": 0.0}], foreach=False
    )
    for step in range(20):
        rate = 0.1 / (step + 1)
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, dtype=torch.float64, generator=g)
            b.grad = a.grad.clone()
        adam.step(rate)
        for group in oracle.param_groups:
            group["lr"] = rate
        oracle.step()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-15)


def test_the_first_step_has_the_size_of_the_learning_rate_whatever_the_gradient() -> None:
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    parameter.grad = torch.tensor([1e-3, -1e5], dtype=torch.float64)
    Adam([([parameter], 0.0)]).step(0.01)
    torch.testing.assert_close(parameter.detach(), torch.tensor([-0.01, 0.01], dtype=torch.float64), rtol=1e-4, atol=0)
