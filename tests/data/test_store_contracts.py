import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from click.testing import CliRunner

from foxflow import sources, store
from foxflow.cli.app import app
from foxflow.errors import DataError
from foxflow.futures import CONTRACT_REVISION_SCHEMA, OPEN_INTEREST_SCHEMA, known_contracts

BEFORE, LATER = datetime(1970, 1, 1, tzinfo=UTC), datetime(2024, 1, 5, 12, tzinfo=UTC)
ES = [
    ("ES", "ESH4", date(2024, 3, 15), 50.0, BEFORE),
    ("ES", "ESM4", date(2024, 6, 21), 50.0, BEFORE),
]


def contracts(*rows: tuple[Any, ...]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=CONTRACT_REVISION_SCHEMA, orient="row")


def figures(*rows: tuple[str, datetime, float]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=OPEN_INTEREST_SCHEMA, orient="row")


def test_contracts_come_back_as_written_and_twice_is_once(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    assert store.write_contracts(path, contracts(*ES)) == store.Counts(added=2, present=0)
    assert store.write_contracts(path, contracts(*ES[::-1], ES[0])) == store.Counts(added=0, present=2)
    assert store.read_contracts(path).equals(contracts(*ES))
    none = ("GC", "GCJ4", date(2024, 4, 26), None, BEFORE)
    assert store.write_contracts(path, contracts(none, ES[0])) == store.Counts(added=1, present=1)
    assert store.write_contracts(path, contracts(none)) == store.Counts(added=0, present=1)
    assert store.read_contracts(path).row(2) == none


def test_an_expiry_that_was_moved_is_known_from_its_known_at_on(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    store.write_contracts(path, contracts(*ES))
    moved = ("ES", "ESH4", date(2024, 3, 14), 50.0, LATER)
    with pytest.raises(
        DataError, match=r"1 row\(s\) say something else of the same symbol and known_at, first ES ESH4"
    ):
        store.write_contracts(path, contracts((*moved[:4], BEFORE)))
    store.write_contracts(path, contracts(moved))
    revisions = store.read_contracts(path)
    first = known_contracts(revisions)["expiry"].to_list()
    before = known_contracts(revisions, at=datetime(2024, 1, 5, 11, tzinfo=UTC))["expiry"].to_list()
    after = known_contracts(revisions, at=LATER)["expiry"].to_list()
    assert first == before == [date(2024, 3, 15), date(2024, 6, 21)]
    assert after == [date(2024, 3, 14), date(2024, 6, 21)]


def test_contracts_that_contradict_the_stored_ones_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    store.write_contracts(path, contracts(*ES))
    for rows, says in (
        ([("ES", "ESX4", date(2024, 3, 15), 50.0, LATER)], "expected one contract of a root to expire on a day"),
        ([("ESH4", "A", date(2024, 3, 1), None, LATER)], "a root names the series"),
        (
            [("ES", "ESU4", date(2024, 9, 20), 50.0, LATER), ("ES", "ESU4", date(2024, 9, 21), 50.0, LATER)],
            "say something else",
        ),
    ):
        with pytest.raises(DataError, match=says):
            store.write_contracts(path, contracts(*rows))
    with pytest.raises(DataError, match="contracts to write: columns"):
        store.write_contracts(path, contracts(*ES).drop("known_at"))
    assert store.read_contracts(path).equals(contracts(*ES))


def test_a_store_without_contracts_has_none(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    with store.transaction(path):
        pass
    assert store.read_contracts(path).equals(contracts())
    assert store.read_open_interest(path).equals(figures())
    with pytest.raises(DataError, match="no store at"):
        store.read_contracts(tmp_path / "absent.duckdb")
    other = tmp_path / "other.duckdb"
    with duckdb.connect(other) as con:
        con.execute("create table t (x integer)")
    with pytest.raises(DataError, match="a database of other tables"):
        store.read_contracts(other)


def test_open_interest_is_added_once_and_never_changed(tmp_path: Path) -> None:
    path = tmp_path / "bars.duckdb"
    assert store.write_open_interest(path, figures(("ESM4", LATER, 5.0), ("ESH4", LATER, 7.0))).added == 2
    assert store.write_open_interest(path, figures(("ESH4", LATER, 7.0))) == store.Counts(added=0, present=1)
    with pytest.raises(DataError, match="say something else of the same symbol and ts, first ESH4 2024-01-05"):
        store.write_open_interest(path, figures(("ESH4", LATER, 8.0)))
    for value in (-1.0, float("nan")):
        with pytest.raises(DataError, match="expected 0 or more contracts"):
            store.write_open_interest(path, figures(("ESH4", LATER, value)))
    assert store.read_open_interest(path)["open_interest"].to_list() == [7.0, 5.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("root,symbol\nES,ESH4\n", "no column expiry among 'root', 'symbol'; add it"),
        ("root,symbol,expiry\nES,ESH4,15.03.2024\n", "line 2: expiry '15.03.2024'; expected the last day of trading"),
        ("root,symbol,expiry\nES,ESH4,2024-02-30\n", "expiry '2024-02-30'; expected the last day of trading"),
        ("root,symbol,expiry\nES,,2024-03-15\n", r"symbol '?\(empty\)'?; expected a name in every row"),
        ("root,symbol,expiry,multiplier\nES,ESH4,2024-03-15,fifty\n", "multiplier 'fifty'; expected a number"),
        (
            "root,symbol,expiry,known_at\nES,ESH4,2024-03-15,2024-01-01\n",
            "known_at '2024-01-01'; expected a time with an",
        ),
        ("root,symbol,expiry\nES,ESH4,2024-03-15\nES,ESH4,2024-03-14\n", "symbol 'ESH4' stands in another row too"),
    ],
)
def test_a_file_of_contracts_is_refused_by_its_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "contracts.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=says):
        sources.read_contracts(file)


def test_a_file_of_contracts_has_optional_columns_and_parquet_its_types(tmp_path: Path) -> None:
    file = tmp_path / "contracts.csv"
    file.write_text("Symbol,ROOT,expiry,multiplier,known_at\nESH4,ES,2024-03-15,,2023-12-01T10:00:00-05:00\n")
    expected = contracts(("ES", "ESH4", date(2024, 3, 15), None, datetime(2023, 12, 1, 15, tzinfo=UTC)))
    assert sources.read_contracts(file).equals(expected)
    expected.write_parquet(tmp_path / "contracts.parquet")
    assert sources.read_contracts(tmp_path / "contracts.parquet").equals(expected)


def test_the_command_records_contracts_and_open_interest_and_lists_them(tmp_path: Path) -> None:
    def foxflow(*arguments: str) -> Any:
        done = CliRunner().invoke(
            app, ["bars", "contracts", *arguments, "--out", str(tmp_path), "--json"], catch_exceptions=False
        )
        assert done.exit_code == 0
        return json.loads(done.stdout)

    file, figure = tmp_path / "contracts.csv", tmp_path / "interest.csv"
    file.write_text("root,symbol,expiry\nES,ESH4,2024-03-15\nES,ESM4,2024-06-21\n")
    figure.write_text("symbol,known_at,open_interest\nESH4,2024-01-05T12:00:00Z,100\n")
    assert foxflow(str(file), "--open-interest", str(figure)) == [
        {"file": str(file), "added": 2, "present": 0},
        {"file": str(figure), "added": 1, "present": 0},
    ]
    assert foxflow(str(file)) == [{"file": str(file), "added": 0, "present": 2}]
    listed = foxflow()
    assert [row["symbol"] for row in listed] == ["ESH4", "ESM4"]
    assert listed[0]["expiry"].startswith("2024-03-15")
    assert store.read_open_interest(tmp_path / "bars.duckdb").rows() == [("ESH4", LATER, 100.0)]
