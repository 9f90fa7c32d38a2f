"""Export and read-back: equal stores, and nothing but what was written is read."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pytest
from conftest import daily_bars

from foxflow import store
from foxflow.bars import EVENT_SCHEMA
from foxflow.errors import DataError

DAY = timedelta(days=1)
FIRST = datetime(2024, 1, 1, 21, tzinfo=UTC)
LEARNED = FIRST + 300 * DAY


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return every row of every table, sorted, read by DuckDB alone."""
    with duckdb.connect(path, read_only=True) as con:
        con.execute("set TimeZone = 'UTC'")
        names = [row[0] for row in con.sql("select table_name from duckdb_tables()").fetchall()]
        return {name: con.sql(f"from {name} order by all").fetchall() for name in names}


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """Return a store with bars of two lengths over a turn of year, unknown volumes, revisions and events."""
    path = tmp_path / "full.duckdb"
    days = pl.concat([daily_bars([float(n) for n in range(1, 500)], symbol=s) for s in ("BTC/USDT", "AAA", "it's")])
    days = days.with_columns(volume=pl.when(pl.col("symbol") == "AAA").then("volume")).sort("symbol", "ts")
    store.write_bars(path, days, bar="1d", delay=timedelta(minutes=15))
    store.write_bars(path, daily_bars([1, 2, 3], start=29), bar="5m")
    store.write_bars(path, daily_bars([1, 2, 3], start=400), bar="5m")
    # The first instant of a month belongs to it alone.
    store.write_bars(path, daily_bars([4]).with_columns(ts=pl.lit(datetime(2024, 2, 1, tzinfo=UTC))), bar="5m")
    for days_later in (0, 1):
        changed = daily_bars([7.0 + days_later, 8.0])
        store.correct_bars(path, changed, bar="1d", known_at=LEARNED + days_later * DAY)
    store.write_events(path, pl.DataFrame([("AAA", FIRST, "split", 2.0)], schema=EVENT_SCHEMA, orient="row"))
    return path


def test_an_export_read_back_is_an_equal_store(full: Path, tmp_path: Path) -> None:
    rows = store.export(full, tmp_path / "it's [a] lake?")
    assert rows["bars"] == 3 * 499 + 7
    assert rows["revisions"] == 3
    assert rows["events"] == 1
    again = tmp_path / "again.duckdb"
    counts = store.restore(tmp_path / "it's [a] lake?", again)
    assert counts == {table: store.Counts(added=n, present=0) for table, n in rows.items()}
    assert tables(again) == tables(full)
    for as_of in (None, LEARNED, LEARNED - DAY, FIRST + 100 * DAY):
        assert store.read_bars(again, bar="1d", as_of=as_of).equals(store.read_bars(full, bar="1d", as_of=as_of))
    # Once more changes nothing, and a second export is the same files.
    assert store.restore(tmp_path / "it's [a] lake?", again)["bars"] == store.Counts(added=0, present=rows["bars"])
    store.export(again, tmp_path / "second")
    assert (tmp_path / "second" / "foxflow.json").read_text() == (
        tmp_path / "it's [a] lake?" / "foxflow.json"
    ).read_text()


def test_an_export_is_a_lake_that_other_tools_read(full: Path, tmp_path: Path) -> None:
    store.export(full, tmp_path / "lake")
    files = sorted(str(file.relative_to(tmp_path / "lake")) for file in (tmp_path / "lake").rglob("*.parquet"))
    assert [file for file in files if file.startswith("bars/")] == [
        "bars/bar=1d/period=2024/bars.parquet",
        "bars/bar=1d/period=2025/bars.parquet",
        # The three bars lie on 30 and 31 January and on 1 February, and a year later.
        "bars/bar=5m/period=2024-01/bars.parquet",
        "bars/bar=5m/period=2024-02/bars.parquet",
        "bars/bar=5m/period=2025-02/bars.parquet",
    ]
    lake = pl.scan_parquet(tmp_path / "lake" / "bars", hive_partitioning=True)
    of_days = lake.filter(pl.col("bar") == "1d").drop("bar", "period", "known_at").sort("symbol", "ts").collect()
    assert of_days.equals(store.read_first(full, bar="1d"))


def test_every_table_of_a_store_is_exported(full: Path, tmp_path: Path) -> None:
    assert store.export(full, tmp_path / "lake").keys() == tables(full).keys() >= {"bars", "revisions", "events"}
    # A table that another part of foxflow made for itself would be lost.
    making = {f.name for f in Path(store.__file__).parent.glob("*.py") if "create table " in f.read_text("utf-8")}
    assert making == {"schema.py"}


def test_every_kind_of_value_survives(full: Path, tmp_path: Path) -> None:
    samples = {"VARCHAR": "'é, \n \"x'", "DOUBLE": "-0.1", "BIGINT": "7", "DATE": "'2024-02-29'"}
    samples["TIMESTAMP WITH TIME ZONE"] = "'2024-02-29 23:59:59.000001+00'"
    with duckdb.connect(full) as con:
        con.execute("set TimeZone = 'UTC'")
        for (name,) in con.sql("select table_name from duckdb_tables()").fetchall():
            columns = f"select data_type, is_nullable from duckdb_columns() where table_name = '{name}'"
            kinds = con.execute(columns).fetchall()
            # A bar's length names a folder.
            values = ["'1m'" if name == "bars" and n == 1 else samples[kind] for n, (kind, _) in enumerate(kinds)]
            unknown = ["null" if nullable else v for v, (_, nullable) in zip(values, kinds, strict=True)]
            for row in (values, unknown, unknown):
                con.execute(f"insert into {name} values ({', '.join(row)})")
    store.export(full, tmp_path / "lake")
    store.restore(tmp_path / "lake", tmp_path / "again.duckdb")
    assert tables(tmp_path / "again.duckdb") == tables(full)
    assert None in [row[7] for row in tables(full)["bars"]]


def test_a_store_of_before_revisions_had_a_table_is_exported_as_it_reads(tmp_path: Path) -> None:
    old = tmp_path / "old.duckdb"
    store.write_bars(old, daily_bars([1, 2]), bar="1d")
    store.correct_bars(old, daily_bars([3]), bar="1d", known_at=LEARNED)
    with duckdb.connect(old) as con:
        con.execute("insert into bars from revisions; drop table revisions")
    store.export(old, tmp_path / "lake")
    store.restore(tmp_path / "lake", tmp_path / "new.duckdb")
    for as_of in (None, LEARNED - DAY):
        new = store.read_bars(tmp_path / "new.duckdb", bar="1d", as_of=as_of)
        assert new.equals(store.read_bars(old, bar="1d", as_of=as_of))


def test_a_folder_that_is_there_is_not_written_over(full: Path, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    with pytest.raises(DataError, match="lake' is there already; give a folder that is not"):
        store.export(full, tmp_path / "lake")
    with pytest.raises(DataError, match="no store at"):
        store.export(tmp_path / "absent.duckdb", tmp_path / "other")
    with store.transaction(tmp_path / "empty.duckdb"):
        pass
    # An empty store is one too.
    assert set(store.export(tmp_path / "empty.duckdb", tmp_path / "other").values()) == {0}
    store.restore(tmp_path / "other", tmp_path / "empty again.duckdb")
    assert tables(tmp_path / "empty again.duckdb") == tables(tmp_path / "empty.duckdb")
    assert not [left for left in tmp_path.iterdir() if left.name.startswith(".work")]


def test_a_folder_that_was_changed_is_refused_by_the_name_of_its_file(full: Path, tmp_path: Path) -> None:
    lake, new = tmp_path / "lake", tmp_path / "new.duckdb"
    store.export(full, lake)
    events = lake / "events.parquet"
    content = events.read_bytes()
    events.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"the file events.parquet was changed since it was written; copy the folder"):
        store.restore(lake, new)
    events.unlink()
    with pytest.raises(DataError, match=r"the file events.parquet is absent"):
        store.restore(lake, new)
    events.write_bytes(content)
    (lake / "more.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"the file more.parquet is not listed"):
        store.restore(lake, new)
    (lake / "more.parquet").unlink()
    listed = json.loads((lake / "foxflow.json").read_text())
    (lake / "foxflow.json").write_text(json.dumps(listed | {"rows": listed["rows"] | {"dreams": 1}}))
    with pytest.raises(DataError, match=r"format 1 with tables .*dreams; this foxflow reads format 1 with bars,"):
        store.restore(lake, new)
    (lake / "foxflow.json").write_text("{")
    with pytest.raises(DataError, match=r"no readable foxflow.json .*expected a folder of foxflow bars export"):
        store.restore(lake, new)
    assert not new.exists()
    assert store.is_export(lake)
    assert not store.is_export(tmp_path)


def test_a_store_with_other_rows_is_left_as_it_is(full: Path, tmp_path: Path) -> None:
    store.export(full, tmp_path / "lake")
    other = tmp_path / "other.duckdb"
    store.write_bars(other, daily_bars([1, 2]), bar="1d")
    before = tables(other)
    with pytest.raises(DataError, match=r"its table bars holds 2 row\(s\) and differs from .*lake in 15\d\d; .*--out"):
        store.restore(tmp_path / "lake", other)
    assert tables(other) == before


def test_the_command_line_exports_and_imports_a_store(full: Path, tmp_path: Path) -> None:
    home, again, lake = tmp_path / "home", tmp_path / "again", tmp_path / "lake"
    home.mkdir()
    full.rename(home / "bars.duckdb")

    def foxflow(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", "from foxflow.cli import main; main()", "bars", *arguments],
            check=False,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    code, said = foxflow("export", str(lake), "--out", str(home), "--json")
    assert code == 0, said
    assert {row["table"]: row["rows"] for row in json.loads(said)}["bars"] == 3 * 499 + 7
    code, said = foxflow("import", str(lake), "--bar", "1d", "--out", str(again))
    assert code == 1
    assert said.startswith(f"error: {lake} is a folder of foxflow bars export; expected it alone")
    code, said = foxflow("import", str(lake), "--out", str(again), "--json")
    assert code == 0, said
    assert json.loads(said)[0] == {"table": "bars", "added": 3 * 499 + 7, "present": 0}
    assert tables(again / "bars.duckdb") == tables(home / "bars.duckdb")
    assert foxflow("export", str(lake), "--out", str(home))[0] == 1
