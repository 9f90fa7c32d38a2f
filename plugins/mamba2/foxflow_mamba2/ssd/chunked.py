"""The exact scan in chunks: matrix products inside a chunk, states carried from chunk to chunk.

State space duality, Dao and Gu 2024, section 6, in products of two. What a bar reads of its own chunk is one matrix a
head, which holds the decays, the step sizes and the skip, so that the wide tensors are passed over as seldom as can be;
products with the states take all heads of a group at once, so that B and C are never repeated.

Axes: B batch, L bars, H heads, G groups, R heads in a group (H = G R), P head width, N state width; c chunks, l and s
bars of a chunk, z chunks and the end.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad


def chunk_length(head_dim: int, d_state: int) -> int:
    """Return the bars in a chunk: the faster of 16 and 32 as measured on CPUs."""
    return 16 if head_dim <= 16 and d_state <= 16 else 32


def ssd_chunked(
    x_BLHP: Tensor,
    dt_BLH: Tensor,
    A_H: Tensor,
    B_BLGN: Tensor,
    C_BLGN: Tensor,
    D_H: Tensor | None,
    state_BHPN: Tensor,
    *,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the output `(B, L, H, P)` and the state after the last bar, equal to `ssd_naive` for every L >= 1.

    Time and memory grow as `L`; in an exported graph also as `(L / chunk)^2`, so feed that a series of more than some
    ten thousand bars in blocks, passing the state. Half precision is widened to float32 inside.
    """
    given = x_BLHP.dtype
    dtype = torch.promote_types(given, torch.float32)
    x_BLHP, dt_BLH, A_H, B_BLGN, C_BLGN, state_BHPN = (
        t.to(dtype) for t in (x_BLHP, dt_BLH, A_H, B_BLGN, C_BLGN, state_BHPN)
    )
    n_batch, n_bars, n_heads, head_dim = x_BLHP.shape
    n_groups, d_state = B_BLGN.shape[2:]
    chunk = chunk or chunk_length(head_dim, d_state)
    # Length and pad cancel to a multiple of the chunk, which the exporter has to see.
    n_chunks = (n_bars + chunk - 1) // chunk
    n_pad = n_chunks * chunk - n_bars
    exporting = torch.compiler.is_exporting()
    if exporting or n_pad:
        # On the right: a pad bar has dt = 0, so it decays nothing, adds nothing and leaves the state alone.
        x_BLHP, B_BLGN, C_BLGN = (pad(t, (0, 0, 0, 0, 0, n_pad)) for t in (x_BLHP, B_BLGN, C_BLGN))
        dt_BLH = pad(dt_BLH, (0, 0, 0, n_pad))

    by_group = (n_batch, n_chunks, chunk, n_groups, n_heads // n_groups)
    x_BclGRP = x_BLHP.reshape(*by_group, head_dim)
    dt_BcGRl = dt_BLH.reshape(by_group).permute(0, 1, 3, 4, 2)
    B_BcGlN, C_BcGlN = (t.reshape(*by_group[:4], d_state).transpose(2, 3) for t in (B_BLGN, C_BLGN))
    sum_BcGRl = (dt_BcGRl * A_H.reshape(n_groups, -1, 1)).cumsum(-1)
    total_BcGR1 = sum_BcGRl[..., -1:]

    left_BcGRl = torch.exp(total_BcGR1 - sum_BcGRl) * dt_BcGRl
    added_BclGRP = x_BclGRP * left_BcGRl.permute(0, 1, 4, 2, 3).unsqueeze(-1)
    added_BcGNS = B_BcGlN.mT @ added_BclGRP.transpose(2, 3).flatten(4)
    state_BGNRP = state_BHPN.reshape(n_batch, n_groups, -1, head_dim, d_state).permute(0, 1, 4, 2, 3)
    carry = _carry_by_matrix if exporting else _carry
    start_BcGNRP, end_BGNRP = carry(
        state_BGNRP, torch.unflatten(added_BcGNS, -1, (-1, head_dim)), total_BcGR1.squeeze(-1)
    )

    decay_BcGRls = _decay(sum_BcGRl) * dt_BcGRl.unsqueeze(-2)
    seen_BcG1ls = (C_BcGlN @ B_BcGlN.mT).unsqueeze(3)
    if D_H is None:
        weight_BcGRls = seen_BcG1ls * decay_BcGRls
    else:
        skip_GRls = D_H.to(dtype).reshape(n_groups, -1, 1, 1) * torch.eye(chunk, dtype=dtype, device=D_H.device)
        weight_BcGRls = torch.addcmul(skip_GRls, seen_BcG1ls, decay_BcGRls)
    own_BcGRlP = weight_BcGRls @ x_BclGRP.permute(0, 1, 3, 4, 2, 5)
    carried_BcGlRP = torch.unflatten(C_BcGlN @ start_BcGNRP.flatten(4), -1, (-1, head_dim))
    faded_BclGR1 = torch.exp(sum_BcGRl).permute(0, 1, 4, 2, 3).unsqueeze(-1)
    y_BclGRP = carried_BcGlRP.transpose(2, 3) * faded_BclGR1 + own_BcGRlP.permute(0, 1, 4, 2, 3, 5)
    y_BLHP = y_BclGRP.reshape(n_batch, n_chunks * chunk, n_heads, head_dim)[:, :n_bars]
    return y_BLHP.to(given), end_BGNRP.permute(0, 1, 3, 4, 2).reshape(state_BHPN.shape).to(given)


def _carry(state: Tensor, added_BcGNRP: Tensor, total_BcGR: Tensor) -> tuple[Tensor, Tensor]:
    """Return the state at the start of each chunk and after the last, by a loop over the chunks."""
    decay_BcG1R1 = torch.exp(total_BcGR)[:, :, :, None, :, None]
    starts = []
    # Unbound once: a chunk taken by its index would fill a gradient of full size with zeros.
    for decay, added in zip(decay_BcG1R1.unbind(1), added_BcGNRP.unbind(1), strict=True):
        starts.append(state)
        state = torch.addcmul(added, state, decay)
    return torch.stack(starts, 1), state


def _carry_by_matrix(state_BGNRP: Tensor, added_BcGNRP: Tensor, total_BcGR: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `_carry` does, by a matrix over the chunks: a loop would freeze the length of an exported graph."""
    terms_BGRzNP = torch.cat([state_BGNRP.unsqueeze(1), added_BcGNRP], 1).permute(0, 2, 4, 1, 3, 5)
    decay_BGRzz = _decay(pad(total_BcGR.cumsum(1), (0, 0, 0, 0, 1, 0)).permute(0, 2, 3, 1))
    carried_BGRzNP = (decay_BGRzz @ terms_BGRzNP.flatten(4)).reshape(terms_BGRzNP.shape)
    carried_BzGNRP = carried_BGRzNP.permute(0, 3, 1, 4, 2, 5)
    return carried_BzGNRP[:, :-1], carried_BzGNRP[:, -1]


def _decay(sum_l: Tensor) -> Tensor:
    """Return `exp(sum_l - sum_s)` where s <= l and 0 elsewhere, `(..., l, s)`, of running sums `(..., l)`."""
    length = sum_l.shape[-1]
    # Masked before the exponential: above the diagonal it may overflow, and infinity times a zero gradient is NaN.
    # A sum of the negated row, since subtracting would negate the whole matrix once more on the way back.
    future_ls = torch.full((length, length), -torch.inf, dtype=sum_l.dtype, device=sum_l.device).triu(1)
    return (sum_l.unsqueeze(-1) + sum_l.neg().unsqueeze(-2)).add_(future_ls).exp_()
