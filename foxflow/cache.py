"""What was computed once, kept under a key that names all it was computed from.

An entry is a folder of files and their sha256. It is made aside and renamed, so it is there whole or not at all; one
that was damaged since is never read. The key decides what an entry holds, so that two runs that write one at the same
time write the same, and whose stays does not matter.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from foxflow.errors import DataError
from foxflow.scratch import scratch

KEPT_DAYS = 30
MOST_BYTES = 2 << 30
MANIFEST = "manifest.json"
# An entry that others replace and remove all the time is found whole sooner or later; a damaged one stays damaged.
ATTEMPTS = 5


def write(folder: Path, key: str, files: Mapping[str, bytes]) -> None:
    """Write the entry `folder/key/`, in place of what is there; names of files may have folders in them."""
    with scratch(folder) as work:
        new, old = work / "new", work / "old"
        put(files, new)
        listed = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        (new / MANIFEST).write_text(json.dumps(listed, indent=1), "utf-8")
        with contextlib.suppress(FileNotFoundError):
            (folder / key).rename(old)
        try:
            new.rename(folder / key)
        except OSError as e:
            # Another run has written the same in the meantime.
            if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def put(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files by name into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def take(folder: Path) -> dict[str, bytes]:
    """Return the content of all files beneath a folder by name."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def read(folder: Path, key: str) -> dict[str, bytes] | None:
    """Return the files of an entry, None where there is none.

    Raises
    ------
    DataError
        Where a file is missing or is not the one that was written.
    """
    path = folder / key
    found = None
    for attempt in range(ATTEMPTS):
        try:
            found = _verified(path)
            break
        except DataError:
            # It may have been replaced or removed while it was read.
            if attempt == ATTEMPTS - 1:
                raise
    if found is not None:
        _touch(path)
    return found


def _verified(path: Path) -> dict[str, bytes] | None:
    if not path.is_dir():
        return None
    try:
        listed = json.loads((path / MANIFEST).read_bytes())
        found = {name: (path / name).read_bytes() for name in listed}
        changed = [name for name, content in found.items() if hashlib.sha256(content).hexdigest() != listed[name]]
    except (OSError, ValueError, TypeError, AttributeError) as e:
        if not path.is_dir():
            return None
        raise DataError(f"{path} is damaged ({e}); it is not used") from e
    if changed:
        raise DataError(f"{path} is damaged ({changed[0]} is not what was written); it is not used")
    return found


def _touch(path: Path) -> None:
    # Another run may have removed it.
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)


def forget(folder: Path) -> None:
    """Remove what nobody used for `KEPT_DAYS`, and of the rest what was not used for longest beyond `MOST_BYTES`."""
    entries = sorted(_entries(folder), reverse=True)
    oldest, kept = time.time() - KEPT_DAYS * 86_400, 0
    unwanted = []
    for used, size, path in entries:
        kept += size
        if used < oldest or kept > MOST_BYTES:
            unwanted.append(path)
    if not unwanted:
        return
    with scratch(folder) as work:
        for i, path in enumerate(unwanted):
            # Whole or not there, for whoever reads it now.
            try:
                path.rename(work / str(i))
            except FileNotFoundError:
                continue
            shutil.rmtree(work / str(i), ignore_errors=True)


def _entries(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield when each entry was used, its bytes and its folder."""
    for path in folder.glob("[!.]*/"):
        try:
            yield path.stat().st_mtime, sum(p.stat().st_size for p in path.rglob("*")), path
        except FileNotFoundError:
            continue
