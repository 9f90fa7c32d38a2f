"""Listing and showing stay light, and bars go in and out of the store."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from report_samples import sample_summary

from foxflow.cli import backtest

FOXFLOW = [sys.executable, "-c", "from foxflow.cli import main; main()"]
HEAVY = {
    "torch",
    "vectorbt",
    "prefect",
    "pandas",
    "onnxruntime",
    "onnx",
    "plotly",
    "numba",
    "duckdb",
    "polars",
    "numpy",
}


def foxflow(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FOXFLOW, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_a_run_prints_its_forecasts_by_age_of_state(capsys: pytest.CaptureFixture[str]) -> None:
    backtest.print_summary(sample_summary(verdict=["Nothing."], report="report.html"))
    printed = [line.strip("│ ").split("│") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in line] for line in printed]
    assert ["state gap, largest of a fit", "1.23%"] in [row[:2] for row in cells]
    assert ["0-49", "40", "0.0622", "2.114", "0.0031"] in cells
    assert ["250 and over", "0", "-", "-", "-"] in cells


@pytest.mark.parametrize("arguments", [["--help"], ["models", "list"], ["backtest", "--help"], ["bars", "--help"]])
def test_help_and_models_list_load_no_heavy_library(arguments: list[str]) -> None:
    code = (
        "import sys, json\n"
        f"sys.argv = ['foxflow', *{arguments!r}]\n"
        "from foxflow.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "print('MODULES', json.dumps(sorted({m.split('.')[0] for m in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout.rsplit("MODULES ", 1)[1])
    assert set(modules) & HEAVY == set()


def test_what_the_machine_refuses_is_one_line_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments, message in (
        (("backtest", "a" * 300 + ".toml"), "File name too long"),
        (("bars", "list", "--sample", "--out", str(tmp_path / "file" / "x")), "Not a directory"),
    ):
        done = foxflow(*arguments)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("error: ")
        assert message in done.stderr


def test_a_reader_that_has_seen_enough_and_a_full_disk_leave_no_traceback() -> None:
    for redirection in ("| head -c 1", "> /dev/full"):
        command = f"{shlex.join(FOXFLOW)} models list --json {redirection}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        assert "Exception" not in done.stderr


def test_models_show_lists_parameters_and_defaults() -> None:
    rows = json.loads(foxflow("models", "show", "ridge", "--json").stdout)
    assert rows == [{"parameter": "penalty", "type": "float", "default": 0.01}]
    rows = json.loads(foxflow("models", "show", "gru", "--json").stdout)
    assert {"parameter": "dtype", "type": "float64 | float32", "default": "float64"} in rows


def test_doctor_says_which_devices_are_real() -> None:
    done = foxflow("doctor", "--json")
    found = {f["check"]: f for f in json.loads(done.stdout)}
    import torch

    assert ("cuda" in found["torch device"]["detail"].split(" ")[0]) == torch.cuda.is_available()
    assert "CPU" in found["onnx provider"]["detail"]
    assert (done.returncode == 0) == all(f["status"] != "wrong" for f in found.values())


CSV = """symbol,date,open,high,low,close,volume
TST,2024-03-14,10,12,9,11,100
TST,2024-03-15,11,12,10,12,200
TST,2024-03-18,30,31,29,30,0
"""


def test_bars_are_imported_listed_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "bars.csv"
    file.write_text(CSV)
    out = tmp_path / "home"
    command = ("bars", "import", file, "--bar", "1d", "--calendar", "XNYS", "--out", out, "--json")
    nothing = {"corrected": 0, "kept": 0, "quarantined": 0, "notes": []}
    assert json.loads(foxflow(*command).stdout) == [{"file": str(file), "added": 3, "present": 0, **nothing}]
    assert json.loads(foxflow(*command).stdout) == [{"file": str(file), "added": 0, "present": 3, **nothing}]
    assert json.loads(foxflow("bars", "list", "--out", out, "--json").stdout) == [
        {"symbol": "TST", "bar": "1d", "rows": 3, "first_ts": "2024-03-14T20:00:00Z", "last_ts": "2024-03-18T20:00:00Z"}
    ]
    done = foxflow("bars", "check", "--out", out, "--json")
    assert done.returncode == 0
    assert [(f["check"], f["severity"]) for f in json.loads(done.stdout)] == [
        ("jump", "warning"),
        ("zero volume", "warning"),
    ]


def test_a_recorded_split_explains_its_jump(tmp_path: Path) -> None:
    found = json.loads(foxflow("bars", "check", "--sample", "--out", tmp_path, "--json").stdout)
    jumps = [(f["symbol"], f["ts"][:10]) for f in found if f["check"] == "jump"]
    # Three 2:1 splits are recorded; what is left are Apple's real fall and Facebook's real rise.
    assert jumps == [("AAPL", "2000-09-29"), ("FB", "2012-10-24")]


def test_an_import_that_is_refused_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "bars.csv"
    file.write_text(CSV.replace("31,29", "28,29"))
    done = foxflow("bars", "import", file, "--bar", "1d", "--calendar", "XNYS", "--out", tmp_path / "home")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert not (tmp_path / "home" / "bars.duckdb").exists()


def test_a_command_interrupted_while_it_loads_is_one_line_and_exit_130() -> None:
    code = (
        "import sys\n"
        "from foxflow.cli import app, main\n"
        "def stop(**_):\n"
        "    raise KeyboardInterrupt\n"
        "app.commands['doctor'].callback = stop\n"
        "sys.argv = ['foxflow', 'doctor']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("interrupted; ")
    assert done.stderr.count("\n") == 1


def test_a_dry_run_knows_the_splits_of_its_events_and_refuses_a_file_of_none(tmp_path: Path) -> None:
    bars, events = tmp_path / "bars.csv", tmp_path / "events.csv"
    days = [f"2024-03-{d:02}" for d in (1, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 18, 19, 20, 21, 22, 25, 26, 27, 28)]
    rows = [f"{day},A,{p},{p + 1},{p - 1},{p + 0.5},{v}" for n, day in enumerate(days)
            for p, v in [(100 + n % 3, 1000 + n) if n < 10 else (50 + n % 3, 2000 + n)]]  # fmt: skip
    bars.write_text("\n".join(["date,symbol,open,high,low,close,volume", *rows]))
    events.write_text("symbol,session,kind,value\nA,2024-03-15,split,2\n")
    dry = ("bars", "import", bars, "--calendar", "XNYS", "--dry-run", "--json")
    without, told = (json.loads(foxflow(*dry, *more).stdout)["warnings"] for more in ([], ["--events", events]))
    assert [w for w in without if "possible split" in w]
    assert not [w for w in told if "possible split" in w]
    refused = foxflow(*dry, "--events", tmp_path / "absent.csv")
    assert refused.returncode == 1
    assert "absent.csv" in json.loads(refused.stdout)["error"]


def test_a_path_that_duckdb_would_take_for_another_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name in ("why?", "a\\b"):
        folder = tmp_path / name
        folder.mkdir()
        done = foxflow("bars", "list", "--sample", "--out", folder)
        assert done.returncode == 1
        assert "DuckDB takes no path with" in done.stderr
        assert not list(folder.iterdir())


def test_an_interruption_in_the_middle_of_a_query_is_one_line_and_exit_130() -> None:
    # What DuckDB raises, in the queries in which it hears Ctrl-C at all: not in all, so none is run here.
    code = "from foxflow.cli.app import interruptible\nwith interruptible():\n    raise RuntimeError({!r})\n"
    done, other = (
        subprocess.run([sys.executable, "-c", code.format(text)], capture_output=True, text=True, check=False)
        for text in ("Query interrupted", "another fault")
    )
    assert (done.returncode, done.stderr.count("\n")) == (130, 1), done.stderr
    assert done.stderr.startswith("interrupted; ")
    assert other.returncode == 1
    assert "RuntimeError: another fault" in other.stderr
