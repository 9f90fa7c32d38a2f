"""Whatever the bars are, checking them ends in findings, never in an error, and depends on nothing but the bars."""

from datetime import UTC, datetime, timedelta

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from foxflow import check
from foxflow.bars import BAR_SCHEMA, EVENT_SCHEMA, FINDING_SCHEMA

PRICES = st.one_of(
    st.sampled_from([0.0, -1.0, 1.0, 100.0, 1e-9, 1e12]), st.floats(0.01, 1e6), st.floats(-1e6, 1e6)
)  # fmt: skip
STEPS = st.sampled_from([1, 60, 61, 300, 3600, 86_400, 3 * 86_400, 40 * 86_400])
VOLUMES = st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(0, 1e15))


@st.composite
def anything(draw: st.DrawFn) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return bars of one or two symbols, some of them unsound, and events of the first."""
    rows: list[tuple[object, ...]] = []
    for symbol in ("A", "B/C")[: draw(st.integers(1, 2))]:
        ts = datetime(2019, 11, 1, 20, tzinfo=UTC)
        kind = draw(st.sampled_from(["calm", "wild", "flat"]))
        for _ in range(draw(st.integers(0, 40))):
            ts += timedelta(seconds=draw(STEPS)) if kind != "calm" else timedelta(minutes=1)
            a, b = (100.0, 100.0) if kind == "flat" else (draw(PRICES), draw(PRICES))
            low, high = min(a, b), max(a, b)
            if draw(st.integers(0, 15)) == 0:
                low, high = high, low
            rows.append((symbol, ts, a, high, low, b, draw(VOLUMES)))
    bars = pl.DataFrame(rows, schema=BAR_SCHEMA, orient="row")
    when = [r[1] for r in rows if r[0] == "A" and draw(st.integers(0, 9)) == 0]
    values = [draw(st.sampled_from([0.1, 0.5, 2.0, 7.0])) for _ in when]
    kinds = [draw(st.sampled_from(["split", "dividend"])) for _ in when]
    events = pl.DataFrame(
        {"symbol": ["A"] * len(when), "ts": when, "kind": kinds, "value": values}, schema=EVENT_SCHEMA
    )
    return bars, events


@settings(max_examples=40, deadline=None)
@given(
    made=anything(),
    bar=st.sampled_from(["1m", "1h", "1d", "7d"]),
    calendar=st.sampled_from([None, "24/7", "24/5", "XNYS", "XTKS", "CMES"]),
)
def test_any_bars_end_in_findings(made: tuple[pl.DataFrame, pl.DataFrame], bar: str, calendar: str | None) -> None:
    bars, events = made
    found = check.findings(bars, bar=bar, calendar=calendar, events=events)
    assert found.schema == FINDING_SCHEMA
    assert found.null_count().sum_horizontal().sum() == 0
    assert (found["count"] > 0).all()
    assert (found["until"] >= found["ts"]).all()
    assert check.findings(bars.reverse(), bar=bar, calendar=calendar, events=events).equals(found)
    # One symbol's findings but for jumps, which the market explains, are its own.
    alone = pl.concat(
        [check.findings(rows, bar=bar, calendar=calendar, events=events) for rows in bars.partition_by("symbol")]
        or [found]
    )
    jumpy = pl.col("check").is_in(["jump", "possible split"])
    key = ["symbol", "ts", "check", "detail"]
    assert alone.filter(~jumpy).sort(key).equals(found.filter(~jumpy).sort(key))
