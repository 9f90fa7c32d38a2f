"""What a run leaves behind: one folder with its summary, its frames and its report, written whole or not at all."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import tomli_w

from foxflow import bars, ledger, provenance, registry, report, signals, training
from foxflow.config import Config, to_document
from foxflow.portfolio import Book
from foxflow.release import Release
from foxflow.scoring import Score
from foxflow.scratch import scratch
from foxflow.training import Fits, FoldResult

RUNS = "runs"
FRAMES = ("equity", "fills", "held", "waited", "capped", "charges", "carry", "gross")


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, the summary that `--json` prints, and what was traded."""

    folder: Path
    summary: dict[str, Any]
    book: Book


def name_run(config: Config) -> str:
    """Return the id of a run that is written now: its time, what it is of, and 8 digits of its config's sha256."""
    digest = hashlib.sha256(json.dumps(to_document(config), sort_keys=True).encode()).hexdigest()
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}-{config.experiment.name}-{config.model.name}-{digest[:8]}"


@dataclass(frozen=True)
class Weighed:
    """How likely a run's result is luck (keys of its summary), and how far the ledger reached when it was recorded."""

    height: ledger.Height
    found: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a run came to: fits, score and release, and the proof that nothing later reached a forecast or a fill.

    `proof`: the summary's `audit`, and in `folds` the proof of each fold of the first seed.
    """

    fits: Fits
    scored: Score
    proof: Mapping[str, Any]
    bundle: Release


def write(config: Config, folder: Path, outcome: Outcome, weighed: Weighed, *, run_id: str, seconds: float) -> Result:
    """Return the result after writing `runs/<run_id>/`: config, frames, summary and report, by one rename."""
    document, target = to_document(config), folder / RUNS / run_id
    scored, proof, results = outcome.scored, outcome.proof, outcome.fits.released
    walk = [r for r in results if not r.fold.is_final]
    summary = finite(
        {
            "run_id": run_id,
            "experiment": config.experiment.name,
            "model": config.model.name,
            "is_sample": config.data.source == "sample",
            "label": config.label.name,
            "horizon": config.label.horizon,
            "fee_bps": config.costs.fee_bps,
            "half_spread_bps": config.costs.half_spread_bps,
            "n_folds": len(walk),
            **scored.metrics,
            **weighed.found,
            "audit": proof["audit"],
            "state_gap": max((r.state_gap for r in results if not math.isnan(r.state_gap)), default=None),
            "folds_that_learned": sum(r.has_learned for r in walk),
            "forecasters": scored.forecasters.to_dicts() if scored.forecasters is not None else None,
            "folds": [
                _fold(r, scored.thresholds.get(r.fold.number)) | dict(proven)
                for r, proven in zip(walk, proof["folds"], strict=True)
            ],
            "provenance": {
                "config": document,
                "code_sha256": provenance.code_sha256(registry.package(config.model.name)),
                "versions": provenance.versions(*registry.distribution(config.model.name)),
                "bars_sha256": scored.metrics["bars_sha256"],
            },
            "seconds": seconds,
            "report": str(target / "report.html"),
            "release": str(outcome.bundle.path),
        }
    )
    summary["verdict"] = report.verdict(summary)
    with scratch(target.parent) as work:
        (work / "config.toml").write_text(tomli_w.dumps(document), "utf-8")
        (work / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
        ledger.mark_run(work, weighed.height)
        scored.outcomes.write_parquet(work / "forecasts.parquet")
        for name in FRAMES:
            getattr(scored.book, name).write_parquet(work / f"{name}.parquet")
        scored.endings.write_parquet(work / "endings.parquet")
        report.write(work / "report.html", summary, scored.book, scored.outcomes)
        training.history_of(results).write_parquet(work / "history.parquet")
        work.chmod(0o755)
        work.rename(target)
    return Result(target, summary, outcome.scored.book)


def _fold(result: FoldResult, thresholds: signals.Thresholds | None) -> dict[str, Any]:
    return {
        "fold": result.fold.number,
        "cut": bars.instant(result.cut),
        "test_start": bars.instant(result.fold.test_start),
        "test_end": bars.instant(result.fold.test_end),
        "training_rows": sum(result.rows.values()),
        "members": result.members,
        "forecasts": dict(result.entered),
        "untrained_loss": result.untrained_loss,
        "best_loss": result.best_loss,
        "best_epoch": result.best_epoch,
        "has_learned": result.has_learned,
        "state_gap": result.state_gap,
        "thresholds": None if thresholds is None else dataclasses.asdict(thresholds),
        "seconds": result.seconds,
        "source": result.source,
        "source_note": result.note,
        "history": [dataclasses.asdict(e) for e in result.history],
    }


def finite(value: object) -> Any:  # noqa: ANN401  (JSON values)
    """Return the value as JSON can hold it: times as ISO in UTC, days as ISO, numbers that are not finite as null."""
    match value:
        case dict():
            return {k: finite(v) for k, v in value.items()}
        case list() | tuple():
            return [finite(v) for v in value]
        case float() if not math.isfinite(value):
            return None
        case datetime():
            return bars.iso(value)
        case date():
            return value.isoformat()
    return value
