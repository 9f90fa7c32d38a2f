"""Backtesting with scheduled retraining: bars in, scored walk-forward forecasts and an ONNX release out.

`foxflow.backtest("config.toml")` runs an experiment from Python; `foxflow.notebook` says what it returns.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foxflow.notebook import backtest as backtest

__all__ = ["backtest"]


def __getattr__(name: str) -> object:
    # Importing foxflow loads nothing: a command has its own imports, and so has a fit's process.
    if name == "backtest":
        from foxflow.notebook import backtest

        return backtest
    raise AttributeError(f"module 'foxflow' has no attribute {name!r}")
