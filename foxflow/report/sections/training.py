"""How the fits went."""

from foxflow.report import figures
from foxflow.report.blocks import Part, beside, plot, said, section
from foxflow.report.conclusion import Summary
from foxflow.report.text import known, number


def training(summary: Summary) -> Part:
    """Return losses, clipping and spectral radius by epoch, those that the model records."""
    folds = summary["folds"]
    learning = figures.learning(folds)
    if learning is None:
        if not folds:
            return Part()
        told = "The model is fitted in one step, so there are no curves: the table of folds has its losses."
        return section("training", "Training", said(told))
    n_drawn = len(learning["data"])
    some = f" {n_drawn} of {len(folds):,} folds, evenly spaced." if n_drawn < len(folds) else ""
    ramp = 'first fold <span class="ramp"></span> last fold'
    legend = f"<p>A line a fold, {ramp}; the dot is the epoch that was kept.{some}</p>"
    fades = f"Largest spectral radius; below 1 the state fades.{_limited(folds)}"
    parts = (
        plot("learning", learning, "Validation loss."),
        plot("clipping", figures.clipping(folds), "Share of steps whose gradient was clipped."),
        plot("radius", figures.spectral_radius(folds), fades),
    )
    return section("training", "Training", legend, beside(*parts))


def _limited(folds: figures.Folds) -> str:
    at_limit = [
        n
        for fold in folds
        for epoch in fold["history"]
        if (n := known((epoch.get("detail") or {}).get("heads_at_limit"))) is not None
    ]
    if not at_limit:
        return ""
    most = max(at_limit)
    return f" At most {number(most, 0)} heads at the limit." if most else " No head was ever at the limit."
