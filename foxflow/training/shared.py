"""Samples on disk, where every process maps them: none is sent to a process fold by fold."""

import itertools
import shutil
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from foxflow.dataset import Dataset, Series

_ARRAYS = tuple(f.name for f in fields(Series) if f.name != "symbol")


@dataclass(frozen=True)
class Shared:
    """Where samples lie: an array of all symbols' bars per file, each symbol's in turn; `about` has no series."""

    folder: Path
    symbols: tuple[str, ...]
    lengths: tuple[int, ...]
    about: Dataset


class Shelf:
    """The samples of a run that are on disk: each version once, and only while a fold has yet to read it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()
        self._newest: tuple[Dataset, Shared] | None = None
        self._readers: dict[Path, int] = {}

    def lend(self, data: Dataset) -> Shared:
        """Return where the samples lie, written unless they are the ones lent last."""
        if self._newest is None or self._newest[0] is not data:
            previous = self._newest
            self._newest = data, _write(data, self._folder / str(next(self._numbers)))
            if previous is not None:
                self._drop(previous[1].folder)
        shared = self._newest[1]
        self._readers[shared.folder] = self._readers.get(shared.folder, 0) + 1
        return shared

    def returned(self, shared: Shared) -> None:
        """Say that a fold has read the samples."""
        self._readers[shared.folder] -= 1
        self._drop(shared.folder)

    def _drop(self, folder: Path) -> None:
        if not self._readers.get(folder) and (self._newest is None or self._newest[1].folder != folder):
            shutil.rmtree(folder)


def _write(data: Dataset, folder: Path) -> Shared:
    folder.mkdir()
    for name in _ARRAYS:
        np.save(folder / f"{name}.npy", np.concatenate([getattr(s, name) for s in data.series]))
    symbols, lengths = tuple(s.symbol for s in data.series), tuple(len(s) for s in data.series)
    return Shared(folder, symbols, lengths, replace(data, series=()))


# Consecutive folds mostly see the same samples.
@lru_cache(maxsize=1)
def _mapped(folder: Path) -> dict[str, np.ndarray]:
    # Copied where written to, so that a plugin which does so changes nobody else's samples.
    return {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in _ARRAYS}


def read(shared: Shared) -> Dataset:
    """Return the samples, mapped into this process."""
    arrays = _mapped(shared.folder)
    stops = np.cumsum(shared.lengths).tolist()
    series = tuple(
        Series(symbol, *(arrays[name][stop - length : stop] for name in _ARRAYS))
        for symbol, length, stop in zip(shared.symbols, shared.lengths, stops, strict=True)
    )
    return replace(shared.about, series=series)
