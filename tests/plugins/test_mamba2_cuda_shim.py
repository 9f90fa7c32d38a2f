"""What only the CPU build of the CUDA kernels can show: races, missing barriers, stray accesses, 64-bit offsets."""

import re

import pytest
import torch
from cuda_shim.shim_runner import SOURCE, Shim, shim_fixture  # noqa: F401
from scan_checks import CPU, assert_right, assert_same_bits, gradients, inputs
from torch import Tensor
from torch_samples import one_thread  # noqa: F401

from foxflow_mamba2.ssd.cuda import ssd_cuda
from foxflow_mamba2.ssd.cuda.geometry import Variant, shared_bytes
from foxflow_mamba2.ssd.cuda.operator import ssd_forward


def test_a_shorter_block_gives_the_same_numbers_as_a_longer_one(shim: Shim) -> None:
    for limit, heads in ((227, 4), (100, 2), (60, 1)):
        shim.limit = limit * 1024
        shim.heads.clear()
        assert_right(inputs(40, n_groups=1), place=CPU)
        assert shim.heads[-1] == heads


def test_no_schedule_of_the_warps_changes_a_bit(shim: Shim) -> None:
    data = inputs(100, n_groups=2)
    first = gradients(data, ssd_cuda)
    for seed in (2, 3):
        shim.seed = seed
        assert_same_bits(gradients(data, ssd_cuda), first)


def barriers() -> list[tuple[str, int]]:
    return [
        (path.name, number)
        for path in sorted(SOURCE.glob("*.cuh"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"__sync(threads|warp)\(\)", line)
    ]


def test_the_barriers_are_found() -> None:
    assert len(barriers()) == 12


@pytest.mark.parametrize(("file", "line"), barriers())
def test_a_missing_barrier_is_caught_under_every_schedule(shim: Shim, file: str, line: int) -> None:
    data = inputs(40, n_batch=1, n_heads=2)
    for seed in (1, 2, 3):
        shim.seed = seed
        with shim.without_barrier(file, line), pytest.raises(AssertionError, match=r"race|before written"):
            gradients(data, ssd_cuda)
    gradients(data, ssd_cuda)


def test_an_access_outside_a_tensor_or_the_blocks_memory_is_caught(shim: Shim) -> None:
    x, dt, A, B, C, D, state = inputs(20, head_dim=16, d_state=16)
    out = [torch.empty_like(x), torch.empty_like(state), torch.empty(0, dtype=torch.float64)]
    variant = Variant(torch.float64, 16, 16)

    def forward(tensors: list[Tensor], *, n_bytes: int) -> None:
        shim.launch(variant, "ssd_forward", n_blocks=2, heads=4, n_bytes=n_bytes, shape=(2, 20, 4, 1), tensors=tensors)

    enough = shared_bytes(variant, 4, backward=False)
    given = [x, dt, A, B, C, D, state, *out]
    forward(given, n_bytes=enough)
    with pytest.raises(AssertionError, match="shared access out of bounds"):
        forward(given, n_bytes=enough - 8)
    with pytest.raises(AssertionError, match="global access out of bounds"):
        forward([x[:1].contiguous(), *given[1:]], n_bytes=enough)
    with pytest.raises(AssertionError, match="output element never written"):
        forward([*given[:8], torch.empty(3000, dtype=torch.float64), given[9]], n_bytes=enough)


def test_shared_memory_is_used_to_its_last_byte(shim: Shim) -> None:
    # One element less is out of bounds, so the sizes that Python asks for are those of the kernels' layout.
    x, dt, A, B, C, D, state = inputs(4, n_batch=1, head_dim=16, d_state=16)
    y, final, saved = ssd_forward(x, dt, A, B, C, D, state, save=True)
    variant = Variant(torch.float64, 16, 16)
    outs = [torch.empty_like(t) for t in (x, dt, D[None], B, C, D[None], state)]
    with pytest.raises(AssertionError, match="shared access out of bounds"):
        shim.launch(
            variant,
            "ssd_backward",
            n_blocks=1,
            heads=4,
            n_bytes=shared_bytes(variant, 4, backward=True) - 8,
            shape=(1, 4, 4, 1),
            tensors=[x, dt, A, B, C, D, saved, y, final, *outs],
        )


def test_offsets_pass_2_to_the_31_without_wrapping(shim: Shim) -> None:
    # 4,096 rows of 1,024 bars and 16 heads in 4 groups, 4 heads a block: block 16,383 is the last, thread 96 its last
    # head. Times a width of 64 the offset into x is 4,294,967,232, past what 32 bits hold.
    shape = (4096, 1024, 16, 4)
    assert shim.offsets(shape, 4, 16_383, 96) == [67_108_863, 16_777_215, 65_535, 1_048_575]
    # More than 2^31 before any width: 2^20 rows of 4,096 bars and 16 heads in 1 group.
    shape = (2**20, 4096, 16, 1)
    assert shim.offsets(shape, 8, 2**21 - 1, 224) == [2**36 - 1, 2**32 - 1, 2**24 - 1, 2**30 - 1]
    assert shim.offsets(shape, 8, 2**21 - 2, 0) == [2**36 - 16, 2**32 - 1, 2**24 - 16, 2**30 - 16]


def test_no_offset_into_global_memory_is_a_32_bit_number() -> None:
    # What the kernels index global tensors with comes from Place, whose every function returns int64.
    place = (SOURCE / "tile.cuh").read_text().split("struct Place")[1].split("};")[0]
    assert re.findall(r"(\w+) of_\w+\(", place) == ["int64"] * 4
    assert "int64 batch, group, head, block;" in place
    kernels = "".join((SOURCE / name).read_text() for name in ("forward.cuh", "backward.cuh", "tile.cuh"))
    assert not re.search(r"\bint (bar|start|earlier|out|rows|here) = (?!.*PITCH)", kernels)


def test_no_header_is_included_and_no_atomic_used() -> None:
    for path in SOURCE.glob("*.cuh"):
        assert not re.search(r"#include|atomic[A-Z]", path.read_text()), path.name
