"""Spawned one-thread processes: equal input gives equal bits, whatever runs beside it."""

import contextlib
import multiprocessing.process
import multiprocessing.queues
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, TypeVar

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS", "NUMBA_NUM_THREADS"), "1"
)

Messages: TypeAlias = "multiprocessing.queues.Queue[Any]"
T = TypeVar("T")


class Workers:
    """Processes that run functions one at a time each, and what those functions `tell`."""

    def __init__(self, executor: ProcessPoolExecutor, messages: Messages) -> None:
        self._executor, self._messages = executor, messages

    def submit(self, function: Callable[..., T], *arguments: object) -> "Future[T]":
        """Return the future of `function(*arguments)`."""
        with _surroundings():
            return self._executor.submit(_run, function, *arguments)

    def told(self) -> Iterator[Any]:
        """Yield what has been told since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._messages.get_nowait()


@contextlib.contextmanager
def workers(n: int) -> Iterator[Workers]:
    """Give `n` processes; where the block fails or is interrupted they end in the middle of what they do."""
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    # Workers wait for its end. An event would wait for them in turn, for ever where they were ended together with this
    # process, as a service manager does.
    unwanted, wanted = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(n, mp_context=context, initializer=_start, initargs=(messages, unwanted))
    try:
        yield Workers(executor, messages)
    except BaseException:
        # shutdown() would wait for work that nobody wants any more.
        wanted.close()
        # Python before 3.11.5 waits for its thread that sends tasks, which waits for workers that have ended.
        executor._call_queue._reader.close()  # type: ignore[attr-defined]  # noqa: SLF001
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        messages.close()
        wanted.close()
        unwanted.close()


@contextlib.contextmanager
def _surroundings() -> Iterator[None]:
    """Set what a process inherits that is started in the block: one thread, and no ear for Ctrl-C.

    The environment is everybody's, so one caller at a time has it changed.
    """
    with _environment:
        saved = {name: os.environ.get(name) for name in ONE_THREAD}
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.environ.update(ONE_THREAD)
        try:
            yield
        finally:
            for name, value in saved.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def tell(message: object) -> None:
    """Send a message from a worker to `Workers.told`."""
    _worker["messages"].put(message)


_environment = threading.Lock()
_worker: dict[str, Any] = {}
# Held while a worker does not run a function, and so may be sending a result: one that ended in the middle of it would
# leave the parent waiting for the rest. What is told goes another way, which nobody waits on.
_talking = threading.Lock()


def _start(messages: Messages, unwanted: Connection) -> None:
    """Set up a worker process: it ends when it is unwanted or its parent is gone."""
    messages.cancel_join_thread()
    _worker.update(messages=messages)
    _talking.acquire()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    threading.Thread(target=_end_when, args=(unwanted,), daemon=True).start()


def _run(function: Callable[..., T], *arguments: object) -> T:
    _talking.release()
    try:
        return function(*arguments)
    finally:
        _talking.acquire()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _end_when(unwanted: Connection) -> None:
    with contextlib.suppress(EOFError):
        unwanted.recv_bytes()
    with _talking:
        os._exit(1)
