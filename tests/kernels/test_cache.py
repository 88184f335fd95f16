"""The object cache: what it returns, what it distrusts, and what it does when it cannot work."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from sparta.kernels.codegen.cache import ObjectCache, default_cache


def _entry(directory: Path) -> Path:
    (entry,) = directory.glob("*.o")
    return entry


def test_round_trip_and_miss(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "kernels")
    assert cache.load("key") is None
    cache.store("key", b"code")
    assert cache.load("key") == b"code"
    assert cache.load("other key") is None
    assert ObjectCache(tmp_path / "kernels").load("key") == b"code"


def test_directory_is_private(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "kernels"
    ObjectCache(directory).store("key", b"code")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert _entry(directory).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"", b"short", bytes(32) + b"code"])
def test_damaged_entry_is_a_miss_and_is_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ObjectCache(tmp_path / "kernels")
    cache.store("key", b"code")
    _entry(tmp_path / "kernels").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert cache.load("key") is None
    assert "damaged or foreign" in caplog.text
    cache.store("key", b"code")
    assert cache.load("key") == b"code"


def test_entry_under_the_name_of_another_is_a_miss(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "kernels")
    cache.store("key", b"code")
    entry = _entry(tmp_path / "kernels")
    cache.store("other key", b"other code")
    (other,) = set((tmp_path / "kernels").glob("*.o")) - {entry}
    other.replace(entry)
    assert cache.load("key") is None


def test_entry_that_others_can_write_is_a_miss(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "kernels")
    cache.store("key", b"code")
    _entry(tmp_path / "kernels").chmod(0o666)
    assert cache.load("key") is None


def test_linked_entry_is_a_miss(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "kernels")
    cache.store("key", b"code")
    entry = _entry(tmp_path / "kernels")
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    assert cache.load("key") is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="the platform has no user ids")
def test_entry_of_another_user_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ObjectCache(tmp_path / "kernels")
    cache.store("key", b"code")
    monkeypatch.setattr(os, "getuid", lambda: -2)
    assert cache.load("key") is None


def test_oldest_entries_go_first(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "kernels", limit=3 * (32 + 100))
    for age, key in enumerate("abc"):
        cache.store(key, bytes(100))
        newest = max((tmp_path / "kernels").glob("*.o"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (age, age))
    assert cache.load("a") is not None  # used now, so "b" is the oldest
    cache.store("d", bytes(100))
    assert cache.load("b") is None
    assert all(cache.load(key) is not None for key in "acd")


def test_directory_open_to_others_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "kernels"
    directory.mkdir()
    directory.chmod(0o777)
    cache = ObjectCache(directory)
    assert cache.directory is None
    assert "open to others" in caplog.text
    cache.store("key", b"code")
    assert cache.load("key") is None
    assert not list(directory.iterdir())


def test_unusable_directory_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = ObjectCache(tmp_path / "file" / "kernels")
    cache.store("key", b"code")
    cache.store("key", b"code")
    assert cache.load("key") is None
    assert len(caplog.records) == 1


def test_directory_that_vanishes_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = ObjectCache(tmp_path / "kernels")
    (tmp_path / "kernels").rmdir()
    cache.store("key", b"code")
    cache.store("key", b"code")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be written" in caplog.text


def test_no_temporary_file_stays(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "kernels")
    for _ in range(3):
        cache.store("key", b"code")
    assert [path.suffix for path in (tmp_path / "kernels").iterdir()] == [".o"]


def test_environment_variable_moves_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARTA_CACHE_DIR", str(tmp_path / "mine"))
    assert default_cache.__wrapped__().directory == tmp_path / "mine"
