"""Times each scan forward and backward, beside the least time in which the device can move the bytes."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import median

import torch
from torch import Tensor

from gpu.scans import Inputs, Scan, Shape, draw, scan_of

REFERENCE = Shape(1024, 256, 8, 32, 32)
# The reference, the widths of a small and of a wide model, equal work at growing length, and the most that the rivals
# take: 4096 rows of 16 chunks are one more than the second axis of a grid.
SHAPES = (
    REFERENCE,
    Shape(64, 256, 4, 32, 32),
    Shape(64, 256, 8, 16, 16),
    Shape(64, 256, 2, 64, 64),
    Shape(256, 64, 4, 32, 32),
    Shape(16, 1024, 4, 32, 32),
    Shape(4, 4096, 4, 32, 32),
    Shape(4095, 1024, 16, 32, 32),
)
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
# Those of the tests of the kernels.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 1e-2}
OURS = ("cuda", "chunked")
# A case that has begun is not cut, and a rival's first call tries out many launches of each of its kernels.
_OUR_RESERVE_S, _RIVAL_RESERVE_S = 20.0, 60.0
# The first and the last rows of the batch that are compared with the chunked form in float64.
_COMPARED_ROWS = 2
# More than the second-level cache of any device.
_CACHE_BYTES = 2**28
_FULL = "out of memory"

# Seconds that one call takes.
Clock = Callable[[Callable[[], object]], float]


@dataclass(frozen=True)
class Row:
    """One line of the table; times in milliseconds, None where there is only a note."""

    shape: str
    dtype: str
    scan: str
    forward_floor_ms: float
    backward_floor_ms: float
    forward_ms: float | None = None
    backward_ms: float | None = None
    error: float | None = None
    note: str = ""


def forward_bytes(shape: Shape, dtype: torch.dtype) -> int:
    """Return what any forward pass moves at least: x, dt, B and C in, y out."""
    return (2 * _heads(shape) + _steps(shape) + 2 * _groups(shape)) * dtype.itemsize


def backward_bytes(shape: Shape, dtype: torch.dtype) -> int:
    """Return what any backward pass moves at least: x, dt, B, C and dy in, the gradients of the first four out."""
    return (3 * _heads(shape) + 2 * _steps(shape) + 4 * _groups(shape)) * dtype.itemsize


def _steps(shape: Shape) -> int:
    return shape.n_batch * shape.n_bars * shape.n_heads


def _heads(shape: Shape) -> int:
    return _steps(shape) * shape.head_dim


def _groups(shape: Shape) -> int:
    return shape.n_batch * shape.n_bars * shape.n_groups * shape.d_state


def device_clock(run: Callable[[], object]) -> float:
    """Return the median seconds of a call on the current stream that finds its tensors in memory, not in the cache.

    A launch from Python counts as far as it takes longer than the overwriting of the cache before it.
    """
    overwritten = torch.empty(_CACHE_BYTES, dtype=torch.uint8, device="cuda")
    # The first call compiles.
    run()
    torch.cuda.synchronize()
    started = time.monotonic()
    run()
    torch.cuda.synchronize()
    n_calls = 5 if time.monotonic() - started > 0.3 else 20
    pairs = []
    for _ in range(n_calls):
        overwritten.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in pairs) / 1e3


def copy_bandwidth(device: torch.device, clock: Clock, *, n_bytes: int = 2**30) -> float:
    """Return the bytes a second that a copy on the device reads and writes."""
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * n_bytes / clock(lambda: target.copy_(source))


def time_scan(scan: Scan, given: Inputs, clock: Clock) -> tuple[float, float, float]:
    """Return the seconds of a forward pass that keeps nothing, of a backward pass to every gradient, and the error."""

    def forward() -> Tensor:
        with torch.no_grad():
            return scan(given)

    forward_s = clock(forward)
    y = scan(given)
    dy = torch.randn(y.shape, dtype=torch.float32, device=y.device).to(y.dtype)
    (dx,) = torch.autograd.grad(y, given.x, dy, retain_graph=True)
    error = error_of(given, y, dy, dx)
    del dx
    backward_s = clock(lambda: torch.autograd.grad(y, given.leaves(), dy, retain_graph=True))
    return forward_s, backward_s, error


def error_of(given: Inputs, y: Tensor, dy: Tensor, dx: Tensor) -> float:
    """Return the largest error of the output and of x's gradient on the batch's first and last rows, NaN if any is one.

    Each is relative to its largest magnitude, against float64: a row's own are those of a scan of that row alone.
    """
    x, dt, A, B, C, D = (t.detach() for t in given.leaves())
    n_rows = min(_COMPARED_ROWS, len(x))
    rows = torch.tensor([*range(n_rows), *range(len(x) - n_rows, len(x))], device=x.device)
    wide = Inputs(*(t.double().requires_grad_() for t in (x[rows], dt[rows], A, B[rows], C[rows], D)))
    expected = scan_of("chunked")(wide)
    (expected_dx,) = torch.autograd.grad(expected, wide.x, dy[rows].double())
    pairs = ((y.detach()[rows], expected.detach()), (dx[rows], expected_dx))
    errors = [(found.double() - right).abs().max() / right.abs().max() for found, right in pairs]
    return float(torch.stack(errors).max())


def rows(
    scans: Mapping[str, Scan | str],
    *,
    device: torch.device,
    bandwidth: float,
    clock: Clock,
    seconds_left: Callable[[], float],
    shapes: Iterable[Shape] = SHAPES,
    dtypes: Iterable[torch.dtype] = DTYPES,
) -> Iterator[Row]:
    """Yield a line for every shape, type and scan, ours before the rivals': its times, or why there are none."""
    cases = list(product(shapes, dtypes))
    for names, reserve_s in ((OURS, _OUR_RESERVE_S), (scans.keys() - OURS, _RIVAL_RESERVE_S)):
        chosen = {name: scan for name, scan in scans.items() if name in names}
        for (shape, dtype), (name, scan) in product(cases, chosen.items()):
            # The rivals have no float64.
            if dtype == torch.float64 and name not in OURS:
                continue
            row = Row(
                str(shape),
                str(dtype).removeprefix("torch."),
                name,
                1e3 * forward_bytes(shape, dtype) / bandwidth,
                1e3 * backward_bytes(shape, dtype) / bandwidth,
            )
            if isinstance(scan, str):
                yield replace(row, note=scan)
            elif seconds_left() <= reserve_s:
                yield replace(row, note="dropped: the time is used up")
            else:
                yield _timed(row, scan, partial(draw, shape, dtype, device), clock)


def _timed(row: Row, scan: Scan, drawn: Callable[[], Inputs], clock: Clock) -> Row:
    try:
        return _measured(row, scan, drawn(), clock)
    # Whatever our kernels, a rival's compiler or the device's memory refuse is a line, not the end of the table.
    except Exception as e:  # noqa: BLE001
        note = _first_line(e)
    if note == _FULL:
        # Not in the clause: while the exception lives, so do the frames that hold the tensors.
        torch.cuda.empty_cache()
    return replace(row, note=note)


def _measured(row: Row, scan: Scan, given: Inputs, clock: Clock) -> Row:
    forward_s, backward_s, error = time_scan(scan, given, clock)
    allowed = TOLERANCE[given.x.dtype]
    # A NaN is not within it.
    note = "" if error <= allowed else f"wrong: the error is not within {allowed:.0e}"
    return replace(row, forward_ms=1e3 * forward_s, backward_ms=1e3 * backward_s, error=error, note=note)


def _first_line(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return _FULL
    return f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"
