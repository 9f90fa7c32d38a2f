"""A release on disk: `releases/<experiment>/<id>/`, its manifest, and the checks before anything of it is loaded."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foxflow.errors import ReleaseError, unknown
from foxflow.release.parity import Graph, Singles, stream
from foxflow.scratch import scratch

SCHEMA = 1
MANIFEST = "manifest.json"
NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)?\.[a-z0-9]+")


@dataclass(frozen=True)
class Release:
    """A release whose files were verified: its folder and the facts of its manifest."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The name of its folder: the cut and the first digits of the hash over all files."""
        return str(self.manifest["id"])


def write(folder: Path, files: Mapping[str, bytes], facts: Mapping[str, Any], *, cut: str) -> Release:
    """Return the release written to `folder/<id>` by one rename; the same files give the same release.

    Every file is on disk before the name exists, so a reader sees a whole release or none.
    """
    listed = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        for name, content in sorted(files.items())
    }
    body = {"schema": SCHEMA, **facts, "files": listed}
    manifest = {"id": f"{cut}-{_digest(body)}", **body}
    target = folder / str(manifest["id"])
    if target.exists():
        return load(target)
    with scratch(folder) as work:
        for name, content in (*files.items(), (MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())):
            path = work / name
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as f:
                f.write(content)
                f.flush()
                os.fsync(f.fileno())
        work.chmod(0o755)
        try:
            work.rename(target)
        except OSError:
            # Another process released the same files in the meantime.
            if not target.exists():
                raise
    return load(target)


def load(path: Path) -> Release:
    """Return the release in a folder after checking its manifest and the sha256 of every file.

    Raises
    ------
    ReleaseError
        Where a file is absent, added or changed, or the manifest is not one: nothing of it has been run then.
    """
    manifest = _manifest(path)
    files = manifest["files"]
    present = {p.relative_to(path).as_posix() for p in path.rglob("*") if not p.is_dir()} - {MANIFEST}
    if present != set(files):
        odd = sorted(present ^ set(files))
        raise ReleaseError(
            f"{path}: {odd[0]} is {'not in the manifest' if odd[0] in present else 'missing'}; restore it"
        )
    for name, entry in files.items():
        found = hashlib.sha256((path / name).read_bytes()).hexdigest()
        if found != entry["sha256"]:
            raise ReleaseError(f"{path / name} has sha256 {found}; the manifest says {entry['sha256']}; restore it")
    body = {k: v for k, v in manifest.items() if k != "id"}
    if manifest.get("id") != path.name or not path.name.endswith(f"-{_digest(body)}"):
        raise ReleaseError(f"{path}: the manifest is not the one its name was made from; restore the release")
    return Release(path, manifest)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:12]


def _manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a release, its shape and its file names checked."""
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
    except OSError as e:
        raise ReleaseError(f"no {MANIFEST} to read in {str(path)!r}; give the folder of a release") from e
    except (UnicodeDecodeError, json.JSONDecodeError) as e:
        raise ReleaseError(f"{path / MANIFEST} is not JSON ({e}); restore the release from a copy") from e
    if (
        not isinstance(manifest, dict)
        or manifest.get("schema") != SCHEMA
        or not isinstance(manifest.get("files"), dict)
    ):
        raise ReleaseError(f"{path / MANIFEST} is not a manifest of schema {SCHEMA}; use the foxflow that wrote it")
    files = manifest["files"]
    for name, entry in files.items():
        if not NAME.fullmatch(name):
            raise ReleaseError(f"{path / MANIFEST} names the file {name!r}; expected plain names inside the release")
        if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
            raise ReleaseError(f"{path / MANIFEST} says {entry!r} of {name}; expected its sha256: restore the release")
    return manifest


def verify(path: Path) -> dict[str, float]:
    """Return, per golden vector, the largest difference of the graphs, after `load`'s checks.

    Raises
    ------
    ReleaseError
        Where a graph does not give the golden forecasts, states or valid flags within the manifest's tolerance.
    """
    release = load(path)
    golden = release.manifest["golden"]
    n_features = len(release.manifest["features"])
    step, window = (Graph.load(str(path / f"{kind}.onnx")) for kind in ("step", "window"))
    differences: dict[str, float] = {}
    for prefix in ("", "bad_"):
        features = _singles(path / f"golden/{prefix}features.f32").reshape(-1, n_features)
        expected = _singles(path / f"golden/{prefix}forecast.f32")
        valid = np.frombuffer((path / f"golden/{prefix}valid.u8").read_bytes(), np.uint8).astype(bool)
        whole, flags, after = window.run(features[None], window.zero_state())
        bar_by_bar, step_flags, step_after = stream(step, features)
        if (flags[0] != valid).any() or (step_flags != valid).any():
            raise ReleaseError(f"{path}: the valid flags of golden/{prefix}features.f32 differ; rebuild the release")
        found = {"window": whole[0], "step": bar_by_bar}
        for kind, forecast in found.items():
            differences[f"{prefix}{kind}"] = _within(path, f"{prefix}{kind}", forecast, expected, golden["tolerance"])
        if not prefix and window.past:
            state = _singles(path / "golden/state_after.f32")
            for kind, states in (("window", after), ("step", step_after)):
                flat = np.concatenate([s.ravel() for s in states.values()])
                differences[f"{kind} state"] = _within(path, f"{kind} state", flat, state, golden["state_tolerance"])
    return differences


def _singles(path: Path) -> Singles:
    return np.frombuffer(path.read_bytes(), "<f4").astype(np.float32)


def _within(path: Path, name: str, found: Singles, expected: Singles, tolerance: float) -> float:
    difference = float(np.abs(found.astype(np.float64) - expected).max())
    if not difference <= tolerance:
        raise ReleaseError(
            f"{path}: {name} differs from the golden vector by {difference:.3g}; expected at most {tolerance:.3g}: "
            "this machine's ONNX Runtime computes something else; do not trade this release here"
        )
    return difference


def find(folder: Path, which: str) -> Path:
    """Return the folder of the release with that id under `folder/releases`, or `which` itself where it is one."""
    known = {path.name: path for path in _folders(folder)}
    if which in known:
        return known[which]
    if (Path(which) / MANIFEST).is_file():
        return Path(which)
    raise ReleaseError(f"{unknown('release', which, known)}; see `foxflow release list`")


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("releases/*/*/") if not p.name.startswith("."))


def list_releases(folder: Path) -> list[dict[str, Any]]:
    """Return the releases under `folder/releases`, oldest first: id, experiment, path, status, cut, model.

    `status` is `challenger` for a sound release nobody has promoted, `damaged` for one that `load` refuses.
    """
    entries = []
    for path in _folders(folder):
        entry: dict[str, Any] = {"id": path.name, "experiment": path.parent.name, "path": str(path)}
        try:
            manifest = load(path).manifest
        except ReleaseError as e:
            entries.append({**entry, "status": "damaged", "cut": None, "model": None, "problem": str(e)})
            continue
        entries.append({**entry, "status": "challenger", "cut": manifest["cut"], "model": manifest["model"]["name"]})
    return sorted(entries, key=lambda e: (e["cut"] or "", Path(e["path"]).stat().st_mtime_ns))
