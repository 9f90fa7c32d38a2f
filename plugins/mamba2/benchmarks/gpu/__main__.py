"""Compiles, proves and times the CUDA scan on this machine's GPU within eight minutes: one table, one JSON file."""

import argparse
import os
import shutil
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
_TOOLS = ("memcheck", "racecheck", "synccheck")


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
    measured = resources.measure([architecture], n_processes=os.cpu_count() or 1)
    say(resources.table(measured))
    say(f"compiled {len(measured)} variants by NVRTC {nvrtc.compiler().name} in {time.monotonic() - started:.0f} s\n")


def prove(limit_s: float) -> bool:
    """Run the tests of the kernels on the device, in a few processes; return whether all passed in time."""
    started = time.monotonic()
    running = [
        subprocess.Popen(  # noqa: S603
            command(*part), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for part in _PARTS
    ]
    good = True
    for (marker, name), process in zip(_PARTS, running, strict=True):
        try:
            output, _ = process.communicate(timeout=max(1.0, limit_s - (time.monotonic() - started)))
        except subprocess.TimeoutExpired:
            process.kill()
            rerun = " ".join(command(marker, name))
            output = f"{process.communicate()[0]}\nstopped: {limit_s:.0f} s are used up; run {rerun}"
        passed = process.returncode == 0
        good &= passed
        lines = output.rstrip().splitlines()
        say(f"tests, {marker} {name}: " + (lines[-1] if passed and lines else output))
    say()
    return good


def command(marker: str, name: str) -> list[str]:
    """Return the command of one part of the tests."""
    chosen = ["-m", f"gpu and {marker}", *(["-k", name] if name else [])]
    return [sys.executable, "-m", "pytest", "-q", *chosen, "tests/plugins/test_mamba2_cuda.py"]


def sanitize(limit_s: float) -> bool:
    """Run both kernels under compute-sanitizer's tools; return whether none of them complains."""
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        say("compute-sanitizer is not installed (it comes with the CUDA toolkit): memory and races not watched\n")
        return True
    good = True
    started = time.monotonic()
    # Each tensor an allocation of its own: inside torch's pool an access beyond one lands in the next.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    for check in _TOOLS:
        left = min(_SANITIZER_S, limit_s - (time.monotonic() - started))
        if left <= 0:
            say(f"{check}: dropped: the time is used up")
            continue
        good &= watched(
            [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-m", "gpu.sanitized"], environment, left
        )
    say()
    return good


def watched(line: Sequence[str], environment: Mapping[str, str], limit_s: float) -> bool:
    """Run one tool; return whether it ended well. A tool that is too slow is said to be, and proves nothing."""
    try:
        done = subprocess.run(  # noqa: S603
            line,
            cwd=Path(__file__).parents[1],
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        say(f"{line[2]}: dropped: not done after {limit_s:.0f} s")
        return True
    said = (done.stdout + done.stderr).rstrip()
    say(f"{line[2]}: " + (said.splitlines()[-1] if done.returncode == 0 and said else said))
    return done.returncode == 0


def time_all(device: torch.device, target: Path, seconds_left: Callable[[], float]) -> bool:
    """Print the table and write the JSON; return whether the kernels have a time wherever there was one left."""
    bandwidth = timing.copy_bandwidth(device, timing.device_clock)
    found = list(
        timing.rows(
            available(),
            device=device,
            bandwidth=bandwidth,
            clock=timing.device_clock,
            # The last line may take as long as the longest: a case that has begun is not cut.
            seconds_left=lambda: seconds_left() - 20.0,
        )
    )
    facts = {
        "device": torch.cuda.get_device_name(device),
        "architecture": driver.architecture(device),
        "torch": torch.__version__,
        "nvrtc": nvrtc.compiler().name,
        "copy_bytes_per_s": bandwidth,
    }
    say(f"{facts['device']}, sm_{facts['architecture']}, torch {torch.__version__}")
    say(f"a copy moves {bandwidth / 1e12:.2f} TB/s; a floor is the time of a scan's own tensors at that rate")
    say(table.render(found))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(table.to_json(facts, found) + "\n", encoding="utf-8")
    say(f"written to {target}")
    return not any(r.scan == "cuda" and r.note.startswith("failed") for r in found)


def say(text: str = "") -> None:
    """Print a line at once, before a slow stage begins."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
