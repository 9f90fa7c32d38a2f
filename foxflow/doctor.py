"""What is installed here and which devices are real: build facts are not machine facts."""

import importlib.util
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from foxflow import registry
from foxflow.errors import FoxflowError
from foxflow.experiment import home

Finding = dict[str, Any]


def examine(out: Path | None) -> list[Finding]:
    """Return the findings: `check`, `status` (`ok`, `note` or `wrong`) and `detail`."""
    return [
        _finding("python", "ok", sys.version.split()[0]),
        *(_package(name) for name in ("foxflow", "polars", "duckdb", "vectorbt", "onnx")),
        _onnxruntime(),
        _provider(),
        _torch(),
        _models(),
        _home(home(out)),
    ]


def _finding(check: str, status: str, detail: str) -> Finding:
    return {"check": check, "status": status, "detail": detail}


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _package(name: str) -> Finding:
    found = _installed(name)
    return _finding(name, "ok" if found else "wrong", found or f"not installed: pip install {name}")


def _onnxruntime() -> Finding:
    """Both wheels write one folder: the last one wins, removing either breaks it, and pip does not notice."""
    cpu, gpu = _installed("onnxruntime"), _installed("onnxruntime-gpu")
    if cpu and gpu:
        detail = (
            f"onnxruntime {cpu} and onnxruntime-gpu {gpu} overwrite each other: "
            "pip uninstall -y onnxruntime onnxruntime-gpu, then install one extra, foxflow[onnx] or foxflow[onnx-gpu]"
        )
        return _finding("onnxruntime", "wrong", detail)
    if not (cpu or gpu):
        return _finding("onnxruntime", "wrong", "not installed: pip install 'foxflow[onnx]' or 'foxflow[onnx-gpu]'")
    return _finding("onnxruntime", "ok", f"onnxruntime-gpu {gpu}" if gpu else f"onnxruntime {cpu}")


def _provider() -> Finding:
    if importlib.util.find_spec("onnxruntime") is None:
        return _finding("onnx provider", "wrong", "none: ONNX Runtime is not installed")
    import onnxruntime

    # get_available_providers() tells what the wheel was built with, the devices tell what this machine has.
    devices = {d.ep_name for d in onnxruntime.get_ep_devices()}
    real = sorted(d.removesuffix("ExecutionProvider") for d in devices)
    built = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    if built and not _has_cuda():
        return _finding("onnx provider", "note", f"{', '.join(real)}; the wheel has CUDA, but no CUDA device is here")
    return _finding("onnx provider", "ok", ", ".join(real) + (", CUDA" if built else ""))


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _torch() -> Finding:
    found = _installed("torch")
    if found is None:
        return _finding("torch device", "note", "torch is not installed; needed by Torch plugins only")
    if not _has_cuda():
        return _finding("torch device", "ok", f"cpu (torch {found}, no CUDA device)")
    import torch

    return _finding("torch device", "ok", f"cuda: {torch.cuda.get_device_name(0)} (torch {found})")


def _models() -> Finding:
    try:
        names = registry.installed()
    except FoxflowError as e:
        return _finding("models", "wrong", str(e))
    if not names:
        return _finding("models", "wrong", "none installed: pip install foxflow-ridge")
    return _finding("models", "ok", ", ".join(names))


def _home(folder: Path) -> Finding:
    nearest = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        return _finding("home", "wrong", f"{folder} cannot be written; give another --out or set $FOXFLOW_HOME")
    return _finding("home", "ok", str(folder))
