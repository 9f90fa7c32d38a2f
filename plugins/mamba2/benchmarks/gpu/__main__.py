"""Compiles, proves and times the CUDA scan on this machine's GPU within eight minutes: one table, one JSON file."""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from foxflow_mamba2.ssd.cuda import driver, nvrtc, resources
from gpu import table, timing
from gpu.scans import available

REPOSITORY = Path(__file__).parents[4]
BUDGET_S = 465.0
_TESTS_S, _SANITIZER_S = 200.0, 45.0
# The tests in as many processes: each spends most of its time in the recurrence on the CPU.
_PARTS = (("not slow", ""), ("slow", "float64"), ("slow", "float32"), ("slow", "bfloat16"))
_TESTS = ("tests/plugins/test_mamba2_cuda.py", "tests/plugins/test_mamba2_cuda_device.py")
# memcheck alone can report calls that fail: torch's own do, and go on.
_TOOLS = {"memcheck": ("--report-api-errors", "no"), "racecheck": (), "synccheck": ()}
_REFUSED = r"Device not supported|Internal Sanitizer Error|error 999\b"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where everything ran and was right."""
    parser = argparse.ArgumentParser(prog="gpu", description=__doc__)
    parser.add_argument("--json", type=Path, default=REPOSITORY / "data" / "gpu.json", help="where the numbers go")
    target = parser.parse_args(arguments).json
    reason = missing()
    if reason is not None:
        say(f"make test-gpu needs an NVIDIA GPU: {reason}")
        return 1
    end = time.monotonic() + BUDGET_S
    device = torch.device("cuda", torch.cuda.current_device())
    compile_all(device)
    proven = prove(min(_TESTS_S, end - time.monotonic()))
    clean = sanitize(end - time.monotonic())
    timed = time_all(device, target, lambda: end - time.monotonic())
    return 0 if proven and clean and timed else 1


def missing() -> str | None:
    """Return why nothing can run here, or None."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device; it takes the driver and a CUDA build of torch"
    return driver.missing(torch.device("cuda", torch.cuda.current_device()))


def compile_all(device: torch.device) -> None:
    """Compile every variant for the device into the cache, and print registers and spills."""
    started = time.monotonic()
    architecture = driver.target(driver.architecture(device), nvrtc.compiler().architectures())
    assert architecture is not None
    measured = resources.measure([architecture], n_processes=processes())
    say(resources.table(measured))
    say(f"compiled {len(measured)} variants by NVRTC {nvrtc.compiler().name} in {time.monotonic() - started:.0f} s\n")


def processes() -> int:
    """Return in how many processes to compile: one for each CPU that this one may use, as far as there are variants."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, len(resources.variants()))


def prove(limit_s: float) -> bool:
    """Run the tests of the kernels on the device, in a few processes; return whether all passed in time."""
    started = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [start(command(*part), REPOSITORY, environment) for part in _PARTS]
    good = True
    try:
        for (marker, name), process in zip(_PARTS, running, strict=True):
            output, ended = finish(process, max(1.0, limit_s - (time.monotonic() - started)))
            if not ended:
                output += f"\nstopped: {limit_s:.0f} s are used up; run {' '.join(command(marker, name))}"
            passed = process.returncode == 0
            good &= passed
            lines = output.rstrip().splitlines()
            say(f"tests, {marker} {name}: " + (lines[-1] if passed and lines else output))
    finally:
        for process in running:
            kill(process)
    say()
    return good


def command(marker: str, name: str) -> list[str]:
    """Return the command of one part of the tests."""
    chosen = ["-m", f"gpu and {marker}", *(["-k", name] if name else [])]
    # A warning of a new driver or torch is no fault of the kernels.
    options = ["-q", "--maxfail=3", "--tb=short", "-W", "default"]
    return [sys.executable, "-m", "pytest", *options, *chosen, *_TESTS]


def start(line: Sequence[str], folder: Path, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    """Start a process in a group of its own, so that all that it starts can be ended with it."""
    return subprocess.Popen(  # noqa: S603
        line,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]", limit_s: float) -> tuple[str, bool]:
    """Return what a process printed and whether it ended in time; one that did not is killed with all it started."""
    try:
        return process.communicate(timeout=limit_s)[0], True
    except subprocess.TimeoutExpired:
        kill(process)
        return process.communicate()[0], False
    finally:
        # An interrupt at the terminal does not reach its group.
        kill(process)


def kill(process: "subprocess.Popen[str]") -> None:
    """End a process that still runs, and its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def sanitize(limit_s: float) -> bool:
    """Run both kernels under compute-sanitizer's tools; return whether none of them complains, and say which looked."""
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        say("compute-sanitizer is not installed (it comes with the CUDA toolkit): memory and races not watched\n")
        return True
    started = time.monotonic()
    # Each tensor an allocation of its own: inside torch's pool an access beyond one lands in the next.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    found: dict[str, bool | None] = {}
    for check, options in _TOOLS.items():
        left = min(_SANITIZER_S, limit_s - (time.monotonic() - started))
        if left <= 0:
            say(f"{check}: dropped: the time is used up")
            found[check] = None
            continue
        line = [tool, "--tool", check, *options, "--kernel-name", "kns=ssd_", "--error-exitcode", "9"]
        found[check] = watched(check, [*line, sys.executable, "-m", "gpu.sanitized"], environment, left)
    not_shown = [check for check, clean in found.items() if clean is None]
    say(f"not shown to be clean: {', '.join(not_shown)}\n" if not_shown else "")
    return False not in found.values()


def watched(check: str, line: Sequence[str], environment: Mapping[str, str], limit_s: float) -> bool | None:
    """Run one tool; return whether it found nothing, or None where it did not look to the end."""
    process = start(line, Path(__file__).parents[1], environment)
    said, ended = finish(process, limit_s)
    said = said.rstrip()
    if not ended:
        say(f"{check}: not finished after {limit_s:.0f} s")
        return None
    # A device that the tool is too old for, or that its driver does not let it watch.
    refused = next((text for text in said.splitlines() if re.search(_REFUSED, text)), None)
    if refused is not None:
        say(f"{check}: not watched: {refused.strip('= ')}")
        return None
    if process.returncode:
        say(f"{check}: {said}")
        return False
    if "SUMMARY" not in said:
        say(f"{check}: not watched: it ended without a summary\n{said}")
        return None
    say(f"{check}: {said.splitlines()[-1]}")
    return True


def time_all(device: torch.device, target: Path, seconds_left: Callable[[], float]) -> bool:
    """Print the table and write the JSON; return whether no scan of ours failed or was wrong."""
    bandwidth = timing.copy_bandwidth(device, timing.device_clock)
    facts = {
        "device": torch.cuda.get_device_name(device),
        "architecture": driver.architecture(device),
        "torch": torch.__version__,
        "nvrtc": nvrtc.compiler().name,
        "copy_bytes_per_s": bandwidth,
    }
    say(f"{facts['device']}, sm_{facts['architecture']}, torch {torch.__version__}")
    say(f"a copy moves {bandwidth / 1e12:.2f} TB/s; a floor is the time of a scan's own tensors at that rate")
    say(table.head())
    timed = timing.rows(
        available(), device=device, bandwidth=bandwidth, clock=timing.device_clock, seconds_left=seconds_left
    )
    found: list[timing.Row] = []
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        for row in timed:
            say(table.line(row, found))
            found.append(row)
    finally:
        # What was measured is kept, however the rest ends.
        target.write_text(table.to_json(facts, found) + "\n", encoding="utf-8")
        say(f"written to {target}")
    return not any(r.scan in timing.OURS and r.note.startswith(("failed", "wrong")) for r in found)


def say(text: str = "") -> None:
    """Print a line at once, before a slow stage begins."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
