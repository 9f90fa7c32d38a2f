"""`foxflow.backtest(...)` in a script and in a notebook."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import foxflow
from foxflow import notebook
from foxflow.errors import ConfigError

TINY = str(Path(__file__).parent / "tiny.toml")


def python(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, check=False)


def test_importing_foxflow_loads_none_of_its_modules_and_no_library(tmp_path: Path) -> None:
    code = "import sys; before = set(sys.modules); import foxflow; loaded = set(sys.modules) - before; "
    code += (
        "print([n for n in sorted(loaded) if n.partition('.')[0] not in sys.stdlib_module_names], 'asyncio' in loaded)"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout.strip() == "['foxflow'] False", done.stdout + done.stderr
    with pytest.raises(AttributeError, match="module 'foxflow' has no attribute 'backtset'"):
        foxflow.backtset  # noqa: B018


CALL = """
import json
import foxflow
result = foxflow.backtest({config!r}, model="ridge", out="home", costs={{"fee_bps": 0.5}},
                          **{{"data.symbols": ["IBM"], "strategy.position_limit": 0.25}})
import polars as pl
print(json.dumps({{
    "stats": result.stats.to_dicts(),
    "columns": [result.forecasts.columns[:4], result.equity.columns[:3], result.fills.columns[:4]],
    "rows": [len(result.forecasts), len(result.equity), len(result.fills)],
    "plot": [type(result.plot()).__name__, len(result.plot().data)],
    "portfolio": type(result.portfolio).__module__.partition(".")[0],
    "final": float(result.portfolio.value().iloc[-1]),
    "equity": result.equity["equity"][-1],
    "costs": float(sum(result.fills["fee"])),
    "report": str(result.report),
    "html": result._repr_html_(),
    "config": (result.folder / "config.toml").read_text(),
}}, default=str))
"""


def test_a_call_without_a_file_as_in_a_notebook_gives_numbers_frames_a_figure_and_vectorbts_portfolio(
    tmp_path: Path,
) -> None:
    done = python("-c", CALL.format(config=TINY), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    [stats] = found["stats"]
    assert (stats["model"], stats["n_folds"], stats["n_forecasts"]) == ("ridge", 3, 3270 - 1000)
    assert found["columns"] == [
        ["symbol", "ts", "fold", "forecast"],
        ["ts", "equity", "benchmark"],
        ["symbol", "ts", "shares", "price"],
    ]
    assert found["rows"] == [stats["n_forecasts"], 2270, stats["n_fills"]]
    assert found["plot"][0] == "Figure"
    assert found["plot"][1] >= 4
    assert found["portfolio"] == "vectorbt"
    assert found["final"] == pytest.approx(found["equity"], rel=1e-9)
    assert found["equity"] / 1_000_000 - 1 == pytest.approx(stats["total_return"], rel=1e-9)
    assert Path(tmp_path, found["report"]).is_file()
    assert "fee_bps = 0.5" in found["config"]
    assert 'symbols = [\n    "IBM",\n]' in found["config"]
    assert len(found["html"]) < 2000
    assert 'href="file:///' in found["html"]


def test_a_script_without_a_guard_says_what_it_needs(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import foxflow\nfoxflow.backtest({TINY!r}, model='ridge', out='home')\n")
    done = python("script.py", cwd=tmp_path)
    assert done.returncode == 1
    assert 'let a script of your own start under if __name__ == "__main__"' in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"costs": 3}, r"costs = 3; expected a section with keys, as in costs=\{'fee_bps': 0\}"),
        ({"costs": {"fee_bps": None}}, r"costs\.fee_bps = None; expected a TOML value"),
        ({"costs.fee_bsp": 1}, "unknown key 'fee_bsp'"),
        ({"cots": {"fee_bps": 1}}, "unknown section 'cots'"),
    ],
)
def test_a_wrong_override_is_named(overrides: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        foxflow.backtest(TINY, out=tmp_path, **overrides)
    assert not list(tmp_path.iterdir())


def test_overrides_of_every_kind_reach_the_config_as_they_are() -> None:
    from foxflow import config

    values = {
        "data": {"symbols": ("AAPL", "IBM")},
        "costs": {"fee_bps": 0.25},
        "strategy.side": "long_only",
        "experiment.seed": 9,
    }
    settings = config.load(TINY, overrides=notebook._assignments(values))
    assert settings.data.symbols == ("AAPL", "IBM")
    assert (settings.costs.fee_bps, settings.strategy.side, settings.experiment.seed) == (0.25, "long_only", 9)


def test_a_row_of_key_numbers_can_be_compared_with_anothers() -> None:
    assert set(notebook.STATS) >= {"total_return", "sharpe", "max_drawdown", "ic"}
    one = pl.DataFrame([dict.fromkeys(notebook.STATS, 1.0)])
    assert pl.concat([one, one]).shape == (2, len(notebook.STATS))
