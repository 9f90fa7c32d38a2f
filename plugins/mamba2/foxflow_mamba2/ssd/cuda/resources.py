"""Compiles every variant of the kernels and tells each one's registers and spills; needs NVRTC, no GPU.

`python -m foxflow_mamba2.ssd.cuda.resources` prints the table for the architectures that are tested.
"""

import multiprocessing
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import torch

from foxflow_mamba2.ssd.cuda import nvrtc
from foxflow_mamba2.ssd.cuda.geometry import WIDTHS, Variant

ARCHITECTURES = (80, 86, 90, 100, 120)
DTYPES = (torch.float32, torch.bfloat16, torch.float64)

# Registers and bytes spilled of each kernel, by variant and architecture.
Resources = Mapping[tuple[Variant, int], Mapping[str, tuple[int, int]]]


def variants() -> list[Variant]:
    """Return every variant, the slowest to compile first, so that processes end together."""
    every = [Variant(t, P, N) for t in DTYPES for P in WIDTHS for N in WIDTHS]
    return sorted(every, key=lambda v: v.head_dim * v.d_state * v.real_dtype.itemsize, reverse=True)


def measure(architectures: Iterable[int] = ARCHITECTURES, *, n_processes: int) -> Resources:
    """Return what every variant needs on each architecture; the cubins are kept in the user's cache folder.

    Raises
    ------
    KernelError
        NVRTC is absent or refuses the source.
    """
    nvrtc.compiler()
    jobs = [(v, a) for v in variants() for a in architectures]
    # Fresh processes: a fork copies the locks of the threads that torch has running.
    with ProcessPoolExecutor(n_processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        return dict(zip(jobs, pool.map(_one, jobs), strict=True))


def _one(job: tuple[Variant, int]) -> dict[str, tuple[int, int]]:
    variant, architecture = job
    image, log = nvrtc.compiler().compile(variant, architecture)
    nvrtc.keep(variant, architecture, image)
    return read(log)


def read(log: str) -> dict[str, tuple[int, int]]:
    """Return each kernel's registers and bytes spilled, stores and loads, read from a compilation's log."""
    blocks = re.split(r"Compiling entry function '(\w+)'", log)[1:]
    found: dict[str, tuple[int, int]] = {}
    for kernel, text in zip(blocks[::2], blocks[1::2], strict=True):
        registers = re.search(r"Used (\d+) registers", text)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
        if registers and spills:
            found[kernel] = (int(registers[1]), int(spills[1]) + int(spills[2]))
    return found


def table(measured: Resources) -> str:
    """Return lines of text: a variant a line, `forward/backward` registers an architecture, `+n` bytes spilled."""
    architectures = sorted({a for _, a in measured})
    return "\n".join(_lines(measured, architectures))


def _lines(measured: Resources, architectures: Sequence[int]) -> Iterator[str]:
    yield f"{'registers fwd/bwd, +bytes spilled':<36}" + "".join(f"{f'sm_{a}':>22}" for a in architectures)
    for variant in variants():
        cells = [measured.get((variant, a), {}) for a in architectures]
        yield f"{variant.name:<36}" + "".join(
            f"{'/'.join(_cell(*cell[k]) for k in ('ssd_forward', 'ssd_backward') if k in cell) or '-':>22}"
            for cell in cells
        )


def _cell(registers: int, spilled: int) -> str:
    return f"{registers}+{spilled}" if spilled else str(registers)


if __name__ == "__main__":
    sys.stdout.write(table(measure(n_processes=2)) + "\n")
