"""Times of the chunked scan and of a layer on the CPU, beside transformers' Mamba-2 and a loop over the bars.

One process. The cases of a table run in turn, round after round, and the least time of each counts, so that a burst of
other work falls on all of them or on none that count. With one thread it is the process's CPU time, with more the
wall's. Every case is a forward and a backward pass in float32. Before a time is taken, the forms must agree in output
and gradients; after, the limits below must hold, or the exit status is 1.

Axes: B batch, T bars, M model width, H heads, G groups, P head width, N state width.
"""

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import Tensor, nn
from transformers import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer, mamba2_chunk_scan

import foxflow_mamba2.block
from foxflow_mamba2.block import NORM_EPS, Block
from foxflow_mamba2.ssd import ssd_scan

Case = Callable[[], object]
D_MODEL, D_INNER, HEAD_DIM, D_STATE, D_CONV = 64, 128, 32, 32, 4
N_HEADS = D_INNER // HEAD_DIM
N_BATCH, N_BARS = 64, 256
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
CHUNKS = (16, 32, 64, 256)
DEFAULT_CHUNK = 256
AGREEMENT = 1e-4
FASTER_THAN_BEST, FASTER_THAN_DEFAULT, GROWTH = 1.4, 4.0, 1.6


class Scan(NamedTuple):
    """The inputs of a scan, and the gradient that comes back to its output."""

    inputs: tuple[Tensor, ...]
    grad_y: Tensor

    def run(self, form: Callable[..., Tensor]) -> Tensor:
        """Return the output of a forward and a backward pass."""
        for t in self.inputs:
            t.grad = None
        y = form(*self.inputs)
        y.backward(self.grad_y)
        return y


def scan_inputs(n_batch: int, n_bars: int) -> Scan:
    """Return seeded inputs with one group."""
    g = torch.Generator().manual_seed(n_bars)
    normal = partial(torch.randn, generator=g)
    inputs = (
        normal(n_batch, n_bars, N_HEADS, HEAD_DIM),
        torch.exp(normal(n_batch, n_bars, N_HEADS) - 2.0),
        -torch.exp(normal(N_HEADS)),
        normal(n_batch, n_bars, 1, D_STATE),
        normal(n_batch, n_bars, 1, D_STATE),
        normal(N_HEADS),
    )
    return Scan(tuple(t.requires_grad_() for t in inputs), normal(n_batch, n_bars, N_HEADS, HEAD_DIM))


def transformers_scan(*inputs: Tensor, chunk: int) -> Tensor:
    """Return the output of transformers' scan."""
    x, dt, A, B, C, D = inputs
    return mamba2_chunk_scan(x, dt, A, B, C, chunk, D=D)


def mixer_like(block: Block, *, chunk: int) -> Mamba2Mixer:
    """Return transformers' mixer with the block's weights: `block(u)` is `u + mixer(block.norm(u))`."""
    n_heads, head_dim, d_state = block.state_shapes()[1]
    d_model, d_inner = block.in_proj.in_features, n_heads * head_dim
    config = Mamba2Config(
        hidden_size=d_model,
        expand=d_inner // d_model,
        num_heads=n_heads,
        head_dim=head_dim,
        state_size=d_state,
        n_groups=block.n_groups,
        conv_kernel=block.conv_weight_KC.shape[0],
        chunk_size=chunk,
        layer_norm_epsilon=NORM_EPS,
        time_step_limit=(float(block.dt_min), float(block.dt_max)),
        num_hidden_layers=1,
    )
    mixer = Mamba2Mixer(config, 0)
    weights = {
        "in_proj.weight": block.in_proj.weight,
        "conv1d.weight": block.conv_weight_KC.T.unsqueeze(1),
        "conv1d.bias": block.conv_bias_C,
        "dt_bias": block.dt_bias_H,
        "A_log": block.A_log_H,
        "D": block.D_H,
        "norm.weight": block.gated_norm.weight,
        "out_proj.weight": block.out_proj.weight,
    }
    mixer.load_state_dict({name: w.detach() for name, w in weights.items()})
    return mixer.to(block.in_proj.weight.dtype)


def layer() -> Block:
    """Return a seeded layer without the norm before it: `u + mixer(u)`."""
    torch.manual_seed(0)
    block = Block(
        D_MODEL,
        d_inner=D_INNER,
        head_dim=HEAD_DIM,
        d_state=D_STATE,
        n_groups=1,
        d_conv=D_CONV,
        dropout=0.0,
        dt_limit=(1e-6, 1.0),
        depth=1,
        spectral_limit=0.999,
    )
    block.norm = nn.Identity()  # type: ignore[assignment]
    return block.float()


def run_layer(module: Callable[[Tensor], Tensor], u: Tensor, grad: Tensor, *, parameters: nn.Module) -> Tensor:
    """Return the output of a forward and a backward pass."""
    parameters.zero_grad()
    u.grad = None
    out = module(u)
    out.backward(grad)
    return out


def ours(block: Block, u_BTM: Tensor, *, impl: str = "auto") -> Tensor:
    """Return the block's output from a state of zeros."""
    past = [torch.zeros(len(u_BTM), *shape) for shape in block.state_shapes()]
    if impl == "auto":
        out: Tensor = block(u_BTM, *past)[0]
        return out
    with patch.object(foxflow_mamba2.block, "ssd_scan", partial(ssd_scan, impl=impl)):
        return ours(block, u_BTM)


def theirs(block: Block, mixer: Mamba2Mixer, u_BTM: Tensor) -> Tensor:
    """Return the block's output with transformers' mixer in its place."""
    out: Tensor = u_BTM + mixer(block.norm(u_BTM))
    return out


def scan_cases(n_batch: int, n_bars: int, *, compiled: bool) -> dict[str, Case]:
    """Return scans of the same inputs."""
    scan = scan_inputs(n_batch, n_bars)
    cases: dict[str, Case] = {
        "chunked": partial(scan.run, partial(ssd_scan, impl="chunked")),
        "naive": partial(scan.run, partial(ssd_scan, impl="naive")),
    }
    for chunk in CHUNKS:
        cases[f"transformers {chunk}"] = partial(scan.run, partial(transformers_scan, chunk=chunk))
    if compiled:
        cases["chunked compiled"] = partial(scan.run, torch.compile(partial(ssd_scan, impl="chunked"), fullgraph=True))
    return cases


def layer_cases(n_batch: int, n_bars: int, *, compiled: bool) -> dict[str, Case]:
    """Return mixers with their residual."""
    block = layer()
    g = torch.Generator().manual_seed(1)
    u = torch.randn(n_batch, n_bars, D_MODEL, generator=g).requires_grad_()
    grad = torch.randn(u.shape, generator=g)
    cases: dict[str, Case] = {}
    for impl in ("chunked", "naive"):
        cases[impl] = partial(run_layer, partial(ours, block, impl=impl), u, grad, parameters=block)
    for chunk in CHUNKS:
        mixer = mixer_like(block, chunk=chunk)
        cases[f"transformers {chunk}"] = partial(run_layer, partial(theirs, block, mixer), u, grad, parameters=mixer)
    if compiled:
        whole = torch.compile(partial(ours, block), fullgraph=True)
        cases["chunked compiled"] = partial(run_layer, whole, u, grad, parameters=block)
    return cases


def check() -> float:
    """Return the greatest difference between the forms, relative to each tensor's largest magnitude."""
    scan = scan_inputs(4, 200)
    found = []
    forms = (partial(ssd_scan, impl="naive"), partial(ssd_scan, impl="chunked"), partial(transformers_scan, chunk=64))
    for form in forms:
        y = scan.run(form)
        found.append([y.detach(), *(t.grad for t in scan.inputs)])
    block = layer()
    u = torch.randn(4, 200, D_MODEL, generator=torch.Generator().manual_seed(2)).requires_grad_()
    mixer = mixer_like(block, chunk=64)
    layers = []
    for module in (partial(ours, block, impl="naive"), partial(ours, block), partial(theirs, block, mixer)):
        out = run_layer(module, u, torch.ones_like(u).cumsum(1), parameters=block)
        layers.append([out.detach(), u.grad])
    pairs = [
        (a, b)
        for expected, *others in (found, layers)
        for other in others
        for a, b in zip(other, expected, strict=True)
    ]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def least_seconds(cases: Mapping[str, Case], *, threads: int, rounds: int) -> dict[str, float]:
    """Return each case's least time over the rounds; a first round is not counted."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    least = dict.fromkeys(cases, math.inf)
    for round_ in range(rounds + 1):
        for name, case in cases.items():
            start = clock()
            case()
            seconds = clock() - start
            if round_:
                least[name] = min(least[name], seconds)
    return least


def kept_bytes(case: Case, *, inputs: tuple[Tensor, ...]) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, beside its inputs; shared memory once."""
    given = {t.untyped_storage().data_ptr() for t in inputs}
    kept: dict[int, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        # Held, so that no two kept tensors can have one address.
        kept[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        case()
    return sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in given)


def table(title: str, rows: Mapping[str, float], *, unit: str, scale: float) -> None:
    """Print the rows with each one's ratio to `chunked`."""
    print(f"\n{title}\n  {'':20}{unit:>10}{'ratio':>8}")
    for name, value in rows.items():
        print(f"  {name:20}{value * scale:10.1f}{value / rows['chunked']:8.2f}")


def main() -> int:
    """Check, measure, print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument("--compile", action="store_true", help="also time torch.compile, which needs a C++ compiler")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)

    print(f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}")
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; least of {args.rounds} alternated rounds")
    difference = check()
    print(f"forms agree within {difference:.1e} of the largest magnitude (limit {AGREEMENT:.0e})")
    if difference > AGREEMENT:
        return 1

    result: dict[str, dict[str, float]] = {}
    shape = f"B={N_BATCH} L={N_BARS} H={N_HEADS} P={HEAD_DIM} N={D_STATE} float32"
    for kind, cases in (("scan", scan_cases), ("layer", layer_cases)):
        made = cases(N_BATCH, N_BARS, compiled=args.compile)
        for threads in (1, 2):
            some = made if threads == 1 else {n: made[n] for n in ("chunked", "transformers 32")}
            rows = least_seconds(some, threads=threads, rounds=args.rounds)
            result[f"{kind}, {threads} thread{'s' * (threads > 1)}"] = rows
            table(f"{kind}, forward + backward, {shape}, threads={threads}", rows, unit="ms", scale=1e3)

    n_total = N_BATCH * N_BARS
    growing: dict[str, Case] = {}
    for length in LENGTHS:
        of_length = scan_cases(n_total // length, length, compiled=False)
        growing |= {f"{name} L={length}": of_length[name] for name in ("chunked", "transformers 32")}
    growth = least_seconds(growing, threads=1, rounds=args.rounds)
    result["growth"] = growth
    print(f"\nscan, us a bar at B*L={n_total}, threads=1\n  {'L':20}" + "".join(f"{n:8}" for n in LENGTHS))
    for name in ("chunked", "transformers 32"):
        print(f"  {name:20}" + "".join(f"{growth[f'{name} L={n}'] / n_total * 1e6:8.2f}" for n in LENGTHS))

    scan = scan_inputs(N_BATCH, N_BARS)
    forms = {"chunked": partial(ssd_scan, impl="chunked"), "naive": partial(ssd_scan, impl="naive")}
    forms |= {f"transformers {c}": partial(transformers_scan, chunk=c) for c in CHUNKS}
    kept = {n: float(kept_bytes(partial(f, *scan.inputs), inputs=scan.inputs)) for n, f in forms.items()}
    result["kept"] = kept
    table(f"scan, kept for the backward pass, {shape}", kept, unit="MB", scale=1e-6)

    one = result["layer, 1 thread"]
    best = min(v for n, v in one.items() if n.startswith("transformers"))
    ours_growth = [growth[f"chunked L={n}"] for n in LENGTHS]
    limits = {
        f"layer against transformers at its best chunk, at least {FASTER_THAN_BEST}": (
            best / one["chunked"],
            best / one["chunked"] >= FASTER_THAN_BEST,
        ),
        f"layer against transformers at its default chunk, at least {FASTER_THAN_DEFAULT}": (
            one[f"transformers {DEFAULT_CHUNK}"] / one["chunked"],
            one[f"transformers {DEFAULT_CHUNK}"] / one["chunked"] >= FASTER_THAN_DEFAULT,
        ),
        f"cost of a bar over all lengths, at most {GROWTH} between them": (
            max(ours_growth) / min(ours_growth),
            max(ours_growth) / min(ours_growth) <= GROWTH,
        ),
    }
    print()
    for name, (value, holds) in limits.items():
        print(f"{'holds' if holds else 'FAILS'}  {value:5.2f}  {name}")
    if args.json:
        ratios = {name: value for name, (value, _) in limits.items()}
        args.json.write_text(json.dumps({"seconds or bytes": result, "limits": ratios}, indent=2) + "\n", "utf-8")
    return 0 if all(holds for _, holds in limits.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
