"""The release that was made of a fit before: what names it, and where it is."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foxflow import cache, dataset
from foxflow.dataset import Dataset
from foxflow.errors import DataError, ReleaseError
from foxflow.release.bundle import Release, load
from foxflow.training import FoldResult

_ENTRY = "release.txt"


def name_of(result: FoldResult, data: Dataset, *, since: int, config: Mapping[str, Any]) -> str | None:
    """Return the sha256 of all that a release is made of and checked on; None where the fit has no name in the cache.

    Parameters are those of `release.build`.
    """
    if result.key is None:
        return None
    digest = hashlib.sha256(f"release {result.key} {since} {json.dumps(config, sort_keys=True)}".encode())
    digest.update(dataset.sha256(data))
    return digest.hexdigest()


def keep(folder: Path, name: str, made: Release) -> None:
    """Keep which release has that name."""
    cache.write(folder, name, {_ENTRY: made.id.encode()})


def read(folder: Path, name: str, *, into: Path) -> Release | None:
    """Return the release of that name under `into`, its files verified; None where there is none that is whole."""
    try:
        files = cache.read(folder, name)
        return None if files is None else load(into / files[_ENTRY].decode())
    except (DataError, ReleaseError):
        # It was removed or damaged: to build it anew says which.
        return None
