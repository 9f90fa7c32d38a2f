"""The scan and the layer against another implementation of the paper, that of Hugging Face's transformers."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch_samples import one_thread  # noqa: F401

from foxflow_mamba2.block import Block
from foxflow_mamba2.ssd import ssd_scan

pytest.importorskip("transformers", reason="transformers comes with `make bench`")
BENCHMARK = Path(__file__).parents[2] / "plugins" / "mamba2" / "benchmarks" / "cpu.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mamba2_cpu_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_near(found: list[Tensor | None], expected: list[Tensor | None]) -> None:
    # Their scan is float32 throughout, whatever it is given.
    for a, b in zip(found, expected, strict=True):
        assert a is not None
        assert b is not None
        assert float((a - b).abs().max()) <= 2e-5 * float(b.abs().max())


@pytest.mark.parametrize("n_groups", [1, 2, 4])
@pytest.mark.parametrize("n_bars", [1, 33, 100])
def test_the_scan_equals_theirs_in_output_and_gradients(benchmark: ModuleType, n_bars: int, n_groups: int) -> None:
    g = torch.Generator().manual_seed(n_bars)
    drawn = [torch.randn(2, n_bars, *axes, generator=g) for axes in ((4, 8), (4,), (n_groups, 16), (n_groups, 16))]
    x, dt, B, C = drawn
    inputs = (x, torch.exp(dt - 2.0), -torch.exp(torch.randn(4, generator=g)), B, C, torch.randn(4, generator=g))
    both = []
    for form in (ssd_scan, lambda *t: benchmark.transformers_scan(*t, chunk=32)):
        leaves = [t.clone().requires_grad_() for t in inputs]
        y = form(*leaves)
        y.sin().sum().backward()
        both.append([y.detach(), *(t.grad for t in leaves)])
    assert_near(*both)


@pytest.mark.parametrize("n_groups", [1, 2])
def test_a_layer_equals_their_mixer_between_norm_and_residual(benchmark: ModuleType, n_groups: int) -> None:
    torch.manual_seed(0)
    block = Block(
        16,
        d_inner=32,
        head_dim=8,
        d_state=16,
        n_groups=n_groups,
        d_conv=4,
        dropout=0.0,
        dt_limit=(1e-6, 1.0),
        depth=1,
        spectral_limit=0.999,
    ).float()
    with torch.no_grad():
        for p in block.parameters():
            p.add_(0.1 * torch.randn(p.shape))
    mixer = benchmark.mixer_like(block, chunk=32)
    u = torch.randn(3, 70, 16)
    past = [torch.zeros(3, *shape) for shape in block.state_shapes()]
    y = block(u, *past)[0]
    expected = u + mixer(block.norm(u))
    grads = torch.autograd.grad(y.sin().sum(), (block.in_proj.weight, block.dt_bias_H, block.A_log_H, block.D_H))
    theirs = torch.autograd.grad(expected.sin().sum(), (mixer.in_proj.weight, mixer.dt_bias, mixer.A_log, mixer.D))
    assert_near([y.detach(), *grads], [expected.detach(), *theirs])
