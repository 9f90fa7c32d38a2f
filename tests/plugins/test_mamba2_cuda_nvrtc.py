"""Every kernel compiled by NVRTC for five architectures, without a GPU: registers and spills."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from foxflow_mamba2.ssd.cuda import nvrtc, resources
from foxflow_mamba2.ssd.cuda.geometry import Variant
from foxflow_mamba2.ssd.cuda.nvrtc import Compiler, KernelError
from foxflow_mamba2.ssd.cuda.resources import ARCHITECTURES, Resources

# Bytes that a thread stores and loads in vain, on the worst of the architectures; every other variant spills nothing.
# A thread holds a 32nd of the state, twice in the backward kernel, so 64 by 64 and float64 pass 255 registers; what is
# small the compiler gives up for another warp.
SPILLS = {
    "float_16_16": 52,
    "float_16_32": 16,
    "float_16_64": 16,
    "float_32_16": 96,
    "float_64_64": 1380,
    "bfloat16_16_16": 56,
    "bfloat16_16_32": 16,
    "bfloat16_32_16": 96,
    "bfloat16_64_64": 1380,
    "double_16_32": 72,
    "double_32_64": 1416,
    "double_64_32": 992,
    "double_64_64": 8736,
}


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    try:
        return nvrtc.compiler()
    except KernelError as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def measured(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    """Compile all 27 variants for all 5 architectures, in two processes, into a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        folder: Path = tmp_path_factory.mktemp("cubins")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        found = resources.measure(n_processes=2)
        assert len(list(folder.rglob("*.cubin"))) == len(found)
        yield found


@pytest.mark.slow
def test_every_variant_compiles_for_every_architecture(measured: Resources, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print("\n" + resources.table(measured))
    assert len(measured) == 27 * 5
    for kernels in measured.values():
        assert set(kernels) == {"ssd_forward", "ssd_backward"}
        # A block of 256 threads finds 255 registers for each.
        assert all(registers <= 255 for registers, _ in kernels.values())


@pytest.mark.slow
def test_no_variant_spills_more_than_is_known(measured: Resources) -> None:
    for (variant, architecture), kernels in measured.items():
        for kernel, (_, spilled) in kernels.items():
            allowed = SPILLS.get(variant.name, 0)
            assert spilled <= allowed, f"{kernel} of {variant.name} on sm_{architecture} spills {spilled} bytes"


def test_the_reference_width_compiles_without_a_spill(compiler: Compiler) -> None:
    image, log = compiler.compile(Variant(torch.float32, 32, 32), 90)
    assert image.startswith(b"\x7fELF")
    assert {kernel: spilled for kernel, (_, spilled) in resources.read(log).items()} == {
        "ssd_forward": 0,
        "ssd_backward": 0,
    }


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
    assert resources.read(log) == {"ssd_backward": (127, 84), "ssd_forward": (63, 0)}


def test_the_table_shows_registers_of_both_kernels_and_what_is_spilled() -> None:
    variant = Variant(torch.float32, 16, 32)
    lines = resources.table({(variant, 90): {"ssd_backward": (127, 84), "ssd_forward": (63, 0)}}).splitlines()
    assert lines[0].split() == ["registers", "fwd/bwd,", "+bytes", "spilled", "sm_90"]
    assert ["float_16_32", "63/127+84"] in [line.split() for line in lines]
    assert ["float_64_64", "-"] in [line.split() for line in lines]
    assert len(lines) == 28
    assert ARCHITECTURES == (80, 86, 90, 100, 120)
