"""Stored bars made the experiment's: a larger length, splits of intraday bars, continuous series of futures."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from foxflow import bars, config, futures, market, store
from foxflow.bars import BAR_SCHEMA, EVENT_SCHEMA, PRICES
from foxflow.config import Config
from foxflow.errors import ConfigError, DataError
from foxflow.futures import CONTRACT_REVISION_SCHEMA, OPEN_INTEREST_SCHEMA
from foxflow.resample import resample

ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def experiment_of(*overrides: str, **futures_section: Any) -> Config:
    document = config.to_document(
        config.load("returns", overrides=["data.source=store", "data.symbols=[]", *overrides])
    )
    return config.parse(document | ({"futures": futures_section} if futures_section else {}))


def half_hours(
    symbol: str, first: date, last: date, *, price: float = 100.0, split_from: date | None = None
) -> pl.DataFrame:
    """Return half hours of New York's sessions, each a hundredth above the one before, and a half from a split on."""
    rows = []
    for s in bars.sessions("XNYS", first, last).iter_rows(named=True):
        n = (s["close"] - s["open"]) // timedelta(minutes=30)
        for k in range(1, n + 1):
            price += 0.01
            shown = price / 2 if split_from is not None and s["session"] >= split_from else price
            rows.append((symbol, s["open"] + k * timedelta(minutes=30), *[shown] * 4, 10.0))
    return pl.DataFrame(rows, schema=BAR_SCHEMA, orient="row")


WEEK = (date(2024, 3, 11), date(2024, 3, 15))


def test_an_experiment_reads_smaller_bars_and_makes_its_own(tmp_path: Path) -> None:
    path, raw = tmp_path / "bars.duckdb", half_hours("AAA", *WEEK)
    store.write_bars(path, raw, bar="30m")
    pulled = market.pull(experiment_of("data.bar=1h", "data.stored_bar=30m"), path)
    assert_frame_equal(pulled.first, resample(raw, bar="30m", to="1h", calendar="XNYS"))
    assert len(pulled.first) == 5 * 7
    opened = market.pull(experiment_of("data.bar=1h", "data.stored_bar=30m", "data.anchor=session"), path)
    assert opened.first["ts"][0] == at("2024-03-11 14:30")
    days = market.pull(experiment_of("data.bar=1d", "data.stored_bar=30m"), path)
    assert days.first["ts"].to_list() == bars.session_closes("XNYS", *WEEK)["ts"].to_list()
    assert days.first["volume"].to_list() == [130.0] * 5
    same = market.pull(experiment_of("data.bar=30m"), path)
    assert same.first.equals(raw)


def test_a_delay_longer_than_the_stored_bar_is_no_fault_of_the_longer_one_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    store.write_bars(path, half_hours("AAA", *WEEK), bar="30m", delay=timedelta(hours=2))
    assert len(market.pull(experiment_of("data.bar=1d", "data.stored_bar=30m"), path).first) == 5
    with pytest.raises(DataError, match=r"AAA: bars of 1h were known up to 2:00:00 after their end"):
        market.pull(experiment_of("data.bar=1h", "data.stored_bar=30m"), path)


def test_bars_outside_sessions_are_counted_where_they_are_dropped(tmp_path: Path) -> None:
    path, raw = tmp_path / "bars.duckdb", half_hours("AAA", *WEEK)
    early = raw.head(1).with_columns(ts=pl.lit(at("2024-03-11 12:00")).cast(BAR_SCHEMA["ts"]))
    store.write_bars(path, pl.concat([early, raw]), bar="30m")
    with pytest.raises(
        DataError, match=r"1 bar\(s\) lie outside every session of XNYS, first AAA at 2024-03-11T12:00:00Z"
    ):
        market.pull(experiment_of("data.bar=1h", "data.stored_bar=30m"), path)
    pulled = market.pull(experiment_of("data.bar=1h", "data.stored_bar=30m", "data.outside_sessions=drop"), path)
    assert pulled.n_outside == 1
    assert pulled.first.equals(resample(raw, bar="30m", to="1h", calendar="XNYS"))


def test_bars_that_make_no_finished_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    store.write_bars(path, half_hours("AAA", *WEEK).head(3), bar="30m")
    with pytest.raises(DataError, match="3 bars of 30m make no finished bar of 1d; import more"):
        market.pull(experiment_of("data.bar=1d", "data.stored_bar=30m"), path)


@pytest.mark.parametrize("bar", ["30m", "1h", "1d"])
def test_a_split_is_in_no_return_of_intraday_bars_and_of_what_is_made_of_them(tmp_path: Path, bar: str) -> None:
    path = tmp_path / "bars.duckdb"
    store.write_bars(path, half_hours("AAA", *WEEK, split_from=date(2024, 3, 13)), bar="30m")
    split = pl.DataFrame([("AAA", at("2024-03-13 20:00"), "split", 2.0)], schema=EVENT_SCHEMA, orient="row")
    store.write_events(path, split)
    stored = [] if bar == "30m" else ["data.stored_bar=30m"]
    pulled = market.pull(experiment_of(f"data.bar={bar}", *stored), path)
    close = pulled.first["close"]
    assert (close / close.shift(1) - 1).abs().max() < 0.002
    assert pulled.adjustments() == {"AAA": {"dividend": 0, "split": 1}}


def test_a_correction_of_a_small_bar_changes_the_larger_one_from_its_known_at_on(tmp_path: Path) -> None:
    path, raw = tmp_path / "bars.duckdb", pl.concat([half_hours("AAA", *WEEK), half_hours("BBB", *WEEK)])
    store.write_bars(path, raw, bar="30m")
    wrong = raw.filter(pl.col("symbol") == "BBB")[1].with_columns(high=pl.lit(500.0))
    store.correct_bars(path, wrong, bar="30m", known_at=at("2024-03-13 12:00"))
    pulled = market.pull(experiment_of("data.bar=1d", "data.stored_bar=30m"), path)
    us = lambda moment: int(moment.timestamp()) * 1_000_000  # noqa: E731
    assert pulled.first["high"].max() < 102
    assert pulled.as_of(us(at("2024-03-13 11:59"))) is pulled.first
    later = pulled.as_of(us(at("2024-03-13 12:00")))
    assert later.filter(pl.col("high") == 500.0).select("symbol", "ts").rows() == [("BBB", at("2024-03-11 20:00"))]
    assert later.drop("high").equals(pulled.first.drop("high"))


def test_a_week_of_the_sample_is_made_of_its_days(tmp_path: Path) -> None:
    from foxflow import experiment

    weekly = config.load("returns", overrides=["data.bar=1w", "data.stored_bar=1d"])
    pulled = experiment.pull_market(weekly, tmp_path)
    daily = experiment.pull_market(config.load("returns"), tmp_path)
    assert len(daily.first) / len(pulled.first) == pytest.approx(4.8, abs=0.1)
    assert set(pulled.first["close"]) <= set(daily.first["close"])


# Two contracts, a day a bar: XXG is a tenth above XXF, and trades more on the 2nd.
CONTRACTS = pl.DataFrame(
    [("XX", "XXF", date(2024, 1, 10), 50.0, ALWAYS), ("XX", "XXG", date(2024, 2, 10), 50.0, ALWAYS)],
    schema=CONTRACT_REVISION_SCHEMA,
    orient="row",
)


def contract(symbol: str, closes: list[float], volumes: list[float]) -> pl.DataFrame:
    ts = [datetime(2024, 1, 2, tzinfo=UTC) + timedelta(days=n) for n in range(len(closes))]
    frame = pl.DataFrame(
        {"symbol": symbol, "ts": ts, **{key: [float(c) for c in closes] for key in PRICES}, "volume": volumes}
    )
    return frame.select(BAR_SCHEMA.names()).cast(BAR_SCHEMA)


def futures_store(path: Path) -> pl.DataFrame:
    raw = pl.concat(
        [
            contract("XXF", [100, 102, 104, 105, 106, 107], [10, 10, 1, 1, 1, 1]),
            contract("XXG", [110, 112.2, 114.4, 115.5, 116.6, 117.7], [5, 11, 20, 20, 20, 20]),
        ]
    )
    store.write_bars(path, pl.concat([raw, contract("ABC", [1, 1], [1, 1])]), bar="1d")
    store.write_contracts(path, CONTRACTS)
    return raw


ROLLING: dict[str, Any] = {"roots": ["XX"], "roll": "volume", "adjust": "ratio"}
ALL_DAY = "data.calendar=24/7"


def test_an_experiment_trades_the_continuous_series_under_its_root(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    futures_store(path)
    pulled = market.pull(experiment_of(ALL_DAY, **ROLLING), path)
    assert pulled.first["symbol"].unique().to_list() == ["XX"]
    assert pulled.first["close"].to_list() == pytest.approx([102, 104, 105, 106, 107])
    assert pulled.rolls.select("symbol", "ts", "old", "new").rows() == [("XX", at("2024-01-04"), "XXF", "XXG")]
    points = market.pull(experiment_of(ALL_DAY, **ROLLING | {"adjust": "difference"}), path)
    assert points.first["close"].to_list() == pytest.approx([102, 104.2, 105.3, 106.4, 107.5])
    nearest = market.pull(experiment_of(ALL_DAY, **ROLLING | {"roll": "calendar", "days_before": 5}), path)
    assert nearest.rolls["ts"].to_list() == [at("2024-01-07")]


def test_open_interest_rolls_where_it_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    futures_store(path)
    chosen = experiment_of(ALL_DAY, **ROLLING | {"roll": "open_interest"})
    rows = [("XXF", at("2024-01-01"), 9.0), ("XXG", at("2024-01-04 12:00"), 10.0)]
    with pytest.raises(DataError, match="no open interest of a contract of XX is recorded"):
        market.pull(chosen, path)
    store.write_open_interest(path, pl.DataFrame(rows, schema=OPEN_INTEREST_SCHEMA, orient="row"))
    assert market.pull(chosen, path).rolls["ts"].to_list() == [at("2024-01-06")]


def test_a_corrected_volume_moves_the_roll_of_folds_that_know_it(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    raw = futures_store(path)
    thin = raw.filter((pl.col("symbol") == "XXG") & (pl.col("ts") == at("2024-01-03"))).with_columns(volume=pl.lit(1.0))
    store.correct_bars(path, thin, bar="1d", known_at=at("2024-01-05 12:00"))
    pulled = market.pull(experiment_of(ALL_DAY, **ROLLING), path)
    before, after = (int(at(t).timestamp()) * 1_000_000 for t in ("2024-01-05 11:00", "2024-01-06"))
    assert pulled.as_of(before) is pulled.first
    # A day later XXG is at 114.4 where XXF is at 104.
    assert pulled.as_of(after)["close"].to_list() == pytest.approx([102, 104, 105, 106, 107])
    assert pulled.as_of(after)["volume"].to_list() == [10, 1, 20, 20, 20]
    assert pulled.first["volume"].to_list() == [10, 20, 20, 20, 20]


def test_a_moved_expiry_moves_the_roll_of_folds_that_know_it(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    futures_store(path)
    moved = CONTRACTS.head(1).with_columns(
        expiry=date(2024, 1, 8), known_at=pl.lit(at("2024-01-05 12:00")).cast(BAR_SCHEMA["ts"])
    )
    store.write_contracts(path, moved)
    pulled = market.pull(experiment_of(ALL_DAY, **ROLLING | {"roll": "calendar", "days_before": 5}), path)
    before, after = (int(at(t).timestamp()) * 1_000_000 for t in ("2024-01-05 11:00", "2024-01-06"))
    assert pulled.as_of(before) is pulled.first
    assert pulled.first["volume"].to_list() == [10, 10, 1, 1, 1, 20]
    assert pulled.as_of(after)["volume"].to_list() == [10, 10, 1, 20, 20, 20]
    assert pulled.corrected_at(after) == int(at("2024-01-05 12:00").timestamp()) * 1_000_000


def test_bars_up_to_an_expiry_that_was_moved_later_are_no_fault_of_those_who_did_not_know(tmp_path: Path) -> None:
    """XXF was to expire on the 3rd and then traded to the 5th."""
    path = tmp_path / "bars.duckdb"
    later = contract("XXG", [110, 112.2, 114.4, 115.5, 116.6, 117.7], [20] * 6)
    store.write_bars(path, pl.concat([contract("XXF", [100, 102, 104, 105, 106], [10] * 5), later]), bar="1d")
    known = pl.Series([ALWAYS, at("2024-01-03 12:00"), ALWAYS], dtype=BAR_SCHEMA["ts"])
    expiries = pl.Series([date(2024, 1, 3), date(2024, 1, 5), date(2024, 2, 10)])
    store.write_contracts(path, CONTRACTS[[0, 0, 1]].with_columns(expiry=expiries, known_at=known))
    pulled = market.pull(experiment_of(ALL_DAY, **ROLLING | {"roll": "calendar", "days_before": 0}), path)
    assert pulled.first["volume"].to_list() == [10, 10, 10, 20, 20, 20]
    before, after = (int(at(t).timestamp()) * 1_000_000 for t in ("2024-01-03 11:00", "2024-01-03 12:00"))
    assert pulled.as_of(before) is pulled.first
    assert pulled.as_of(after)["volume"].to_list() == [10, 10, 10, 10, 10, 20]
    # Beyond any expiry that was ever known there is none to hold.
    store.write_bars(path, contract("XXF", [100] * 6, [10.0] * 6).tail(1), bar="1d")
    with pytest.raises(DataError, match=r"1 bar\(s\) after their contract's expiry, first XXF at 2024-01-07T00:00:00Z"):
        market.pull(experiment_of(ALL_DAY, **ROLLING | {"roll": "calendar", "days_before": 0}), path)


@pytest.mark.parametrize(
    ("roots", "bar", "says"),
    [
        (["XX", "ES"], "1d", "no contracts of ES are recorded; record them with `foxflow bars contracts FILE`"),
        (["XX"], "1h", "no bars of 1h of any contract of XX are stored; import them"),
    ],
)
def test_a_root_without_contracts_or_bars_is_refused(tmp_path: Path, roots: list[str], bar: str, says: str) -> None:
    path = tmp_path / "bars.duckdb"
    futures_store(path)
    with pytest.raises(DataError, match=says):
        market.pull(experiment_of(ALL_DAY, f"data.bar={bar}", **ROLLING | {"roots": roots}), path)


def test_events_of_a_contract_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    futures_store(path)
    store.write_events(path, pl.DataFrame([("XXF", at("2024-01-03"), "split", 2.0)], schema=EVENT_SCHEMA, orient="row"))
    with pytest.raises(DataError, match="XXF is a contract of a continuous series and has splits or dividends"):
        market.pull(experiment_of(ALL_DAY, **ROLLING), path)


@pytest.mark.parametrize(
    ("overrides", "section", "says"),
    [
        (["data.anchor=clock"], {}, r"\[data\] anchor has no effect without stored_bar; remove it"),
        (["data.outside_sessions=drop"], {}, r"\[data\] outside_sessions has no effect without stored_bar"),
        (["data.symbols=['AAA']"], ROLLING, r"\[data\] symbols has no effect with \[futures\] roots"),
        (["data.source=sample"], ROLLING, r"\[futures\] has no effect on \[data\] source = 'sample'"),
        ([], ROLLING | {"adjust": "none"}, r"\[futures\] adjust = 'none'; expected one of 'ratio', 'difference'"),
        ([], ROLLING | {"roots": []}, r"\[futures\] roots = \[\]; expected at least one root"),
        ([], ROLLING | {"roots": ["ES", "ES"]}, r"\[futures\] roots = \['ES', 'ES'\]; expected each root once"),
        ([], ROLLING | {"days_before": 3}, r"\[futures\] days_before has no effect with roll = 'volume'"),
        ([], ROLLING | {"roll": "calendar"}, r"\[futures\] days_before is required with roll = 'calendar'"),
        ([], ROLLING | {"roll": "calendar", "days_before": -1}, r"\[futures\] days_before = -1; expected 0 or more"),
    ],
)
def test_settings_without_effect_are_refused(overrides: list[str], section: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        experiment_of(*overrides, **section)


def test_a_config_with_futures_reads_back_equal() -> None:
    chosen = experiment_of("data.bar=1h", "data.stored_bar=1m", **ROLLING | {"roll": "calendar", "days_before": 5})
    document = config.to_document(chosen)
    assert document["futures"] == {"roots": ["XX"], "roll": "calendar", "adjust": "ratio", "days_before": 5}
    assert config.parse(document) == chosen
    assert "futures" not in config.to_document(config.load("returns"))
    assert chosen.futures is not None
    assert set(futures.ROLLS) >= {chosen.futures.roll}
