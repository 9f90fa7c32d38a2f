"""Entries of the cache: whole or not there, never read when damaged, gone when nobody uses them."""

import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foxflow import cache
from foxflow.errors import DataError

FILES = {"facts.json": b"{}", "model/checkpoint.safetensors": bytes(range(256)), "empty": b""}


def test_an_entry_is_read_as_it_was_written_and_replaces_the_one_before(tmp_path: Path) -> None:
    assert cache.read(tmp_path / "none", "key") is None
    cache.write(tmp_path, "key", {"other": b"1"})
    cache.write(tmp_path, "key", FILES)
    assert cache.read(tmp_path, "key") == FILES
    assert cache.read(tmp_path, "other") is None
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


@given(st.sampled_from([*FILES, cache.MANIFEST]), st.integers(0, 255), st.integers(0, 7), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_file_with_one_bit_flipped_or_cut_short_is_never_used(name: str, byte: int, bit: int, cut: bool) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        cache.write(Path(folder), "key", FILES)
        path = Path(folder, "key", name)
        content = bytearray(path.read_bytes())
        if not content:
            content = bytearray(b"x")
        elif cut:
            content = content[: byte % len(content)]
        else:
            content[byte % len(content)] ^= 1 << bit
        path.write_bytes(content)
        try:
            found = cache.read(Path(folder), "key")
        except DataError:
            return
        # White space of the manifest means nothing.
        assert name == cache.MANIFEST
        assert found == FILES


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    cache.write(tmp_path, "key", FILES)
    (tmp_path / "key" / "empty").unlink()
    with pytest.raises(DataError, match="is damaged"):
        cache.read(tmp_path, "key")


def test_readers_meet_whole_entries_while_others_write_and_remove_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = time.monotonic() + 2
    found: list[object] = []
    failed: list[BaseException] = []

    def repeat(what: object) -> None:
        try:
            while time.monotonic() < stop:
                found.append(what())  # type: ignore[operator]
        except BaseException as e:  # noqa: BLE001
            failed.append(e)

    works = [
        lambda: cache.read(tmp_path, "key"),
        *[lambda: cache.write(tmp_path, "key", FILES)] * 2,
        lambda: cache.forget(tmp_path),
    ]
    # Nothing is so new that it is not removed.
    monkeypatch.setattr(cache, "KEPT_DAYS", -1)
    threads = [threading.Thread(target=repeat, args=(w,)) for w in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert all(f in (None, FILES) for f in found)
    assert FILES in found


def test_what_nobody_used_for_30_days_is_removed_and_the_longest_unused_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    for name, days in (("a", 31), ("b", 29), ("c", 2), ("d", 1)):
        cache.write(tmp_path, name, {"file": bytes(1000)})
        os.utime(tmp_path / name, (now - days * 86_400,) * 2)
    cache.forget(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "c", "d"]
    # Reading is using.
    assert cache.read(tmp_path, "b") is not None
    monkeypatch.setattr(cache, "MOST_BYTES", 2_500)
    cache.forget(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "d"]
