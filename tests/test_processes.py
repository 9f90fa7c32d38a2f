"""Workers: one thread each, deaf to Ctrl-C, gone when they are unwanted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foxflow import processes


def surroundings() -> tuple[int, str, bool]:
    processes.tell("here")
    deaf = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return os.getpid(), os.environ["OMP_NUM_THREADS"], deaf


def sleep(seconds: float) -> bytes:
    time.sleep(seconds)
    return bytes(20_000_000)


def test_a_worker_has_one_thread_is_deaf_to_ctrl_c_and_is_heard() -> None:
    before = dict(os.environ), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with processes.workers(1) as pool:
        pid, threads, deaf = pool.submit(surroundings).result()
        told: list[str] = []
        deadline = time.monotonic() + 30
        while not told and time.monotonic() < deadline:
            told += pool.told()
    assert (threads, deaf, told) == ("1", True, ["here"])
    assert pid != os.getpid()
    assert (dict(os.environ), signal.pthread_sigmask(signal.SIG_BLOCK, [])) == before


def fail_while_workers_sleep(pids: list[int]) -> None:
    with processes.workers(2) as pool:
        pids.append(pool.submit(surroundings).result()[0])
        for _ in range(6):
            pool.submit(sleep, 600.0)
        raise KeyError


def test_a_block_that_fails_ends_its_workers_in_the_middle_of_their_work() -> None:
    pids: list[int] = []
    started = time.monotonic()
    with pytest.raises(KeyError):
        fail_while_workers_sleep(pids)
    assert time.monotonic() - started < 300
    assert not Path(f"/proc/{pids[0]}").exists()


INTERRUPTED = """
import sys, time
sys.path[:0] = {path!r}
from test_processes import sleep
from foxflow import processes
if __name__ == "__main__":
    with processes.workers(2) as pool:
        futures = [pool.submit(sleep, 0.0) for _ in range(40)]
        print("started", flush=True)
        for future in futures:
            future.result()
        time.sleep(60)
"""


def started(code: str, folder: Path) -> "subprocess.Popen[str]":
    """Return a program in a session of its own, once it has said that it has started."""
    script = folder / "program.py"
    script.write_text(code.format(path=[str(Path(__file__).parent), *sys.path]))
    run = subprocess.Popen(
        [sys.executable, str(script)], start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    run.stdout.readline()
    return run


@pytest.mark.parametrize("after", [0.0, 1.0, 1.5, 2.0])
def test_an_interruption_ends_the_program_even_while_large_results_are_sent(after: float, tmp_path: Path) -> None:
    run = started(INTERRUPTED, tmp_path)
    time.sleep(after)
    # Interrupted as a whole: what a terminal does on Ctrl-C.
    os.killpg(run.pid, signal.SIGINT)
    _, error = run.communicate(timeout=120)
    assert run.returncode not in (0, None)
    # The parent's own, and none of a worker.
    assert error.count("Traceback") == 1, error


ENDED_TOGETHER = """
import signal, sys
sys.path[:0] = {path!r}
from test_processes import sleep, surroundings
from foxflow import processes
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with processes.workers(2) as pool:
        pool.submit(surroundings).result()
        futures = [pool.submit(sleep, 600.0) for _ in range(2)]
        print("started", flush=True)
        futures[0].result()
"""


def test_a_program_whose_workers_are_ended_with_it_does_not_wait_for_them(tmp_path: Path) -> None:
    run = started(ENDED_TOGETHER, tmp_path)
    time.sleep(1.0)
    # As a service manager stops a program: every process of it at once.
    os.killpg(run.pid, signal.SIGTERM)
    try:
        run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode not in (0, None)
