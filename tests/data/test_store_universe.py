"""Universe tables from files into the store and back, and which files are refused."""

import json
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars as pl
import pytest
from click.testing import CliRunner
from conftest import daily_bars

from foxflow import sources, store
from foxflow.cli.app import app
from foxflow.errors import DataError
from foxflow.universe import UNIVERSE_SCHEMA

HEADER = "symbol,from,to,delisting_return\n"


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


def read(tmp_path: Path, text: str, *, calendar: str | None = "XNYS") -> pl.DataFrame:
    file = tmp_path / "universe.csv"
    file.write_text(text)
    return sources.read_universe(file, calendar=calendar)


def test_dates_are_sessions_and_without_known_at_a_fact_is_known_when_it_happens(tmp_path: Path) -> None:
    found = read(tmp_path, HEADER + "AAA,2024-01-02,,\nBBB,2024-03-11,2024-03-15,-0.6\n")
    # The session before 2024-01-02 closed on 2023-12-29; clocks went forward on 2024-03-10.
    assert found.rows() == [
        ("AAA", utc(2023, 12, 29, 21), None, None, utc(2023, 12, 29, 21)),
        ("BBB", utc(2024, 3, 8, 21), None, None, utc(2024, 3, 8, 21)),
        ("BBB", utc(2024, 3, 8, 21), utc(2024, 3, 15, 20), -0.6, utc(2024, 3, 15, 20)),
    ]


def test_known_at_is_taken_as_written_and_a_date_without_a_session_means_the_next_close(tmp_path: Path) -> None:
    text = (
        "to,known_at,Symbol,from\n"
        ",2024-01-06,AAA,2024-01-08\n"
        "2024-03-15,2024-03-01,AAA,2024-01-08\n"
    )  # fmt: skip
    # 2024-01-06 is a Saturday.
    assert read(tmp_path, text).select("since", "until", "known_at").rows() == [
        (utc(2024, 1, 5, 21), None, utc(2024, 1, 8, 21)),
        (utc(2024, 1, 5, 21), utc(2024, 3, 15, 20), utc(2024, 3, 1, 21)),
    ]


def test_times_with_an_offset_are_instants_and_need_no_calendar(tmp_path: Path) -> None:
    text = "symbol,from,to,known_at\nBTC,2024-01-01T00:00Z,2024-02-01T01:00:00+01:00,2024-01-01 00:00:00-0500\n"
    assert read(tmp_path, text, calendar=None).row(0)[1:] == (
        utc(2024, 1, 1), utc(2024, 2, 1), None, utc(2024, 1, 1, 5)
    )  # fmt: skip
    with pytest.raises(DataError, match="--calendar XNYS has no effect"):
        read(tmp_path, text)


def test_parquet_as_pandas_writes_dates_says_the_same(tmp_path: Path) -> None:
    text = HEADER + "AAA,2024-01-02,,\nBBB,2024-03-11,2024-03-15,-0.6\n"
    expected = read(tmp_path, text)
    typed = pl.read_csv(text.encode(), try_parse_dates=True).with_columns(pl.col("from", "to").cast(pl.Datetime("ns")))
    typed.write_parquet(tmp_path / "universe.parquet")
    assert sources.read_universe(tmp_path / "universe.parquet", calendar="XNYS").equals(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("symbol,from\nAAA,2024-01-02\n", "no column to among 'symbol', 'from'"),
        (HEADER + "AAA,,,\n", r"line 2: from \(empty\); expected a date or a time in every row"),
        (HEADER + "AAA,2024-01-02,2024-03-16,\n", "line 2: to '2024-03-16' is no session of XNYS"),
        (HEADER + "AAA,02/01/2024,,\n", "line 2: from '02/01/2024'; expected dates as in 2024-03-14"),
        (HEADER + "AAA,2024-01-02,2024-13-40,\n", "line 2: to '2024-13-40'; expected a date"),
        (HEADER + "AAA,2024-01-03,2024-01-02,\n", "line 2: to '2024-01-02' is not after from"),
        (HEADER + "AAA,2024-01-02,2024-03-15,-60\n", "line 2: delisting_return '-60'; expected a fraction of -1 or"),
        (HEADER + "AAA,2024-01-02,2024-03-15,-60%\n", "line 2: delisting_return '-60%'; expected a fraction"),
        (HEADER + "AAA,2024-01-02,,-0.6\n", "line 2: delisting_return '-0.6' without a to"),
        (HEADER + "AAA,2024-01-02,,\nAAA,2024-01-02,2024-03-15,\n", "line 2 .and 1 more.: 'AAA' stands in another row"),
        (HEADER + ",2024-01-02,,\n", "expected a symbol"),
    ],
)
def test_a_file_that_is_not_understood_is_refused_with_line_and_fault(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=f"universe.csv.*{message}"):
        read(tmp_path, text)


def test_dates_without_a_calendar_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"from holds dates; name the exchange .* --calendar XNYS"):
        read(tmp_path, HEADER + "AAA,2024-01-02,,\n", calendar=None)


def rows(*values: tuple[object, ...]) -> pl.DataFrame:
    return pl.DataFrame(list(values), schema=UNIVERSE_SCHEMA, orient="row")


OPEN = ("AAA", utc(2024, 1, 2), None, None, utc(2024, 1, 2))
ENDED = ("AAA", utc(2024, 1, 2), utc(2024, 3, 1), -0.5, utc(2024, 3, 1))


def test_the_same_file_twice_changes_nothing_and_an_end_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    first = store.write_universe(path, rows(OPEN))
    # The end alone needs the start that is stored.
    second = store.write_universe(path, rows(ENDED))
    again = store.write_universe(path, rows(OPEN, ENDED))
    assert [(c.added, c.present) for c in (first, second, again)] == [(1, 0), (1, 0), (0, 2)]
    assert store.read_universe(path).equals(rows(OPEN, ENDED))


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ((*ENDED[:3], -0.4, ENDED[4]), "delisting return -0.4, .*; stored: .* delisting return -0.5"),
        (("AAA", utc(2024, 2, 1), None, None, utc(2024, 3, 1)), "with what .*bars.duckdb holds: .* overlaps"),
    ],
)
def test_what_contradicts_the_store_is_refused_and_nothing_is_written(
    tmp_path: Path, new: tuple[object, ...], message: str
) -> None:
    path = tmp_path / "bars.duckdb"
    store.write_universe(path, rows(OPEN, ENDED))
    with pytest.raises(DataError, match=message):
        store.write_universe(path, rows(("BBB", *OPEN[1:]), new))
    assert store.read_universe(path).equals(rows(OPEN, ENDED))


def test_a_store_from_before_there_was_a_universe_has_none_recorded_and_can_get_one(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    bars = daily_bars([1.0, 2.0])
    store.write_bars(path, bars, bar="1d")
    with duckdb.connect(path) as con:
        con.execute("drop table if exists universe")
    assert store.read_universe(path).equals(rows())
    store.write_universe(path, rows(OPEN))
    assert store.read_universe(path).equals(rows(OPEN))
    assert store.read_bars(path, bar="1d").equals(bars)


def test_the_command_records_and_lists(tmp_path: Path) -> None:
    file = tmp_path / "universe.csv"
    file.write_text(HEADER + "AAA,2024-01-02,,\n")
    out = ["--out", str(tmp_path), "--json"]
    command = ["bars", "universe", str(file), "--calendar", "XNYS", *out]
    done = [json.loads(CliRunner().invoke(app, command).stdout)[0] for _ in range(2)]
    assert [(d["added"], d["present"]) for d in done] == [(1, 0), (0, 1)]
    listed = json.loads(CliRunner().invoke(app, ["bars", "universe", *out]).stdout)
    assert listed == [
        {"symbol": "AAA", "since": "2023-12-29T21:00:00Z", "until": None, "delisting_return": None,
         "known_at": "2023-12-29T21:00:00Z"}
    ]  # fmt: skip
