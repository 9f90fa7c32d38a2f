"""The recurrence of Mamba-2 bar by bar: the truth that every faster form is compared with, in value and gradient.

Axes: B batch, L bars, H heads, G groups, R heads in a group (H = G R), P head width, N state width.
"""

import torch
from torch import Tensor


def ssd_step(
    x_BHP: Tensor, dt_BH: Tensor, A_H: Tensor, B_BGN: Tensor, C_BGN: Tensor, D_H: Tensor | None, state_BHPN: Tensor
) -> tuple[Tensor, Tensor]:
    """Return one bar's output `(B, H, P)` and the state after it.

    `h = exp(dt A) h + dt x B^T`, `y = h C + D x`; heads `g R` to `g R + R - 1` share the B and C of group g.
    """
    n_groups, d_state = B_BGN.shape[1:]
    n_heads, head_dim = x_BHP.shape[1:]
    grouped = (-1, n_groups, n_heads // n_groups, head_dim)
    decay_BH11 = torch.exp(dt_BH * A_H)[..., None, None]
    xdt_BGRP1 = (x_BHP * dt_BH[..., None]).reshape(grouped).unsqueeze(-1)
    update_BGRPN = xdt_BGRP1 * B_BGN[:, :, None, None, :]
    state_BHPN = state_BHPN * decay_BH11 + update_BGRPN.reshape(-1, n_heads, head_dim, d_state)
    y_BGRP = (state_BHPN.reshape(*grouped, d_state) @ C_BGN[:, :, None, :, None]).squeeze(-1)
    y_BHP = y_BGRP.reshape(-1, n_heads, head_dim)
    return (y_BHP if D_H is None else y_BHP + x_BHP * D_H[:, None]), state_BHPN


def ssd_naive(
    x_BLHP: Tensor, dt_BLH: Tensor, A_H: Tensor, B_BLGN: Tensor, C_BLGN: Tensor, D_H: Tensor | None, state_BHPN: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the output `(B, L, H, P)` and the state after the last bar, by `ssd_step` over the bars."""
    outputs = []
    bars = zip(x_BLHP.unbind(1), dt_BLH.unbind(1), B_BLGN.unbind(1), C_BLGN.unbind(1), strict=True)
    for x_BHP, dt_BH, B_BGN, C_BGN in bars:
        y_BHP, state_BHPN = ssd_step(x_BHP, dt_BH, A_H, B_BGN, C_BGN, D_H, state_BHPN)
        outputs.append(y_BHP)
    return torch.stack(outputs, 1), state_BHPN
