"""One layer: norm, projection, causal convolution, scan, gated norm, projection, residual.

Mamba-2 (Dao and Gu 2024, section 7). Constants are buffers of shape (1,) and the softplus is spelled
out, because the exporter rounds or drops plain numbers. Layers are made in float64; the network is cast as a whole, so
that a seed gives the same start in every dtype.

Axes: B batch, T bars, M model width, E inner width (H P), C convolved channels (E + 2 G N), H heads, G groups, P head
width, N state width, S numbers of all groups (G N), K taps.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from foxflow_mamba2.convolution import causal_convolution
from foxflow_mamba2.projection import inverse_softplus
from foxflow_mamba2.ssd import ssd_scan, ssd_step

NORM_EPS = 1e-5
SHORTEST_MEMORY_BARS, LONGEST_MEMORY_BARS = 2.0, 64.0


class RMSNorm(nn.Module):
    """Scale rows, or each of `n_groups` equal parts of a row, to a mean square of 1, then by a weight per column."""

    eps: Tensor

    def __init__(self, width: int, *, n_groups: int = 1) -> None:
        super().__init__()
        self.parts = (n_groups, width // n_groups)
        self.weight = nn.Parameter(torch.ones(width, dtype=torch.float64))
        self.register_buffer("eps", torch.full((1,), NORM_EPS, dtype=torch.float64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows of `(..., width)` scaled."""
        if self.parts[0] == 1:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight
        parts = x.reshape(*x.shape[:-1], *self.parts)
        scaled: Tensor = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + self.eps)
        return scaled.flatten(-2) * self.weight


class Block(nn.Module):
    """A residual layer over bars; `forward` takes a window, `step` one bar, and both the state of the bar before.

    Parameters
    ----------
    depth
        Layers in the network: what each adds to the residual starts at `1 / sqrt(depth)`.
    spectral_limit
        No head starts at this limit: memories start between 2 and 64 bars, at most 0.64 of the limit's.
    """

    dt_min: Tensor
    dt_max: Tensor

    def __init__(
        self,
        d_model: int,
        *,
        d_inner: int,
        head_dim: int,
        d_state: int,
        n_groups: int,
        d_conv: int,
        dropout: float,
        dt_limit: tuple[float, float],
        depth: int,
        spectral_limit: float,
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        self.chunk = chunk
        self.head_dim, self.d_state, self.n_groups = head_dim, d_state, n_groups
        self.n_heads = d_inner // head_dim
        self.channel_sizes = [d_inner, n_groups * d_state, n_groups * d_state]
        n_channels = sum(self.channel_sizes)
        self.split_sizes = [d_inner, n_channels, self.n_heads]
        self.norm = RMSNorm(d_model)
        self.in_proj = nn.Linear(d_model, sum(self.split_sizes), bias=False, dtype=torch.float64)
        self.conv_weight_KC = nn.Parameter(
            torch.empty(d_conv, n_channels, dtype=torch.float64).uniform_(-1, 1) / math.sqrt(d_conv)
        )
        self.conv_bias_C = nn.Parameter(torch.zeros(n_channels, dtype=torch.float64))
        A_log, dt_bias = _initial_memories(self.n_heads, dt_limit, spectral_limit)
        self.A_log_H, self.dt_bias_H = nn.Parameter(A_log), nn.Parameter(dt_bias)
        self.D_H = nn.Parameter(torch.ones(self.n_heads, dtype=torch.float64))
        self.gated_norm = RMSNorm(d_inner, n_groups=n_groups)
        self.out_proj = nn.Linear(d_inner, d_model, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.out_proj.weight.div_(math.sqrt(depth))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("dt_min", torch.full((1,), dt_limit[0], dtype=torch.float64), persistent=False)
        self.register_buffer("dt_max", torch.full((1,), dt_limit[1], dtype=torch.float64), persistent=False)

    def state_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of the convolution's and the scan's state, without the batch axis."""
        d_conv, n_channels = self.conv_weight_KC.shape
        return (d_conv - 1, n_channels), (self.n_heads, self.head_dim, self.d_state)

    def forward(self, u_BTM: Tensor, past_conv_BKC: Tensor, past_ssm_BHPN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the window's output and both states after its last bar."""
        n_batch, n_bars, _ = u_BTM.shape
        z_BTE, raw_BTC, dt_BTH = torch.split(self.in_proj(self.norm(u_BTM)), self.split_sizes, -1)
        taps_BTC = torch.cat([past_conv_BKC, raw_BTC], 1)
        mixed_BTC = silu(causal_convolution(taps_BTC, self.conv_weight_KC, self.conv_bias_C))
        x_BTE, B_BTS, C_BTS = torch.split(mixed_BTC, self.channel_sizes, -1)
        y_BTHP, ssm_BHPN = ssd_scan(
            x_BTE.reshape(n_batch, n_bars, self.n_heads, self.head_dim),
            self._step_size(dt_BTH),
            -torch.exp(self.A_log_H),
            B_BTS.reshape(n_batch, n_bars, self.n_groups, self.d_state),
            C_BTS.reshape(n_batch, n_bars, self.n_groups, self.d_state),
            self.D_H,
            initial_state=past_ssm_BHPN,
            return_final_state=True,
            chunk=self.chunk,
        )
        return self._out(u_BTM, y_BTHP.reshape(z_BTE.shape), z_BTE), taps_BTC[:, n_bars:], ssm_BHPN

    def step(self, u_BM: Tensor, past_conv_BKC: Tensor, past_ssm_BHPN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return one bar's output and both states after it."""
        z_BE, raw_BC, dt_BH = torch.split(self.in_proj(self.norm(u_BM)), self.split_sizes, -1)
        taps_BKC = torch.cat([past_conv_BKC, raw_BC.unsqueeze(1)], 1)
        mixed_BC = (taps_BKC * self.conv_weight_KC).sum(1) + self.conv_bias_C
        x_BE, B_BS, C_BS = torch.split(silu(mixed_BC), self.channel_sizes, -1)
        y_BHP, ssm_BHPN = ssd_step(
            x_BE.reshape(-1, self.n_heads, self.head_dim),
            self._step_size(dt_BH),
            -torch.exp(self.A_log_H),
            B_BS.reshape(-1, self.n_groups, self.d_state),
            C_BS.reshape(-1, self.n_groups, self.d_state),
            self.D_H,
            past_ssm_BHPN,
        )
        return self._out(u_BM, y_BHP.reshape(z_BE.shape), z_BE), taps_BKC[:, 1:], ssm_BHPN

    def _step_size(self, raw: Tensor) -> Tensor:
        """Return `softplus(raw + dt_bias)` within its limits."""
        x = raw + self.dt_bias_H
        softplus = 0.5 * (x + x.abs()) + torch.log(1.0 + torch.exp(-x.abs()))
        return torch.minimum(torch.maximum(softplus, self.dt_min), self.dt_max)

    def _out(self, u: Tensor, y: Tensor, z: Tensor) -> Tensor:
        out: Tensor = u + self.dropout(self.out_proj(self.gated_norm(y * silu(z))))
        return out


def _initial_memories(n_heads: int, dt_limit: tuple[float, float], spectral_limit: float) -> tuple[Tensor, Tensor]:
    """Return A_log and dt_bias, `(H,)` each, for memories spread evenly in the logarithm over the heads.

    A memory of m bars is a decay of `exp(-1/m)` a bar. With A = -1 and a step of 1/m the state is a moving average of
    gain 1; where that step is below its limits or beyond half the upper one, A makes up for it.
    """
    longest = min(LONGEST_MEMORY_BARS, -0.64 / math.log(spectral_limit))
    shortest = min(SHORTEST_MEMORY_BARS, longest)
    memories = [longest * (shortest / longest) ** (h / max(1, n_heads - 1)) for h in range(n_heads)]
    lower, upper = dt_limit
    steps = [min(max(1.0 / m, lower), max(lower, 0.5 * upper)) for m in memories]
    A_log = [-math.log(m * step) for m, step in zip(memories, steps, strict=True)]
    dt_bias = [inverse_softplus(step) for step in steps]
    return torch.tensor(A_log, dtype=torch.float64), torch.tensor(dt_bias, dtype=torch.float64)
