"""Which code and which versions a result came from."""

import hashlib
import platform
import sys
import sysconfig
from pathlib import Path


def code_sha256() -> str:
    """Return the sha256 over Python, every installed distribution by version, and the source of loose packages.

    Loose is a loaded package outside the folders of installed ones: foxflow and plugins under development, whose
    version says nothing of their content.
    """
    digest = hashlib.sha256(f"{sys.version} {platform.machine()}".encode())
    installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    for folder in sorted(installed):
        digest.update("".join(sorted(p.name for p in folder.glob("*.dist-info"))).encode())
    for package in _loose_packages([*installed, Path(sysconfig.get_path("stdlib"))]):
        for file in sorted(package.rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                digest.update(f"{package.name}/{file.relative_to(package)}".encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _loose_packages(installed: list[Path]) -> list[Path]:
    names = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    folders = [Path(path) for name in names for path in getattr(sys.modules.get(name), "__path__", ())]
    return sorted(f for f in folders if f.is_dir() and not any(f.is_relative_to(i) for i in installed))
