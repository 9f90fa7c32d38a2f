"""Times of the store: reading bars beside Polars on Parquet, importing a CSV beside DuckDB, and the memory it takes.

One run on two processors. What is timed is checked first: every bar read equals the bar made. The cases of a table run
in turn, round after round, and the least time of each counts, so that a burst of other work falls on all of them or on
none that count. The limits below must hold, or the exit status is 1.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

os.environ["POLARS_MAX_THREADS"] = "2"

import duckdb
import numpy as np
import polars as pl

from foxflow import ingest, store
from foxflow.bars import BAR_SCHEMA
from foxflow.sources import Options

FIRST = datetime(2015, 1, 5, 14, 31, tzinfo=UTC)
LEARNED = datetime(2026, 1, 1, tzinfo=UTC)
READ, READ_REVISED, IMPORT = 0.8, 0.2, 0.5
MEMORY_MB = 1500
REVISED = 0.01
OPTIONS = Options(bar="1m", stamp="close")


def random_walks(n_symbols: int, n_bars: int, *, seed: int, prefix: str = "S") -> Iterator[pl.DataFrame]:
    """Yield one-minute bars of each symbol: prices in cents that walk, wicks, and a volume."""
    random = np.random.default_rng(seed)
    ts = pl.datetime_range(FIRST, FIRST + timedelta(minutes=n_bars - 1), "1m", time_unit="us", eager=True)
    for n in range(n_symbols):
        close = np.round(100 * np.exp(np.cumsum(random.normal(0, 5e-4, n_bars))), 2)
        open_ = np.concatenate([[100.0], close[:-1]])
        wicks = np.abs(random.normal(0, 0.03, (2, n_bars)))
        columns = {
            "open": open_,
            "high": np.round(np.maximum(open_, close) + wicks[0], 2),
            "low": np.round(np.minimum(open_, close) - wicks[1], 2),
            "close": close,
            "volume": random.integers(0, 20_000, n_bars).astype(np.float64),
        }
        yield pl.DataFrame({"ts": ts} | columns).select(pl.lit(f"{prefix}{n:04d}").alias("symbol"), pl.all())


def least(cases: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Return the least seconds of each case over rounds in which each runs once."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            began = time.perf_counter()
            result = case()
            times[name].append(time.perf_counter() - began)
            del result
    return {name: min(found) for name, found in times.items()}


def compare(what: str, ours: str, theirs: str, times: dict[str, float], *, limit: float) -> bool:
    """Print both times and their ratio; return whether ours is at least `limit` times as fast."""
    ratio = times[theirs] / times[ours]
    print(f"{what:34} {times[ours]:8.2f} s {times[theirs]:8.2f} s {ratio:8.2f}   at least {limit}", flush=True)
    return ratio >= limit


def write_csv(bars: pl.DataFrame, file: Path, *, append: bool = False) -> None:
    """Write bars as a CSV with times like 2015-01-05T14:31:00Z."""
    with file.open("ab" if append else "wb") as out:
        bars.write_csv(out, include_header=not append, datetime_format="%Y-%m-%dT%H:%M:%SZ")


def fresh(path: Path) -> Path:
    """Return the path of a store that is not there."""
    path.unlink(missing_ok=True)
    return path


def time_import(bars: pl.DataFrame, folder: Path, *, rounds: int) -> bool:
    """Time an import of a clean CSV beside DuckDB's own reading of it; leave `bars.duckdb` for the reads."""
    file = folder / "bars.csv"
    write_csv(bars, file)
    ours, theirs = folder / "bars.duckdb", folder / "theirs.duckdb"

    def foxflow() -> None:
        ingest.import_files(fresh(ours), [file], OPTIONS)

    def plain() -> None:
        with duckdb.connect(fresh(theirs), config={"threads": 2}) as con:
            con.execute("create table bars as select * from read_csv($file)", {"file": str(file)})

    foxflow()
    if not store.read_bars(ours, bar="1m").equals(bars):
        raise SystemExit("the imported bars differ from those of the file")
    times = least({"foxflow": foxflow, "DuckDB": plain}, rounds=rounds)
    print(f"{'':34} {'foxflow':>10} {'other':>10} {'ratio':>8}")
    return compare("import of a CSV, by DuckDB", "foxflow", "DuckDB", times, limit=IMPORT)


def time_reads(bars: pl.DataFrame, folder: Path, *, rounds: int) -> bool:
    """Time reading every bar beside Polars on Parquet, first without a revision, then with some."""
    path, file = folder / "bars.duckdb", folder / "bars.parquet"
    bars.write_parquet(file)
    held = True
    cases = {"foxflow": lambda: store.read_bars(path, bar="1m"), "Parquet": lambda: pl.scan_parquet(file).collect()}
    for what, limit in (("read, no revision, by Parquet", READ), ("read, 1 % revised, by Parquet", READ_REVISED)):
        if limit == READ_REVISED:
            at = np.sort(np.random.default_rng(1).choice(len(bars), round(REVISED * len(bars)), replace=False))
            changed = bars[at].with_columns(pl.col("volume") + 1)
            store.correct_bars(path, changed, bar="1m", known_at=LEARNED)
            is_revised = np.zeros(len(bars))
            is_revised[at] = 1.0
            bars = bars.with_columns(pl.col("volume") + is_revised)
        if not store.read_bars(path, bar="1m").equals(bars):
            raise SystemExit(f"{what}: the bars read differ from those written")
        held &= compare(what, "foxflow", "Parquet", least(cases, rounds=rounds), limit=limit)
    return held


def measure_memory(folder: Path, *, size_mb: int) -> bool:
    """Measure the most memory that importing a large CSV takes, in a process of its own."""
    file, path, seed = folder / "large.csv", fresh(folder / "large.duckdb"), 2
    n_rows = 0
    while not file.exists() or file.stat().st_size < size_mb * 1e6:
        bars = pl.concat(random_walks(10, 100_000, seed=seed, prefix=f"L{seed:03d}"))
        write_csv(bars, file, append=n_rows > 0)
        seed, n_rows = seed + 1, n_rows + len(bars)
    code = (
        "import sys; from foxflow import ingest; from foxflow.sources import Options\n"
        f"ingest.import_files({str(path)!r}, [{str(file)!r}], Options(bar='1m', stamp='close'))\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    began = time.perf_counter()
    done = subprocess.run(  # noqa: S603 - this very interpreter
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, peak_mb = time.perf_counter() - began, int(done.stdout) / 1024
    if store.list_bars(path)["rows"].sum() != n_rows:
        raise SystemExit(f"the large import holds other than {n_rows} rows")
    what = f"import of {file.stat().st_size / 1e9:.1f} GB, {n_rows:,} rows"
    print(f"{what:34} {seconds:8.1f} s {peak_mb:8.0f} MB {'':8}   below {MEMORY_MB} MB", flush=True)
    return peak_mb < MEMORY_MB


def main() -> None:
    """Run every case and exit 1 where a limit does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--symbols", type=int, default=100)
    parser.add_argument("--bars", type=int, default=100_000, help="bars a symbol")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--large-mb", type=int, default=2000, help="size of the CSV whose memory is measured, 0 for none"
    )
    parser.add_argument("--folder", type=Path, help="where to write about 7 GB for the time of the run")
    asked = parser.parse_args()
    processors = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, processors)
    bars = pl.concat(random_walks(asked.symbols, asked.bars, seed=0), rechunk=True).cast(BAR_SCHEMA)
    versions = f"duckdb {duckdb.__version__}, polars {pl.__version__}"
    print(f"{len(bars):,} bars, {versions}, processors {processors}", flush=True)
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        held = time_import(bars, folder, rounds=min(asked.rounds, 3))
        held &= time_reads(bars, folder, rounds=asked.rounds)
        del bars
        if asked.large_mb:
            held &= measure_memory(folder, size_mb=asked.large_mb)
    if not held:
        sys.exit("a limit does not hold")


if __name__ == "__main__":
    main()
