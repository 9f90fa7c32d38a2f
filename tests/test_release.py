"""A release of ridge: what is inside, and that nothing damaged is ever loaded."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import polars as pl
import pytest

from foxflow import config, dataset, registry, release, splits, training
from foxflow.config import to_document
from foxflow.dataset import Dataset
from foxflow.errors import PluginError, ReleaseError
from foxflow.model import Fitted, Graphs
from foxflow.release import parity
from foxflow.training import FoldResult, Recipe

TINY = Path(__file__).parent / "tiny.toml"


class Built:
    """A final fit of ridge on two symbols, ready to be released."""

    def __init__(self, stocks: pl.DataFrame, folder: Path) -> None:
        self.settings = config.load(TINY, model="ridge")
        two = stocks.filter(pl.col("symbol").is_in(["AAPL", "IBM"]))
        names = self.settings.features.names
        self.data: Dataset = dataset.build(two, feature_names=names, label_name="forward_return", horizon=5)
        times = dataset.bar_times(self.data)
        fold = splits.final(times, self.settings.walk_forward, number=0)
        self.since = int(times[2500])
        self.checkpoint = folder / "model"
        recipe = Recipe("ridge", {}, 3, 5.0)
        self.result: FoldResult = training.fit_fold(
            self.data, fold, recipe, folder=self.checkpoint, progress=lambda *_: None
        )
        self.fitted: Fitted = registry.build("ridge", {}).load(self.checkpoint)

    def release(self, folder: Path, fitted: Fitted | None = None) -> release.Release:
        return release.build(
            fitted or self.fitted,
            self.data,
            self.result,
            since=self.since,
            checkpoint=self.checkpoint,
            config=to_document(self.settings),
            folder=folder,
        )


@pytest.fixture(scope="module")
def built(stocks: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(stocks, tmp_path_factory.mktemp("fit"))


@pytest.fixture(scope="module")
def bundle(built: Built, tmp_path_factory: pytest.TempPathFactory) -> release.Release:
    return built.release(tmp_path_factory.mktemp("home") / "releases" / "tiny")


def test_the_graphs_name_their_inputs_and_outputs_and_keep_the_batch_symbolic(bundle: release.Release) -> None:
    step, window = (onnx.load(bundle.path / f"{k}.onnx") for k in ("step", "window"))
    for model, axes in ((step, ["batch"]), (window, ["batch", "bars"])):
        shapes = {
            v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in (*model.graph.input, *model.graph.output)
        }
        assert shapes == {"features": [*axes, 4], "forecast": [*axes, 1], "valid": axes}
        assert [(o.domain, o.version) for o in model.opset_import] == [("", 20)]
        assert model.ir_version == 10
    facts = {p.key: p.value for p in step.metadata_props}
    assert json.loads(facts["foxflow.features"]) == ["return_1", "volatility_20", "range_position", "volume_ratio"]
    assert facts["foxflow.cut"] == "2013-02-22T21:00:00Z"


def test_scaler_clip_and_gate_are_inside_the_graph(built: Built, bundle: release.Release) -> None:
    scaler, step = built.result.scaler, parity.Graph.load(str(bundle.path / "step.onnx"))
    inside = scaler.median + scaler.scale * scaler.clip
    far = scaler.median + scaler.scale * 1e6
    bad = np.where(np.arange(4) == 2, np.nan, inside)
    rows = np.stack([inside, far, bad, scaler.median]).astype(np.float32)
    forecast, valid, _ = step.run(rows, {})
    assert valid.tolist() == [True, True, False, True]
    assert forecast[0] == pytest.approx(forecast[1], rel=1e-4)
    assert forecast[2] == forecast[3]
    coefficients = built.fitted.coefficients  # type: ignore[attr-defined]
    by_hand = (coefficients.sum() * 5.0 + built.fitted.intercept) * scaler.label_scale + scaler.label_mean  # type: ignore[attr-defined]
    assert forecast[0] == pytest.approx(by_hand, rel=1e-4)


def test_the_same_fit_gives_the_same_release_and_writes_nothing_twice(built: Built, bundle: release.Release) -> None:
    before = {p: p.stat().st_mtime_ns for p in bundle.path.rglob("*")}
    again = built.release(bundle.path.parent)
    assert again.id == bundle.id
    assert {p: p.stat().st_mtime_ns for p in bundle.path.rglob("*")} == before


def test_another_folder_gives_the_same_bytes(built: Built, bundle: release.Release, tmp_path: Path) -> None:
    other = built.release(tmp_path / "elsewhere")
    for path in bundle.path.rglob("*.*"):
        assert (other.path / path.relative_to(bundle.path)).read_bytes() == path.read_bytes()


def test_verify_reproduces_the_golden_vectors(bundle: release.Release) -> None:
    differences = release.verify(bundle.path)
    assert set(differences) == {"window", "step", "bad_window", "bad_step"}
    assert max(differences.values()) <= bundle.manifest["golden"]["tolerance"]
    assert bundle.manifest["golden"]["tolerance"] == pytest.approx(1e-3 * bundle.manifest["forecast_std"])
    assert bundle.manifest["golden"]["n_bars"] == 256


@pytest.mark.parametrize(
    "kind", ["step.onnx", "window.onnx", "checkpoint.safetensors", "config.toml", "golden/forecast.f32"]
)
def test_a_flipped_byte_in_any_file_is_refused_before_anything_runs(
    bundle: release.Release, tmp_path: Path, kind: str
) -> None:
    copy = shutil.copytree(bundle.path, tmp_path / bundle.id)
    content = bytearray((copy / kind).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / kind).write_bytes(content)
    with pytest.raises(ReleaseError, match=f"{kind} has sha256"):
        release.verify(copy)


def edit(manifest: dict[str, object], **changes: object) -> dict[str, object]:
    return {**manifest, **changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: edit(m, files={**m["files"], "../step.onnx": m["files"]["step.onnx"]}),
            "names the file '../step.onnx'",
        ),
        (
            lambda m: edit(m, files={k: v for k, v in m["files"].items() if k != "step.onnx"}),
            "step.onnx is not in the manifest",
        ),
        (lambda m: edit(m, files={**m["files"], "extra.onnx": m["files"]["step.onnx"]}), "extra.onnx is missing"),
        (lambda m: edit(m, warmup_bars=3), "the manifest is not the one its name was made from"),
        (lambda m: edit(m, schema=2), "is not a manifest of schema 1"),
        (lambda _: [1, 2], "is not a manifest of schema 1"),
    ],
)
def test_an_edited_manifest_is_refused(
    bundle: release.Release, tmp_path: Path, change: Callable[[dict[str, object]], object], message: str
) -> None:
    copy = shutil.copytree(bundle.path, tmp_path / bundle.id)
    path = copy / "manifest.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ReleaseError, match=message):
        release.load(copy)


def test_a_truncated_manifest_is_refused_and_listed_as_damaged(bundle: release.Release, tmp_path: Path) -> None:
    home = tmp_path / "home"
    copy = shutil.copytree(bundle.path, home / "releases" / "tiny" / bundle.id)
    assert [(e["id"], e["experiment"], e["status"], e["cut"]) for e in release.list_releases(home)] == [
        (bundle.id, "tiny", "challenger", "2013-02-22T21:00:00Z")
    ]
    (copy / "manifest.json").write_text((copy / "manifest.json").read_text()[:200])
    assert [e["status"] for e in release.list_releases(home)] == ["damaged"]
    with pytest.raises(ReleaseError, match="is not JSON"):
        release.load(copy)


def test_find_takes_an_id_or_a_folder_and_names_the_nearest(bundle: release.Release) -> None:
    home = bundle.path.parents[2]
    assert release.find(home, bundle.id) == bundle.path
    assert release.find(home, str(bundle.path)) == bundle.path
    with pytest.raises(ReleaseError, match=f"unknown release .*did you mean '{bundle.id}'"):
        release.find(home, bundle.id[:-1])


class Liar:
    """A fitted model whose graphs say something else than its forecasts."""

    history = ()
    best_epoch = 0

    def __init__(self, truth: Fitted, graphs: Graphs) -> None:
        self._truth, self._graphs = truth, graphs
        self.forecast, self.save = truth.forecast, truth.save

    def to_onnx(self) -> Graphs:
        return self._graphs


def test_graphs_that_differ_from_the_model_never_become_a_release(built: Built, tmp_path: Path) -> None:
    zero = replace(built.fitted, coefficients=np.zeros(4))  # type: ignore[type-var]
    with pytest.raises(ReleaseError, match="random window: the graph differs from the model by up to"):
        built.release(tmp_path, Liar(built.fitted, zero.to_onnx()))
    assert list(tmp_path.iterdir()) == []


def test_a_step_graph_that_differs_from_the_window_graph_is_refused(built: Built, tmp_path: Path) -> None:
    zero = replace(built.fitted, coefficients=np.zeros(4))  # type: ignore[type-var]
    mixed = Graphs(step=zero.to_onnx().step, window=built.fitted.to_onnx().window)
    with pytest.raises(ReleaseError, match="step bar by bar: the graph differs"):
        built.release(tmp_path, Liar(built.fitted, mixed))


def test_a_graph_with_a_baked_in_batch_is_refused(built: Built, tmp_path: Path) -> None:
    graphs = built.fitted.to_onnx()
    model = onnx.load_model_from_string(graphs.step)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(PluginError, match=r"step graph: input features has shape \[1, 4\]; expected \['batch', 4\]"):
        built.release(tmp_path, Liar(built.fitted, replace(graphs, step=model.SerializeToString())))


def test_two_writers_of_one_release_both_get_it(built: Built, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from foxflow.release import bundle as bundles

    files = {"step.onnx": b"one", "config.toml": b"two"}
    for i in range(20):
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda _, i=i: bundles.write(tmp_path / str(i), files, {"a": 1}, cut="cut"), range(2)))
        assert done[0].path == done[1].path


@pytest.mark.parametrize("entry", [None, {"sha256": None}, "text"])
def test_a_manifest_that_says_no_hash_of_a_file_is_refused(
    bundle: release.Release, tmp_path: Path, entry: object
) -> None:
    copy = shutil.copytree(bundle.path, tmp_path / bundle.id)
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["step.onnx"] = entry
    path.write_text(json.dumps(manifest))
    with pytest.raises(ReleaseError, match=r"of step\.onnx; expected its sha256"):
        release.load(copy)
