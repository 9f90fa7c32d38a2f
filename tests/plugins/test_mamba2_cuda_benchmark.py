"""`make test-gpu` up to the launches: bytes, times, ratios, the budget, the rivals' arguments, the words without a GPU."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda_shim.shim_runner import SOURCE, Shim, shim_fixture  # noqa: F401
from scan_checks import TOLERANCE
from torch import Tensor
from torch_samples import one_thread  # noqa: F401

from foxflow_mamba2.ssd.cuda.nvrtc import KernelError

BENCHMARKS = Path(__file__).parents[2] / "plugins" / "mamba2" / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from gpu import __main__ as command
from gpu import sanitized, scans, table, timing

CPU = torch.device("cpu")
TINY = scans.Shape(2, 5, 4, 8, 8, 2)


def ticking(seconds: float) -> Callable[[Callable[[], object]], float]:
    """Return a clock by which every call takes so many seconds."""

    def clock(run: Callable[[], object]) -> float:
        run()
        return seconds

    return clock


def lines(found: dict[str, Any], **changes: Any) -> list[timing.Row]:
    given = {"device": CPU, "bandwidth": 1e6, "clock": ticking(0.004), "seconds_left": lambda: 100.0}
    given |= {"shapes": (TINY,), "dtypes": (torch.float32,)}
    return list(timing.rows(found, **given | changes))


def test_the_least_bytes_are_each_tensor_once() -> None:
    # 1024 rows of 256 bars and 8 heads: x 268.4 MB, dt 8.4, B and C 33.6 each.
    assert timing.forward_bytes(timing.REFERENCE, torch.float32) == 612_368_384
    assert timing.backward_bytes(timing.REFERENCE, torch.float32) == 956_301_312
    assert timing.forward_bytes(timing.REFERENCE, torch.bfloat16) == 306_184_192


def test_a_row_holds_both_times_their_floors_and_the_error() -> None:
    (row,) = lines({"chunked": scans.scan_of("chunked")})
    # x and y of 2 * 5 * 4 * 8 numbers, dt of 40, B and C of 160: 1,000 numbers, 4,000 bytes at a megabyte a second.
    assert (row.forward_ms, row.backward_ms, row.forward_floor_ms) == (4.0, 4.0, 4.0)
    # Three of 320, two of 40, four of 160.
    assert row.backward_floor_ms == pytest.approx(6.72)
    assert (row.shape, row.dtype, row.scan, row.note) == ("B2 L5 H4 P8 N8 G2", "float32", "chunked", "")
    assert row.error is not None
    assert 0 < row.error < 1e-5


def test_a_wrong_scan_shows_in_the_error() -> None:
    (row,) = lines({"naive": lambda given: 2 * scans.scan_of("naive")(given)})
    assert row.error == pytest.approx(1.0, rel=1e-5)
    assert row.note == "wrong: the error is not within 2e-05"


def last_row_doubled(given: scans.Inputs) -> Tensor:
    y = scans.scan_of("chunked")(given)
    return torch.cat([y[:-1], 2 * y[-1:]])


def gradient_doubled(given: scans.Inputs) -> Tensor:
    y = scans.scan_of("chunked")(given)
    # The same numbers, twice the gradient.
    return 2 * y - y.detach()


def not_a_number(given: scans.Inputs) -> Tensor:
    y = scans.scan_of("chunked")(given)
    return torch.cat([y[:-1], y[-1:] * torch.nan])


@pytest.mark.parametrize("scan", [last_row_doubled, gradient_doubled, not_a_number])
def test_the_last_row_and_the_gradient_of_x_are_judged_at_the_full_shape(scan: scans.Scan) -> None:
    # Seven rows: the last is not among the first.
    (row,) = lines({"cuda": scan}, shapes=(scans.Shape(7, 5, 4, 8, 8, 2),))
    assert row.error is not None
    assert not row.error < 0.1
    assert row.note.startswith("wrong")


def test_the_tolerances_are_those_of_the_tests() -> None:
    assert timing.TOLERANCE == TOLERANCE


def test_time_that_is_used_up_is_said_in_each_row_that_it_costs() -> None:
    # Ours need 20 s, rivals 60; the rivals come last and have no float64.
    left = iter([21.0, 20.0, 61.0])
    found = {"naive": scans.scan_of("naive"), "chunked": scans.scan_of("chunked")}
    rows = lines(found, seconds_left=lambda: next(left), shapes=(TINY,), dtypes=(torch.float32, torch.float64))
    assert [(r.scan, r.dtype, r.forward_ms, r.note) for r in rows] == [
        ("chunked", "float32", 4.0, ""),
        ("chunked", "float64", None, "dropped: the time is used up"),
        ("naive", "float32", 4.0, ""),
    ]
    (rival,) = lines({"naive": scans.scan_of("naive")}, seconds_left=lambda: 60.0)
    assert rival.note == "dropped: the time is used up"


def test_a_scan_that_is_absent_or_fails_is_a_row_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: scans.Inputs) -> Tensor:
        raise torch.OutOfMemoryError("tried to allocate")

    def broken(_: scans.Inputs) -> Tensor:
        raise subprocess.CalledProcessError(1, "ptxas")

    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(sys.exc_info() == (None, None, None)))
    rows = lines({"cuda": full, "mamba_ssm": "not here", "simple_gla": broken, "chunked": scans.scan_of("chunked")})
    assert [(r.scan, r.note) for r in rows] == [
        ("cuda", "out of memory"),
        ("chunked", ""),
        ("mamba_ssm", "not here"),
        ("simple_gla", "failed: CalledProcessError: Command 'ptxas' returned non-zero exit status 1."),
    ]
    # Once, for what did not fit, and when nothing holds the tensors any more.
    assert emptied == [True]


def test_a_failure_of_the_kernels_or_of_a_dead_device_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: scans.Inputs) -> Tensor:
        raise KernelError("cuLaunchKernel failed with code 700\nmore")

    def dead() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", dead)
    rows = lines({"cuda": fails, "chunked": scans.scan_of("chunked")})
    assert [r.note for r in rows] == ["failed: KernelError: cuLaunchKernel failed with code 700", ""]


def test_no_timed_grid_of_a_rival_is_too_large() -> None:
    # mamba_ssm lays rows by chunks of 64 along the second axis of a grid, simple_gla rows by heads: 65,535 at most.
    for shape in timing.SHAPES:
        assert shape.n_batch * -(-shape.n_bars // 64) <= 65_535
        assert shape.n_batch * shape.n_heads <= 65_535


def test_the_table_gives_ratios_to_the_floor_and_to_our_kernels() -> None:
    rows = [
        timing.Row("S", "float32", "cuda", 0.5, 1.0, 1.0, 3.0, 1e-6),
        timing.Row("S", "float32", "chunked", 0.5, 1.0, 4.0, 6.0, 2e-6),
        timing.Row("S", "float32", "mamba_ssm", 0.5, 1.0, note="not installed"),
    ]
    assert table.head().split()[:4] == ["shape", "type", "scan", "forward"]
    text = [table.line(row, rows[:i]).split() for i, row in enumerate(rows)]
    assert text[0] == ["S", "float32", "cuda", "1.000", "2.00", "3.000", "3.00", "1.00", "1.0e-06"]
    assert text[1] == ["S", "float32", "chunked", "4.000", "8.00", "6.000", "6.00", "2.50", "2.0e-06"]
    assert text[2] == ["S", "float32", "mamba_ssm", "-", "-", "-", "-", "-", "-", "not", "installed"]
    found = json.loads(table.to_json({"device": "D"}, rows))
    assert (found["device"], found["rows"][1]["forward_ms"], found["rows"][2]["note"]) == ("D", 4.0, "not installed")


def test_bandwidth_counts_what_is_read_and_what_is_written() -> None:
    assert timing.copy_bandwidth(CPU, ticking(0.5), n_bytes=1000) == 4000.0


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float) -> tuple[Tensor, None]:
    """Gated linear attention as its authors define it: S = exp(g) S + k v^T, o = scale q S."""
    state = torch.zeros(*k.shape[::2], k.shape[3], v.shape[3], dtype=v.dtype)
    outputs = []
    for t in range(q.shape[1]):
        state = state * torch.exp(g[:, t])[..., None, None].to(v.dtype) + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append(scale * torch.einsum("bhn,bhnp->bhp", q[:, t], state))
    return torch.stack(outputs, 1), None


def test_gated_linear_attention_is_given_the_same_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla", SimpleNamespace(ops=None))
    monkeypatch.setitem(sys.modules, "fla.ops", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "fla.ops.simple_gla", SimpleNamespace(chunk_simple_gla=recurrence))
    given = scans.draw(TINY, torch.float32, CPU)
    expected = scans.scan_of("naive")(given)
    error = (scans.simple_gla()(given) - expected).detach().abs().max()
    assert float(error) < 1e-5 * float(expected.detach().abs().max())


def test_mamba_ssm_is_given_its_own_order_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(x: Any, dt: Any, A: Any, B: Any, C: Any, *, chunk_size: int, D: Any) -> Tensor:
        assert (chunk_size, A.dtype, D.dtype, x.dtype) == (64, torch.float32, torch.float32, torch.bfloat16)
        given = scans.Inputs(x, dt, A.to(x.dtype), B, C, D.to(x.dtype))
        return scans.scan_of("naive")(given)

    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    stand_in = SimpleNamespace(mamba_chunk_scan_combined=scan)
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops.triton.ssd_combined", stand_in)
    given = scans.draw(TINY, torch.bfloat16, CPU)
    assert torch.equal(scans.mamba_ssm()(given), scans.scan_of("naive")(given))


def test_rivals_that_are_not_installed_are_named() -> None:
    found = scans.available()
    assert list(found) == ["cuda", "chunked", "mamba_ssm", "simple_gla"]
    assert found["mamba_ssm"] == "cannot be imported: ModuleNotFoundError: No module named 'mamba_ssm'"


def test_what_the_sanitizer_watches_runs(shim: Shim) -> None:
    found = list(sanitized.run(CPU))
    assert [g.dtype for g in found] == [torch.float32, torch.bfloat16, torch.float64]
    assert all(bool(g.isfinite().all()) for g in found)


def test_a_tool_that_complains_fails_and_one_that_is_too_slow_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    def watched(code: str, limit_s: float = 60.0) -> bool | None:
        return command.watched("memcheck", [sys.executable, "-c", code], {}, limit_s)

    assert watched("print('ERROR SUMMARY: 0 errors')") is True
    assert watched("print('Invalid write'); raise SystemExit(9)") is False
    assert watched("import time; time.sleep(60)", 0.2) is None
    assert watched("print('========= Internal Sanitizer Error: Device not supported'); raise SystemExit(9)") is None
    assert watched("import sys; sys.stderr.write('Unable to start: error 999 (unknown)')") is None
    assert watched("print('nothing was started')") is None
    said = capsys.readouterr().out
    assert "memcheck: ERROR SUMMARY: 0 errors" in said
    assert "memcheck: Invalid write" in said
    assert "memcheck: not finished after 0 s" in said
    assert "memcheck: not watched: Internal Sanitizer Error: Device not supported" in said
    assert "memcheck: not watched: Unable to start: error 999 (unknown)" in said
    assert "memcheck: not watched: it ended without a summary" in said


def test_what_a_stopped_process_started_ends_with_it(tmp_path: Path) -> None:
    # The grandchild holds the pipe: without its end the output would not end either.
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    process = command.start([sys.executable, "-c", code], tmp_path, {})
    started = time.monotonic()
    assert command.finish(process, 1.0) == ("", False)
    assert time.monotonic() - started < 30
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("answer", "not_shown"),
    [
        ("ERROR SUMMARY: 0 errors", []),
        ("Device not supported", ["not shown to be clean: memcheck, racecheck, synccheck"]),
        ("Invalid write; exit 9", []),
    ],
)
def test_the_sanitizer_watches_our_kernels_alone_and_what_it_did_not_show_is_said(
    answer: str, not_shown: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho {answer}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert command.sanitize(60.0) is ("exit 9" not in answer)
    assert [line for line in capsys.readouterr().out.splitlines() if "not shown" in line] == not_shown
    asked = [line.split(f" {sys.executable}")[0] for line in (tmp_path / "asked").read_text().splitlines()]
    assert asked == [
        "--tool memcheck --report-api-errors no --kernel-name kns=ssd_ --error-exitcode 9",
        "--tool racecheck --kernel-name kns=ssd_ --error-exitcode 9",
        "--tool synccheck --kernel-name kns=ssd_ --error-exitcode 9",
    ]


def test_the_kernels_bear_the_name_that_the_sanitizer_looks_for() -> None:
    assert re.findall(r"\bssd_\w+\(", (SOURCE / "entry.cuh").read_text()) == ["ssd_forward(", "ssd_backward("]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system tells no process its CPUs")
def test_as_many_processes_compile_as_this_one_may_use_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for n_allowed, n_processes in ((3, 3), (64, 27)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=n_allowed: set(range(n)))
        assert command.processes() == n_processes


def test_the_times_are_printed_and_written_and_a_failure_of_ours_is_one_of_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: scans.Inputs) -> Tensor:
        raise RuntimeError("launch failed")

    monkeypatch.setattr(timing, "copy_bandwidth", lambda *_: 2e12)
    monkeypatch.setattr(timing, "device_clock", ticking(0.001))
    monkeypatch.setattr(timing, "rows", partial(timing.rows, shapes=(TINY,), dtypes=(torch.float32,)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A Device")
    monkeypatch.setattr(command.driver, "architecture", lambda _: 90)
    target = tmp_path / "data" / "gpu.json"
    for ours, good in ((scans.scan_of("chunked"), True), (not_a_number, False), (fails, False)):
        monkeypatch.setattr(command, "available", lambda ours=ours: {"cuda": ours, "chunked": scans.scan_of("chunked")})
        assert command.time_all(CPU, target, lambda: 100.0) is good
    assert "A Device, sm_90" in capsys.readouterr().out
    written = json.loads(target.read_text())
    assert [r["note"] for r in written["rows"]] == ["failed: RuntimeError: launch failed", ""]
    assert written["copy_bytes_per_s"] == 2e12


def test_what_was_timed_is_printed_and_written_when_a_later_row_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(_: scans.Inputs) -> Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(timing, "copy_bandwidth", lambda *_: 2e12)
    monkeypatch.setattr(timing, "device_clock", ticking(0.001))
    monkeypatch.setattr(timing, "rows", partial(timing.rows, shapes=(TINY,), dtypes=(torch.float32,)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A Device")
    monkeypatch.setattr(command.driver, "architecture", lambda _: 90)
    monkeypatch.setattr(command, "available", lambda: {"cuda": scans.scan_of("chunked"), "simple_gla": stopped})
    with pytest.raises(KeyboardInterrupt):
        command.time_all(CPU, tmp_path / "gpu.json", lambda: 100.0)
    assert "B2 L5 H4 P8 N8 G2" in capsys.readouterr().out
    assert [r["scan"] for r in json.loads((tmp_path / "gpu.json").read_text())["rows"]] == ["cuda"]


def test_a_part_of_the_tests_that_fails_or_runs_out_of_time_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def proves(code: str, limit_s: float) -> bool:
        monkeypatch.setattr(command, "command", lambda *_: [sys.executable, "-c", code])
        return command.prove(limit_s)

    assert proves("print('3 passed')", 60.0)
    assert not proves("print('1 failed'); raise SystemExit(1)", 60.0)
    assert not proves("import time; time.sleep(60)", 1.0)
    said = capsys.readouterr().out
    assert "tests, slow float32: 3 passed" in said
    assert "stopped: 1 s are used up; run" in said


def test_the_tests_of_the_device_are_cut_without_loss() -> None:
    # Those that are not slow are one part; each slow one must have the name of exactly one other part.
    line = command.command("slow", "")
    done = subprocess.run([*line, "--collect-only"], cwd=command.REPOSITORY, capture_output=True, text=True, check=True)
    names = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(names) == 3 * 36
    assert all("[device" in name for name in names)
    assert command._PARTS[0] == ("not slow", "")
    assert all(sum(part in name for _, part in command._PARTS[1:]) == 1 for name in names)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_one_line_says_what_is_missing() -> None:
    done = subprocess.run([sys.executable, "-m", "gpu"], cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("make test-gpu needs an NVIDIA GPU: torch")
    assert "finds no CUDA device" in done.stdout
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
