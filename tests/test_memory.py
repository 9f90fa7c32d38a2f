"""A long walk-forward takes no more memory at its end than early on."""

import json
import subprocess
import sys
from pathlib import Path

WALK = """
import json, sys
sys.path[:0] = {path!r}
from dataclasses import replace
from pathlib import Path
import numpy as np
from foxflow import splits, training
from foxflow.config import WalkForward
from foxflow.dataset import Dataset, Series

def resident(pid="self"):
    pages = int(Path(f"/proc/{{pid}}/statm").read_text().split()[1])
    return pages * 4096 / 1e6

if __name__ == "__main__":
    n, n_folds = 4_100, 100
    random = np.random.default_rng(0)
    ts = np.arange(n) * 86_400_000_000
    def series(symbol):
        features = random.normal(size=(n, 40))
        return Series(symbol, ts, features, np.ones(n, bool), random.normal(size=n), ts + 1, np.zeros(n))
    data = Dataset(tuple(map(str, range(40))), "l", 1, 1, tuple(series(s) for s in "AB"))
    folds = splits.walk_forward(ts, WalkForward(train=100, every=40, embargo=0))
    assert len(folds) == n_folds
    seen, on_disk = [], []
    def progress(event):
        if event.epoch is None:
            children = Path("/proc/self/task", str(__import__("os").getpid()), "children").read_text().split()
            workers = [p for p in children if b"spawn_main" in Path(f"/proc/{{p}}/cmdline").read_bytes()]
            seen.append([resident(), *(resident(p) for p in workers)])
            on_disk.append(len(list(Path({kept!r}).glob(".work-*/*"))))
    # Each fold sees samples of its own, as where bars are corrected all the time.
    training.run(
        data, folds, training.Recipe("ridge", {{}}, 3, 5.0), workers=1, as_of=lambda _: replace(data),
        kept=Path({kept!r}), progress=progress,
    )
    print(json.dumps([seen[19], seen[99], max(on_disk)]))
"""


def test_memory_is_flat_over_100_folds(tmp_path: Path) -> None:
    script = tmp_path / "walk.py"
    script.write_text(WALK.format(path=sys.path, kept=str(tmp_path / "kept")))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    early, late, n_versions = json.loads(done.stdout)
    # Of the parent and its process; samples of 80 more folds would be 210 MB.
    assert len(early) == len(late) == 2
    for before, after in zip(early, late, strict=True):
        assert after <= 1.1 * before, (early, late)
    # The version that is read, those that wait, and entries being written.
    assert n_versions <= 6
