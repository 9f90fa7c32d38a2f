"""The causal depthwise convolution before the scan, with a gradient of its own.

Torch's `conv1d` wants the bars last in memory and was slower by the copies; differentiating the sum of shifted products
fills a gradient of full size with zeros for every tap.

Axes: B batch, T bars, K taps, S bars with those before the first (T + K - 1), C channels.
"""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


def causal_convolution(bars_BSC: Tensor, weight_KC: Tensor, bias_C: Tensor) -> Tensor:
    """Return `bias + sum over k of weight_k bars_{t+k}`, `(B, T, C)`; the last tap is the present bar's."""
    if torch.compiler.is_exporting():
        return _sum_of_products(bars_BSC, weight_KC, bias_C)
    mixed_BTC: Tensor = _Convolution.apply(bars_BSC, weight_KC, bias_C)  # type: ignore[no-untyped-call]
    return mixed_BTC


def _sum_of_products(bars_BSC: Tensor, weight_KC: Tensor, bias_C: Tensor) -> Tensor:
    mixed_BTC = bias_C
    for weight_C, bars_BTC in zip(weight_KC.unbind(0), _shifted(bars_BSC, len(weight_KC)), strict=True):
        mixed_BTC = mixed_BTC + bars_BTC * weight_C
    return mixed_BTC


def _shifted(bars_BSC: Tensor, n_taps: int) -> list[Tensor]:
    """Return what each tap sees: views of `(B, T, C)`."""
    n_bars = bars_BSC.shape[1] - n_taps + 1
    return [bars_BSC[:, k : k + n_bars] for k in range(n_taps)]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, bars_BSC: Tensor, weight_KC: Tensor, bias_C: Tensor) -> Tensor:
        ctx.save_for_backward(bars_BSC, weight_KC)
        first_BTC, *others = _shifted(bars_BSC, len(weight_KC))
        first_C, *weights = weight_KC.unbind(0)
        mixed_BTC = torch.addcmul(bias_C, first_BTC, first_C)
        for weight_C, bars_BTC in zip(weights, others, strict=True):
            mixed_BTC.addcmul_(bars_BTC, weight_C)
        return mixed_BTC

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionCtx, grad_BTC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bars_BSC, weight_KC = ctx.saved_tensors  # type: ignore[attr-defined]
        grad_bars_BSC = torch.zeros_like(bars_BSC)
        for weight_C, view_BTC in zip(weight_KC.unbind(0), _shifted(grad_bars_BSC, len(weight_KC)), strict=True):
            view_BTC.addcmul_(grad_BTC, weight_C)
        grad_weight_KC = torch.stack([(grad_BTC * b).sum((0, 1)) for b in _shifted(bars_BSC, len(weight_KC))])
        return grad_bars_BSC, grad_weight_KC, grad_BTC.sum((0, 1))
