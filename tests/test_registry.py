import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from foxflow import registry
from foxflow.errors import ConfigError, PluginError, plugin_call


def test_installed_models_are_found_by_entry_point() -> None:
    assert {"mamba2", "ridge"} <= set(registry.installed())


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(PluginError, match=r"unknown model 'rigde'; known: .*ridge.*; did you mean 'ridge'"):
        registry.load("rigde")


def test_a_models_options_are_checked_against_its_own_parameters() -> None:
    with pytest.raises(ConfigError, match=r"\[model\] unknown key 'penelty'; known: penalty; did you mean 'penalty'"):
        registry.build("ridge", {"penelty": 1.0})
    with pytest.raises(ConfigError, match=r"\[model\] penalty = -1.0; expected 0 or more"):
        registry.build("ridge", {"penalty": -1.0})


def test_a_name_claimed_twice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = [EntryPoint("ridge", f"somewhere{i}:Ridge", registry.GROUP) for i in range(2)]
    monkeypatch.setattr(registry, "entry_points", lambda **_: twice)
    with pytest.raises(PluginError, match="model 'ridge' is claimed by two distributions"):
        registry.installed()


def test_a_plugin_that_cannot_be_imported_says_from_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda **_: [EntryPoint("gone", "no_such_module:X", registry.GROUP)])
    with pytest.raises(PluginError, match="model 'gone' failed in the import of no_such_module:X"):
        registry.load("gone")


def test_listing_models_imports_none_of_them() -> None:
    code = "import sys; from foxflow import registry; registry.installed(); print([m for m in sys.modules if 'ridge' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_a_plugin_raises_is_one_line_with_its_name_and_words() -> None:
    with (
        pytest.raises(
            PluginError, match="model 'mine' failed in the fit of fold 3: RuntimeError: no room; mend the plugin"
        ),
        plugin_call("mine", "the fit of fold 3"),
    ):
        raise RuntimeError("no\n  room")
    with pytest.raises(ConfigError, match="as it is"), plugin_call("mine", "fit"):
        raise ConfigError("as it is")


def test_a_torch_plugin_gives_its_options_without_torch() -> None:
    code = (
        "import sys; from foxflow import registry; model = registry.build('mamba2', {'warmup_bars': 80}); "
        "print(model.warmup_bars, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["80", "False"]
