"""What a terminal shows while folds are fitted: one line a fold that runs, and the time left."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from foxflow.training import FoldEvent

STAGES = {
    "bars": "reading bars",
    "audit": "attacking the run for look-ahead",
    "retrain": "retraining",
    "release": "exporting and verifying the release",
    "score": "scoring in vectorbt",
    "report": "writing the report",
}


class FoldBars:
    """Live progress on standard error; silent where `quiet` or where standard error is no terminal but the stages."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bars = _live(MofNCompleteColumn(), quiet=quiet)
        self._folds: dict[int, TaskID] = {}
        self._all: TaskID | None = None

    def __enter__(self) -> "FoldBars":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def stage(self, name: str) -> None:
        """Show the step that starts."""
        if not self._quiet:
            self._bars.console.print(STAGES[name])

    def progress(self, event: FoldEvent) -> None:
        """Show an epoch, or the end of a fold."""
        if self._all is None:
            self._all = self._bars.add_task("all fits", total=event.n_folds)
        if event.epoch is None:
            self._bars.advance(self._all)
            if event.fold in self._folds:
                self._bars.remove_task(self._folds.pop(event.fold))
            return
        if event.fold not in self._folds:
            self._folds[event.fold] = self._bars.add_task(f"fold {event.fold}", total=event.planned)
        text = f"fold {event.fold}: validation loss {event.epoch.valid_loss:.4f}"
        self._bars.update(self._folds[event.fold], completed=event.epoch.number, description=text)


class ByteBar:
    """How far files were read, on standard error; silent where `quiet`, or where that is no terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._bars = _live(DownloadColumn(), quiet=quiet)
        self._files: dict[str, TaskID] = {}

    def __enter__(self) -> "ByteBar":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def progress(self, file: str, done: int, total: int) -> None:
        """Show how many bytes of a file were read."""
        if file not in self._files:
            self._files[file] = self._bars.add_task(file, total=total)
        self._bars.update(self._files[file], completed=done)


def _live(counted: ProgressColumn, *, quiet: bool) -> Progress:
    """Return bars that show what is counted and the time left, and vanish at the end."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        counted,
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        disable=quiet or not sys.stderr.isatty(),
        transient=True,
    )
