"""Times each scan forward and backward, beside the least time in which the device can move the bytes."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from gpu.scans import Inputs, Scan, Shape, draw, scan_of

REFERENCE = Shape(1024, 256, 8, 32, 32)
# The reference, the widths of a small and of a wide model, equal work at growing length, and more than a small grid.
SHAPES = (
    REFERENCE,
    Shape(64, 256, 4, 32, 32),
    Shape(64, 256, 8, 16, 16),
    Shape(64, 256, 2, 64, 64),
    Shape(256, 64, 4, 32, 32),
    Shape(16, 1024, 4, 32, 32),
    Shape(4, 4096, 4, 32, 32),
    Shape(4096, 1024, 16, 32, 32),
)
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
# The rivals have no float64.
_IN_FLOAT64 = ("cuda", "chunked")
# Rows of the batch whose output is compared with the chunked form in float64.
_COMPARED_ROWS = 4

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
    """Return the median seconds of a call on the current stream, the launch from Python included."""
    started = time.monotonic()
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    n_calls = 5 if time.monotonic() - started > 1.0 else 20
    pairs = []
    for _ in range(n_calls):
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


def time_scan(scan: Scan, given: Inputs, clock: Clock) -> tuple[float, float]:
    """Return the seconds of a forward pass that keeps nothing and of a backward pass that gives every gradient."""

    def forward() -> Tensor:
        with torch.no_grad():
            return scan(given)

    forward_s = clock(forward)
    y = scan(given)
    dy = torch.randn(y.shape, dtype=torch.float32, device=y.device).to(y.dtype)
    backward_s = clock(lambda: torch.autograd.grad(y, given.leaves(), dy, retain_graph=True))
    return forward_s, backward_s


def error_of(scan: Scan, given: Inputs) -> float:
    """Return the output's largest error on a few rows, relative to its largest magnitude, against float64."""
    x, dt, A, B, C, D = (t.detach() for t in given.leaves())
    rows = slice(0, _COMPARED_ROWS)
    few = Inputs(x[rows], dt[rows], A, B[rows], C[rows], D)
    wide = Inputs(*(t.double() for t in few.leaves()))
    with torch.no_grad():
        expected = scan_of("chunked")(wide)
        return float((scan(few).double() - expected).abs().max() / expected.abs().max())


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
    """Yield a line for every shape, type and scan: its times, or why there are none."""
    dtypes = tuple(dtypes)
    for shape in shapes:
        for dtype in dtypes:
            given: Inputs | None = None
            for name, scan in scans.items():
                if dtype == torch.float64 and name not in _IN_FLOAT64:
                    continue
                forward_floor_ms = 1e3 * forward_bytes(shape, dtype) / bandwidth
                backward_floor_ms = 1e3 * backward_bytes(shape, dtype) / bandwidth
                line = (str(shape), str(dtype).removeprefix("torch."), name, forward_floor_ms, backward_floor_ms)
                if isinstance(scan, str):
                    yield Row(*line, note=scan)
                elif seconds_left() <= 0:
                    yield Row(*line, note="dropped: the time is used up")
                else:
                    try:
                        given = draw(shape, dtype, device) if given is None else given
                        yield _timed(line, scan, given, clock)
                    # What a rival's compiler or the device's memory refuses is a line, not the end of the table.
                    except (RuntimeError, ValueError, TypeError, AssertionError) as e:
                        yield Row(*line, note=_first_line(e))
                        torch.cuda.empty_cache()


def _timed(line: tuple[str, str, str, float, float], scan: Scan, given: Inputs, clock: Clock) -> Row:
    error = error_of(scan, given)
    forward_s, backward_s = time_scan(scan, given, clock)
    return Row(*line, forward_ms=1e3 * forward_s, backward_ms=1e3 * backward_s, error=error)


def _first_line(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"
