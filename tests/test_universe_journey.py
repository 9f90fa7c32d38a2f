"""From the store to the equity with a universe: who is forecast, traded and trained on, and what a loss costs."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import hypothesis
import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from conftest import daily_bars
from hypothesis import given
from hypothesis import strategies as st

from foxflow import config, endings, experiment, portfolio, scoring, signals, store, volatility
from foxflow.cli.app import app
from foxflow.config import Config
from foxflow.errors import DataError
from foxflow.scoring import Score
from foxflow.training import FORECAST_SCHEMA, FoldResult
from foxflow.universe import UNIVERSE_SCHEMA, Universe

TINY = Path(__file__).parent / "tiny.toml"
FIRST = datetime(2024, 1, 1, 21, tzinfo=UTC)
# Folds are tested on bars 200 to 279, 280 to 359 and 360 to 399; every day is a session.
N_BARS = 400
OVERRIDES = (
    "data.source=store", "data.calendar=24/7", "data.symbols=[]", "walk_forward.train=200", "walk_forward.every=80",
    "strategy.position_limit=0.3",
)  # fmt: skip
Row = tuple[str, int, int | None, float | None, int]
ALWAYS: tuple[Row, ...] = (("A", -1, None, None, -1), ("B", -1, None, None, -1))


def day(number: int) -> datetime:
    return FIRST + timedelta(days=number)


def walk(symbol: str, *, n: int = N_BARS) -> pl.DataFrame:
    random = np.random.default_rng(sum(symbol.encode()))
    closes = 100 * np.exp(np.cumsum(random.normal(0.001, 0.02, N_BARS)))
    opens = np.concatenate([[100.0], closes[:-1]]) * np.exp(random.normal(0, 0.005, N_BARS))
    bars = daily_bars(opens.tolist(), closes.tolist(), symbol=symbol)
    return bars.with_columns(volume=pl.Series(random.uniform(500, 1500, N_BARS))).head(n)


def universe(*rows: Row) -> pl.DataFrame:
    dated = [(s, day(since), None if until is None else day(until), r, day(k)) for s, since, until, r, k in rows]
    return pl.DataFrame(dated, schema=UNIVERSE_SCHEMA, orient="row")


def settings(*overrides: str) -> Config:
    return config.load(TINY, model="ridge", overrides=[*OVERRIDES, *overrides])


def filled(tmp_path: Path, *rows: Row, z_bars: int = N_BARS) -> Path:
    """Return a home whose store holds A, B and Z, and the rows of a universe."""
    path = tmp_path / "bars.duckdb"
    store.write_bars(path, pl.concat([walk("A"), walk("B"), walk("Z", n=z_bars)]), bar="1d")
    if rows:
        store.write_universe(path, universe(*rows))
    return tmp_path


def scored(home: Path, *overrides: str) -> tuple[list[FoldResult], Score]:
    chosen = settings(*overrides)
    pulled = experiment.pull_market(chosen, home)
    data = experiment.build_dataset(chosen, pulled.first, pulled.universe)
    results = experiment.retrain(chosen, data)
    return results, scoring.score(chosen, pulled, [results], {})


def of(frame: pl.DataFrame, symbol: str) -> pl.DataFrame:
    return frame.filter(pl.col("symbol") == symbol)


def test_a_symbol_that_joins_midway_is_traded_from_its_first_day_and_trained_on_from_then(tmp_path: Path) -> None:
    results, found = scored(filled(tmp_path, *ALWAYS, ("Z", 300, None, None, 290)))
    assert [r.members for r in results] == [("A", "B"), ("A", "B", "Z"), ("A", "B", "Z")]
    # In fold 1 it is no member at the cut yet; in fold 2 since bar 300, though it has bars from the first day.
    assert [r.rows["Z"] for r in results] == [0, 0, 0]
    assert results[2].rows["A"] > 250
    # Decided at the close before its first day, filled on that day: its lookback and warm-up lie before it.
    assert of(found.outcomes, "Z")["ts"].min() == day(300)
    assert of(found.book.fills, "Z")["ts"].min() == day(301)
    assert of(found.book.benchmark_fills, "Z")["ts"].min() == day(301)
    assert found.metrics["universe"]["never_members"] == []


def test_training_rows_are_those_of_members_as_known_at_the_folds_cut(tmp_path: Path) -> None:
    late = (("Z", 100, None, None, 100), ("Z", 100, 150, None, 300))
    results, _ = scored(filled(tmp_path, *ALWAYS, *late, z_bars=390), "data.ended=last_close")
    last = [round(0.8 * n) for n in (200, 280, 360)]
    # Up to the cut of fold 1 nobody knew that it had left on bar 150; fold 2 knows. Labels end 6 bars later, embargo 5.
    assert [r.rows["Z"] for r in results[:2]] == [n - 100 - 11 for n in last[:2]]
    assert results[2].rows["Z"] == 50


def test_what_a_symbol_did_before_it_was_a_member_changes_no_fit_and_no_rival(tmp_path: Path) -> None:
    """Z joins at bar 230; its bars up to 150, wild or calm, are in no training row, scaler or regression."""
    chosen = config.load("volatility", model="ridge", overrides=list(OVERRIDES))
    scores = []
    for name, wild in (("calm", 1.0), ("wild", 1.4)):
        early = pl.when((pl.int_range(N_BARS) % 2 == 0) & (pl.int_range(N_BARS) < 150)).then(wild).otherwise(1.0)
        bars = walk("Z").with_columns(pl.col("open", "high", "low", "close") * early)
        path = tmp_path / name / "bars.duckdb"
        store.write_bars(path, pl.concat([walk("A"), walk("B"), bars]), bar="1d")
        store.write_universe(path, universe(*ALWAYS, ("Z", 230, None, None, 230)))
        pulled = experiment.pull_market(chosen, path.parent)
        results = experiment.retrain(chosen, experiment.build_dataset(chosen, pulled.first, pulled.universe))
        scores.append((results, volatility.score(pulled, {"ridge": results}, horizon=5)))
    (calm, calm_scores), (wild_results, wild_scores) = scores
    assert [r.rows["Z"] for r in calm] == [0, 0, 47]
    for one, other in zip(calm, wild_results, strict=True):
        # Sums over a window keep the rounding of what has left it.
        assert one.forecasts["forecast"].to_numpy() == pytest.approx(other.forecasts["forecast"].to_numpy(), abs=1e-9)
    kept = pl.col("forecaster").is_in(["HAR", "ridge"])
    assert calm_scores.filter(kept)["qlike"].to_list() == pytest.approx(
        wild_scores.filter(kept)["qlike"].to_list(), rel=1e-9
    )


def test_a_delisted_symbols_last_loss_is_in_the_equity_of_the_run(tmp_path: Path) -> None:
    rows = (*ALWAYS, ("Z", -1, None, None, -1), ("Z", -1, 319, -0.6, 319))
    _, found = scored(filled(tmp_path, *rows, z_bars=320), "strategy.side=long_only", "costs.half_spread_bps=0")
    close = float(walk("Z", n=320)["close"][-1])
    for fills in (found.book.fills, found.book.benchmark_fills):
        last = of(fills, "Z").row(-1, named=True)
        assert (last["ts"], last["price"]) == (day(320), pytest.approx(0.4 * close, rel=1e-12))
        assert of(fills, "Z")["shares"].sum() == pytest.approx(0, abs=1e-9)
    ending = found.metrics["universe"]["endings"][0]
    assert (ending["kind"], ending["last_ts"], ending["ts"]) == ("delisted", day(319), day(320))
    held = float(of(found.book.fills, "Z").filter(pl.col("ts") < day(320))["shares"].sum())
    assert held > 0
    assert ending["shares"] == pytest.approx(-held)
    # The day's change of equity is what A and B gained, the loss, and the fees of that day's fills.
    equity = found.book.equity.filter(pl.col("ts").is_between(day(319), day(320)))["equity"]
    gained = 0.0
    for symbol in "AB":
        bars = walk(symbol).filter(pl.col("ts").is_between(day(319), day(320)))
        before = of(found.book.fills, symbol).filter(pl.col("ts") < day(320))["shares"].sum()
        gained += before * (bars["close"][1] - bars["close"][0])
        for shares, price in (
            of(found.book.fills, symbol).filter(pl.col("ts") == day(320)).select("shares", "price").rows()
        ):
            gained += shares * (bars["close"][1] - price)
    fees = found.book.fills.filter(pl.col("ts") == day(320))["fee"].sum()
    assert equity[1] - equity[0] == pytest.approx(gained - 0.6 * close * held - fees, rel=1e-9)


def test_an_end_known_only_later_changes_nothing_before_it_is_known(tmp_path: Path) -> None:
    """The same store with and without a row known at bar 340: bit for bit the same up to then, gone right after."""
    runs = []
    for name, extra in (("before", ()), ("after", (("Z", -1, 310, None, 340),))):
        home = tmp_path / name
        home.mkdir()
        runs.append(scored(filled(home, *ALWAYS, ("Z", -1, None, None, -1), *extra)))
    (_, without), (results, found) = runs
    for one, other in (
        (without.outcomes.drop("label", "label_end"), found.outcomes.drop("label", "label_end")),
        (without.book.fills, found.book.fills),
        (without.book.benchmark_fills, found.book.benchmark_fills),
        (without.book.equity, found.book.equity),
    ):
        until = day(339) if "forecast" in one.columns else day(340)
        assert one.filter(pl.col("ts") <= until).equals(other.filter(pl.col("ts") <= until))
    assert of(found.outcomes, "Z")["ts"].max() == day(339)
    assert of(found.book.fills, "Z")["ts"].max() == day(341)
    assert of(found.book.benchmark_fills, "Z")["ts"].max() == day(341)
    assert of(found.book.fills, "Z")["shares"].sum() == pytest.approx(0, abs=1e-9)
    assert [r.members for r in results] == [("A", "B", "Z"), ("A", "B", "Z"), ("A", "B")]


def test_bars_that_end_unrecorded_are_refused_before_anything_is_fitted(tmp_path: Path) -> None:
    home = filled(tmp_path, z_bars=320)
    with pytest.raises(DataError, match=r'Z has no bar after 2024-11-15 21:00Z, 80 sessions .* ended = "last_close"'):
        experiment.run(settings(), home, progress=lambda _: pytest.fail("a fold was fitted"))
    assert [p.name for p in home.iterdir()] == ["bars.duckdb"]


def test_a_run_says_who_was_in_and_what_ended(tmp_path: Path) -> None:
    home = filled(tmp_path, *ALWAYS[:1], ("Z", -1, None, None, -1), ("GONE", -1, None, None, -1), z_bars=320)
    chosen = [x for o in (*OVERRIDES, "data.ended=last_close") for x in ("--set", o)]
    done = CliRunner().invoke(app, ["backtest", str(TINY), "--model", "ridge", *chosen, "--out", str(home), "--json"])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    facts = summary["universe"]
    assert (facts["is_recorded"], facts["never_members"], facts["members_without_bars"]) == (True, ["B"], ["GONE"])
    assert [(e["symbol"], e["kind"], e["ts"]) for e in facts["endings"]] == [
        ("Z", "last close", "2024-11-21T21:00:00Z")
    ]
    assert [f["members"] for f in summary["folds"]] == [["A", "Z"], ["A", "Z"], ["A"]]
    assert summary["symbols"] == ["A", "Z"]
    folder = Path(summary["report"]).parent
    assert pl.read_parquet(folder / "endings.parquet")["symbol"].to_list() == ["Z"]
    assert (folder / "waited.parquet").exists()
    page = (folder / "report.html").read_text()
    assert "1 member has no bars in this run (GONE): survivorship is not ruled out." in page
    assert "Stored, but never a member in the walk-forward: B." in page
    assert "Z ended without a recorded return and was closed at its last close" in page


@hypothesis.settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_nobody_holds_what_is_known_to_be_no_member_past_its_next_open(seed: int) -> None:
    """Random universes, pauses and forecasts, from forecasts to fills: against a plain reading of the table."""
    random = np.random.default_rng(seed)
    frames = [walk("CLOCK").head(40)]
    rows: list[Row] = [("CLOCK", -1, None, None, -1)]
    times = frames[0]["ts"].to_list()
    for symbol in ("X", "Y"):
        stop = int(random.integers(10, 41))
        keep = pl.Series(random.random(40) > 0.2) & (pl.int_range(40, eager=True) < stop)
        frames.append(walk(symbol).head(40).filter(keep))
        rows.append((symbol, since := int(random.integers(-1, 6)), None, None, since))
        if random.random() < 0.8:
            until = int(random.integers(since + 1, 36))
            loss = None if random.random() < 0.4 else float(random.choice([-1.0, -0.6, 0.2]))
            rows.append((symbol, since, until, loss, int(random.integers(since + 1, until + 5))))
            if random.random() < 0.5:
                again = until + int(random.integers(3, 9))
                rows.append((symbol, again, None, None, max(again, rows[-1][4])))
    forecasts = [
        (s, ts, 0, float(random.choice([-0.01, 0.01]))) for s, ts in pl.concat(frames).select("symbol", "ts").rows()
    ]
    members = Universe.of(universe(*rows))
    bars = pl.concat(frames).sort("symbol", "ts")
    made = pl.DataFrame(forecasts, schema=FORECAST_SCHEMA, orient="row")
    made = made.filter(pl.Series(members.mask(made)) & (made["ts"] >= times[5]))
    symbols = made["symbol"].unique().to_list()
    ends = endings.find(bars, members, symbols=symbols, ended="last_close", calendar="24/7")
    exits = endings.exits(symbols, members, times=endings.bar_times(bars))
    chosen = settings()
    positions = signals.positions(
        made, strategy=chosen.strategy, horizon=5, values="return", exits=pl.concat([exits, endings.exits_of(ends)])
    )
    traded = bars.filter(pl.col("symbol").is_in(symbols))
    book = portfolio.run(positions, traded, band=0.0, costs=chosen.costs, endings=ends)
    for symbol, since, until, _, known_at in rows:
        if until is None:
            continue
        known = max(until, known_at)
        later = [r[1] for r in rows if r[0] == symbol and r[1] > since]
        back = min(later, default=99)
        own = of(bars, symbol).filter(pl.col("ts") > day(known))["ts"]
        for fills in (book.fills, book.benchmark_fills):
            mine = of(fills, symbol)
            # From its first bar after it was known to be out, and until it is in again, nothing of it is held.
            done = mine.filter(pl.col("ts") <= own[0]) if len(own) and own[0] <= day(back) else None
            if done is not None:
                assert done["shares"].sum() == pytest.approx(0, abs=1e-6)
                assert mine.filter((pl.col("ts") > own[0]) & (pl.col("ts") <= day(back))).is_empty()
    # Whoever ended is not held at the last bar, whatever was recorded of it.
    for ending in ends.filter(pl.col("kind") != "open").iter_rows(named=True):
        bought = of(book.fills, ending["symbol"]).filter(pl.col("ts") <= ending["ts"])
        assert bought["shares"].sum() == pytest.approx(0, abs=1e-6)


def test_another_universe_is_another_trial_and_members_that_come_later_are_not(tmp_path: Path) -> None:
    chosen, pulled = settings(), experiment.pull_market(settings(), filled(tmp_path))
    counted = []
    for rows in (ALWAYS, (*ALWAYS, ("Z", 300, None, None, 290)), (*ALWAYS, ("Z", -1, None, None, -1))):
        seen = replace(pulled, universe=Universe.of(universe(*rows)))
        results = experiment.retrain(chosen, experiment.build_dataset(chosen, seen.first, seen.universe))
        found = scoring.score(chosen, seen, [results], {})
        weighed = experiment.weigh(chosen, tmp_path, seen, found, run_id=f"run-{len(counted)}")
        counted.append(weighed.found["significance"]["n_trials"])
    assert counted == [1, 1, 2]
