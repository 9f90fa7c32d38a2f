"""The wheel has everything in it: the embedded experiment runs from it in an empty folder."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_embedded_experiment_runs_from_a_wheel_in_an_empty_folder(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-qq",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("foxflow-*.whl")
    site, empty = tmp_path / "site", tmp_path / "empty"
    zipfile.ZipFile(wheel).extractall(site)
    empty.mkdir()
    code = (
        "import foxflow, sys; from foxflow.cli import main; print(foxflow.__file__, file=sys.stderr); "
        "sys.argv = ['foxflow', 'backtest', '--model', 'ridge', '--json']; main()"
    )
    environment = {k: v for k, v in os.environ.items() if k != "FOXFLOW_HOME"} | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=empty, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].startswith(str(site))
    summary = json.loads(done.stdout)
    assert summary["n_folds"] == 11
    assert (empty / summary["report"]).is_file()
    assert {p.name for p in (empty / "data").iterdir()} == {
        "sample.duckdb",
        "ledger.sqlite",
        "folds",
        "runs",
        "releases",
    }
