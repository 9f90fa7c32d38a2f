"""The causal depthwise convolution before the scan.

Axes: B batch, T bars, K taps, S bars with those before the first (T + K - 1), C channels.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv1d


def causal_convolution(bars_BSC: Tensor, weight_KC: Tensor, bias_C: Tensor) -> Tensor:
    """Return `bias + sum over k of weight_k bars_{t+k}`, `(B, T, C)`; the last tap is the present bar's."""
    if torch.compiler.is_exporting():
        # ONNX Runtime has no Conv in float64, and on a GPU it needs a library that nothing else here does.
        n_bars = bars_BSC.shape[1] - weight_KC.shape[0] + 1
        mixed_BTC = bias_C
        for k, weight_C in enumerate(weight_KC.unbind(0)):
            mixed_BTC = mixed_BTC + bars_BSC[:, k : k + n_bars] * weight_C
        return mixed_BTC
    weight_C1K = weight_KC.T.unsqueeze(1)
    mixed_BCT = conv1d(bars_BSC.transpose(1, 2), weight_C1K, bias_C, groups=len(weight_C1K))
    # What follows is slower on strided memory by more than the copy costs.
    return mixed_BCT.transpose(1, 2).contiguous()
