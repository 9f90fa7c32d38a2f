"""The scan as one CUDA kernel each way, compiled at run time by NVRTC; the recurrence itself, not a chunked form."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from foxflow_mamba2.ssd.cuda.geometry import Variant, padded, unsupported
from foxflow_mamba2.ssd.cuda.operator import ssd_forward
from foxflow_mamba2.ssd.shapes import check

__all__ = ["ssd_cuda", "unsupported"]


def ssd_cuda(
    x_BLHP: Tensor, dt_BLH: Tensor, A_H: Tensor, B_BLGN: Tensor, C_BLGN: Tensor, D_H: Tensor | None, state_BHPN: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the output `(B, L, H, P)` and the state after the last bar, equal to `ssd_naive` up to rounding.

    float64, float32 or bfloat16; bfloat16 is computed in float32, the state rounded only where it leaves. P and N are
    at most 64. Two runs give the same bits.

    Raises
    ------
    ValueError
        Tensors that don't fit each other, on another device, of another type or too wide.
    KernelError
        NVRTC is absent or too old for the device.
    """
    check(x_BLHP, dt_BLH, A_H, B_BLGN, C_BLGN, D_H, state_BHPN)
    head_dim, d_state = x_BLHP.shape[3], B_BLGN.shape[3]
    reason = unsupported(x_BLHP.dtype, head_dim, d_state)
    if reason is not None:
        raise ValueError(f"{reason}; use impl='chunked'")
    real = Variant(x_BLHP.dtype, head_dim, d_state).real_dtype
    more_P, more_N = padded(head_dim) - head_dim, padded(d_state) - d_state
    skip_H = A_H.new_zeros(A_H.shape) if D_H is None else D_H
    inputs = (x_BLHP, dt_BLH, A_H, B_BLGN, C_BLGN, skip_H, state_BHPN)
    save = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    # Columns of zeros stay zeros: they add nothing to the state or the output.
    y_BLHP, end_BHPN, _ = ssd_forward(
        pad(x_BLHP, (0, more_P)) if more_P else x_BLHP,
        dt_BLH,
        A_H.to(real),
        pad(B_BLGN, (0, more_N)) if more_N else B_BLGN,
        pad(C_BLGN, (0, more_N)) if more_N else C_BLGN,
        skip_H.to(real),
        pad(state_BHPN.to(real), (0, more_N, 0, more_P)) if more_N or more_P else state_BHPN.to(real),
        save=save,
    )
    return y_BLHP[..., :head_dim], end_BHPN[..., :head_dim, :d_state].to(x_BLHP.dtype)
