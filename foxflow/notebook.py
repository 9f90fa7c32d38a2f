"""A backtest from Python: `result = foxflow.backtest("config.toml")`, in a script or a notebook."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import tomli_w

from foxflow import config as configs
from foxflow import experiment
from foxflow.errors import ConfigError
from foxflow.portfolio import Book
from foxflow.report import figures

if TYPE_CHECKING:
    import plotly.graph_objects

# Of the summary: what a run is compared by.
STATS = (
    "experiment",
    "model",
    "first_ts",
    "last_ts",
    "n_folds",
    "n_forecasts",
    "total_return",
    "sharpe",
    "max_drawdown",
    "turnover",
    "n_fills",
    "cost_total",
    "ic",
    "ic_t",
    "rank_ic",
    "hit_rate",
    "benchmark_total_return",
    "benchmark_sharpe",
    "information_ratio",
)


@dataclass(frozen=True)
class Backtest:
    """A finished run.

    Attributes
    ----------
    summary
        Everything known of it, as `foxflow backtest --json` prints it.
    folder
        `runs/<run_id>/`, from which the frames are read when they are asked for.
    book
        What was traded, with vectorbt's own portfolio.
    """

    summary: Mapping[str, Any] = field(repr=False)
    folder: Path
    book: Book = field(repr=False)

    @property
    def stats(self) -> pl.DataFrame:
        """One row: the key numbers, fractions and money as in `summary`; `pl.concat` of several runs compares them."""
        return pl.DataFrame([{name: self.summary[name] for name in STATS}])

    @property
    def verdict(self) -> list[str]:
        """What the numbers mean, in sentences."""
        return list(self.summary["verdict"])

    @cached_property
    def forecasts(self) -> pl.DataFrame:
        """Out-of-sample forecasts and outcomes: `symbol`, `ts` (UTC), `fold`, `forecast`, `label`, `label_end`."""
        return pl.read_parquet(self.folder / "forecasts.parquet")

    @property
    def equity(self) -> pl.DataFrame:
        """`ts` (UTC), `equity` and buy-and-hold's, in money."""
        return self.book.equity

    @property
    def fills(self) -> pl.DataFrame:
        """What was filled: `symbol`, `ts` (UTC), `shares`, `price`, and what it cost."""
        return self.book.fills

    @property
    def portfolio(self) -> Any:  # noqa: ANN401  (vectorbt has no types)
        """Vectorbt's portfolio of the fills, with its own statistics and plots."""
        return self.book.portfolio

    @property
    def report(self) -> Path:
        """The HTML file that says all of it."""
        return Path(self.summary["report"])

    def plot(self) -> "plotly.graph_objects.Figure":
        """Return the report's figure of growth and drawdown against buy-and-hold."""
        import plotly.graph_objects

        return plotly.graph_objects.Figure(figures.equity(self.book.equity, self.summary["folds"]))

    def _repr_html_(self) -> str:
        sentences = "".join(f"<p>{escape(line)}</p>" for line in self.verdict[:1])
        numbers = {
            "total return": f"{self.summary['total_return']:.1%}",
            "Sharpe ratio": f"{self.summary['sharpe']:.2f}" if self.summary["sharpe"] is not None else "n/a",
            "largest drawdown": f"{self.summary['max_drawdown']:.1%}",
        }
        cells = "".join(f"<td>{name}</td><td><b>{value}</b></td>" for name, value in numbers.items())
        title = f"{self.summary['experiment']}, {self.summary['model']}"
        return (
            f"<h4>{escape(title)}</h4>{sentences}<table><tr>{cells}</tr></table>"
            f'<a href="{escape(self.report.resolve().as_uri())}">report</a>'
        )


def backtest(
    config: str | Path = "returns",
    *,
    model: str | None = None,
    out: str | Path | None = None,
    cached: bool = True,
    **overrides: object,
) -> Backtest:
    """Return the result of a whole experiment: what `foxflow backtest` does.

    Parameters
    ----------
    config
        A TOML file, or the name of an embedded config.
    model
        Another model than the config's, with its own defaults.
    out
        The folder of store, runs and releases; else $FOXFLOW_HOME, else ./data.
    cached
        Whether folds that were computed before are read; False computes all anew.
    overrides
        Sections with the keys to change, as in `costs={"fee_bps": 0}`, or `**{"costs.fee_bps": 0}`; for options of the
        model, `**{"model.epochs": 5}`.

    Raises
    ------
    FoxflowError
        As `foxflow backtest` does, with the message it prints.
    """
    settings = configs.load(config, overrides=_assignments(overrides), model=model)
    result = experiment.run(settings, experiment.home(out), cached=cached)
    return Backtest(result.summary, result.folder, result.book)


def _assignments(overrides: Mapping[str, object]) -> list[str]:
    """Return the overrides as `section.key=value` in TOML."""
    found: dict[str, object] = {}
    for name, value in overrides.items():
        if "." in name:
            found[name] = value
        elif isinstance(value, Mapping):
            found |= {f"{name}.{key}": one for key, one in value.items()}
        else:
            raise ConfigError(f"{name} = {value!r}; expected a section with keys, as in costs={{'fee_bps': 0}}")
    return [f"{name}={_toml(name, value)}" for name, value in found.items()]


def _toml(name: str, value: object) -> str:
    try:
        return tomli_w.dumps({"value": list(value) if isinstance(value, tuple) else value}).removeprefix("value = ")
    except TypeError as e:
        raise ConfigError(f"{name} = {value!r}; expected a TOML value: a number, text, true or false, or a list") from e
