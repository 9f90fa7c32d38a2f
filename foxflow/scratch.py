"""A place for half-done work: beside where it will be renamed to, and gone when its owner is."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foxflow.errors import FoxflowError


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Give a folder for half-done work, on the disk where the result will be renamed to, and remove it at the end.

    What a killed process left there is removed first.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise FoxflowError(
            f"cannot make the folder {str(folder)!r}: {e.strerror}; give another --out or $FOXFLOW_HOME"
        ) from e
    for left in folder.glob(".work-[0-9]*-*"):
        if not _is_running(int(left.name.split("-")[1])):
            shutil.rmtree(left, ignore_errors=True)
    try:
        work = Path(tempfile.mkdtemp(prefix=f".work-{os.getpid()}-", dir=folder))
    except OSError as e:
        raise FoxflowError(f"cannot write in {str(folder)!r}: {e.strerror}; give another --out or $FOXFLOW_HOME") from e
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
