"""The exact scan in chunks: matrix products inside a chunk, one decay matrix over the chunks' states.

State space duality, Dao and Gu 2024, section 6, in products of two. One path for training, streaming and the exported
window graph, hence only operations that export, and no branch on the length.

Axes: B batch, L bars, H heads, G groups, K groups or 1 or H, P head width, N state width; c chunks, l and s bars of a
chunk, z chunks and the end, S the numbers of a head's state (P N).
"""

import torch
from torch import Tensor
from torch.nn.functional import pad


def chunk_length(head_dim: int, d_state: int) -> int:
    """Return the bars in a chunk: the faster of 16 and 32 as measured on CPUs."""
    return 16 if head_dim <= 16 and d_state <= 16 else 32


def ssd_chunked(
    x_BLHP: Tensor, dt_BLH: Tensor, A_H: Tensor, B_BLGN: Tensor, C_BLGN: Tensor, D_H: Tensor | None, state_BHPN: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the output `(B, L, H, P)` and the state after the last bar, equal to `ssd_naive` for every L >= 1.

    Time and memory grow as `L chunk`, and as `(L / chunk)^2` for the matrix over the chunks: feed a series of more than
    some ten thousand bars in blocks, passing the state.
    """
    n_batch, n_bars, n_heads, head_dim = x_BLHP.shape
    d_state = B_BLGN.shape[3]
    chunk = chunk_length(head_dim, d_state)
    # Always padded, on the right: a pad bar has dt = 0, so it decays nothing, adds nothing and leaves the state alone.
    # Length and pad cancel to a multiple of the chunk, which the exporter has to see.
    n_chunks = (n_bars + chunk - 1) // chunk
    n_pad = n_chunks * chunk - n_bars

    xdt_BHLP = (x_BLHP * dt_BLH[..., None]).transpose(1, 2)
    xdt_BHclP = pad(xdt_BHLP, (0, 0, 0, n_pad)).reshape(n_batch, n_heads, n_chunks, chunk, head_dim)
    log_decay_BHL = (dt_BLH * A_H).transpose(1, 2)
    sum_BHcl = pad(log_decay_BHL, (0, n_pad)).reshape(n_batch, n_heads, n_chunks, chunk).cumsum(-1)
    B_BKclN, C_BKclN = (
        pad(t.transpose(1, 2), (0, 0, 0, n_pad)).reshape(n_batch, t.shape[2], n_chunks, chunk, d_state)
        for t in (_per_head(B_BLGN, n_heads), _per_head(C_BLGN, n_heads))
    )

    left_BHcl1 = torch.exp(sum_BHcl[..., -1:] - sum_BHcl).unsqueeze(-1)
    added_BHcPN = (xdt_BHclP * left_BHcl1).transpose(3, 4) @ B_BKclN
    start_BHcPN, end_BHPN = _carry(state_BHPN, added_BHcPN, sum_BHcl[..., -1])

    weight_BHcls = (C_BKclN @ B_BKclN.transpose(3, 4)) * _decay(sum_BHcl)
    carried_BHclP = (C_BKclN @ start_BHcPN.transpose(3, 4)) * torch.exp(sum_BHcl).unsqueeze(-1)
    y_BHclP = weight_BHcls @ xdt_BHclP + carried_BHclP
    y_BLHP = y_BHclP.reshape(n_batch, n_heads, n_chunks * chunk, head_dim).transpose(1, 2)[:, :n_bars]
    return (y_BLHP if D_H is None else y_BLHP + x_BLHP * D_H[:, None]), end_BHPN


def _per_head(t_BLGN: Tensor, n_heads: int) -> Tensor:
    """Return the groups repeated for each of their heads; a single group stays one, to be broadcast."""
    n_groups = t_BLGN.shape[2]
    return t_BLGN if n_groups in (1, n_heads) else t_BLGN.repeat_interleave(n_heads // n_groups, 2)


def _carry(state_BHPN: Tensor, added_BHcPN: Tensor, total_BHc: Tensor) -> tuple[Tensor, Tensor]:
    """Return the state at the start of each chunk and after the last: by a matrix, for a loop would not export."""
    terms_BHzS = torch.cat([state_BHPN.unsqueeze(2), added_BHcPN], 2).flatten(3)
    decay_BHzz = _decay(pad(total_BHc.cumsum(-1), (1, 0)))
    # Rows of the small matrix are cut, not of the product, whose gradient would be padded with zeros at full size.
    start_BHcS = decay_BHzz[:, :, :-1] @ terms_BHzS
    end_BH1S = decay_BHzz[:, :, -1:] @ terms_BHzS
    return start_BHcS.reshape(added_BHcPN.shape), end_BH1S.reshape(state_BHPN.shape)


def _decay(sum_l: Tensor) -> Tensor:
    """Return `exp(sum_l - sum_s)` where s <= l and 0 elsewhere, `(..., l, s)`, of running sums `(..., l)`."""
    length = sum_l.shape[-1]
    # Masked before the exponential: above the diagonal it may overflow, and infinity times a zero gradient is NaN.
    # A sum of the negated row, since subtracting would negate the whole matrix once more on the way back.
    future_ls = torch.full((length, length), -torch.inf, dtype=sum_l.dtype, device=sum_l.device).triu(1)
    return torch.exp((sum_l.unsqueeze(-1) + future_ls) + sum_l.neg().unsqueeze(-2))
