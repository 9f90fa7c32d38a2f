"""Every kernel compiled by NVRTC for five architectures, without a GPU: registers and spills."""

from collections.abc import Iterator

import pytest
import torch

from foxflow_mamba2.ssd.cuda import nvrtc
from foxflow_mamba2.ssd.cuda.geometry import WIDTHS, Variant
from foxflow_mamba2.ssd.cuda.nvrtc import Compiler, KernelError

ARCHITECTURES = (80, 86, 90, 100, 120)
TYPES = (torch.float32, torch.bfloat16, torch.float64)


def largest_spill(variant: Variant) -> int:
    """Return the bytes, stored and loaded, that a thread may lose to memory: about twice what was measured at most."""
    if variant.real == "float":
        # ptxas gives up a few registers where that lets more warps run.
        return 128
    # A thread holds a 32nd of the state, twice in the backward kernel: in float64 soon too much for 255 registers.
    return 512 if variant.head_dim * variant.d_state < 48 * 64 else 16_384


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    try:
        return nvrtc.compiler()
    except KernelError as e:
        pytest.skip(str(e))


def check(compiler: Compiler, variant: Variant, architecture: int, *, spill: int) -> None:
    image, log = compiler.compile(variant, architecture)
    found = nvrtc.resources(log)
    print(
        f"{variant.name} sm_{architecture}",
        {kernel: f"{r} registers, {s} B spilled" for kernel, (r, s) in found.items()},
    )
    assert image.startswith(b"\x7fELF")
    assert set(found) == {"ssd_forward", "ssd_backward"}
    for kernel, (registers, spilled) in found.items():
        assert registers <= 255
        assert spilled <= spill, f"{kernel} spills {spilled} bytes"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", TYPES)
def test_the_reference_width_compiles_without_a_spill_for_every_architecture(
    compiler: Compiler, dtype: torch.dtype, architecture: int
) -> None:
    check(compiler, Variant(dtype, 32, 32), architecture, spill=0)


def spread() -> Iterator[tuple[Variant, int]]:
    """Yield every variant once, the architectures in turn."""
    variants = [Variant(t, P, N) for t in TYPES for P in WIDTHS for N in WIDTHS]
    for i, variant in enumerate(variants):
        yield variant, ARCHITECTURES[i % len(ARCHITECTURES)]


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "architecture"), [pytest.param(v, a, id=f"{v.name}-{a}") for v, a in spread()])
def test_every_variant_compiles(compiler: Compiler, variant: Variant, architecture: int) -> None:
    check(compiler, variant, architecture, spill=largest_spill(variant))


def test_source_that_does_not_compile_is_reported_with_the_compilers_words(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "source", lambda: "extern __global__ void f() { nothing(); }")
    with pytest.raises(KernelError, match=r"did not compile float_32_32 for sm_90: .*nothing"):
        compiler.compile(Variant(torch.float32, 32, 32), 90)


def test_registers_and_spills_are_read_from_the_log() -> None:
    log = """ptxas info    : Compiling entry function 'ssd_backward' for 'sm_90'
ptxas info    : Function properties for ssd_backward
    40 bytes stack frame, 36 bytes spill stores, 48 bytes spill loads
ptxas info    : Used 127 registers, used 1 barriers
ptxas info    : Compiling entry function 'ssd_forward' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 63 registers, used 1 barriers
"""
    assert nvrtc.resources(log) == {"ssd_backward": (127, 84), "ssd_forward": (63, 0)}
