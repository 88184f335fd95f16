"""The disk cache of object files: private to the user, checked before use, bounded, and optional."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

_log = logging.getLogger("sparta.kernels.cache")

_VERSION = importlib.metadata.version("sparta")
"""Part of every key: another version may lay out entries, or call the code in them, differently."""
_DIGEST_BYTES = hashlib.sha256().digest_size
_LIMIT = 256 * 2**20


class ObjectCache:
    """Object files by the text they were compiled from.

    Code read from disk runs with the rights of the user, so an entry counts only if the directory is closed to others,
    the file belongs to the user, and its content has the digest it was written with. Anything else is a miss, and is
    overwritten. A directory that cannot be used turns the cache off: said once, in the log.

    Parameters
    ----------
    directory
        Where entries live; made with mode 0700 if missing. None: nothing is cached.
    limit
        Bytes to keep; the entries used longest ago go first.
    """

    def __init__(self, directory: Path | None, limit: int = _LIMIT) -> None:
        self._directory = directory if directory and _usable(directory) else None
        self._limit = limit

    @property
    def directory(self) -> Path | None:
        """Where entries live; None when the cache is off."""
        return self._directory

    def load(self, key: str) -> bytes | None:
        """The object file stored under `key`, or None."""
        if self._directory is None:
            return None
        path = self._path(self._directory, key)
        try:
            content = path.read_bytes() if _owned(path) else b""
        except OSError:
            return None
        digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if _digest(key, code) != digest:
            _log.warning("ignoring a damaged or foreign entry of the kernel cache: %s", path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return code

    def store(self, key: str, code: bytes) -> None:
        """Keep an object file, and drop the oldest ones above the limit."""
        if self._directory is None:
            return
        try:
            self._write(self._path(self._directory, key), _digest(key, code) + code)
            self._evict(self._directory)
        except OSError as error:
            _log.warning("the kernel cache is off from now on, %s cannot be written: %s", self._directory, error)
            self._directory = None

    @staticmethod
    def _path(directory: Path, key: str) -> Path:
        return directory / (hashlib.sha256(f"{_VERSION}\n{key}".encode()).hexdigest() + ".o")

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        # A reader sees the whole old entry or the whole new one, whoever else writes it at the same time.
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise

    def _evict(self, directory: Path) -> None:
        entries = sorted(_existing(directory), key=lambda item: item[0].st_mtime)
        excess = sum(status.st_size for status, _ in entries) - self._limit
        for status, entry in entries:
            if excess <= 0:
                return
            entry.unlink(missing_ok=True)
            excess -= status.st_size


def _digest(key: str, code: bytes) -> bytes:
    return hashlib.sha256(key.encode() + code).digest()


def _existing(directory: Path) -> Iterator[tuple[os.stat_result, Path]]:
    """The entries, without those that another process removes meanwhile."""
    for entry in directory.glob("*.o"):
        with contextlib.suppress(FileNotFoundError):
            yield entry.stat(), entry


def _owned(path: Path) -> bool:
    """Whether the user alone can have written it (Windows keeps its own per-user directory)."""
    if not hasattr(os, "getuid"):
        return True
    status = path.lstat()
    return status.st_uid == os.getuid() and not stat.S_ISLNK(status.st_mode) and not status.st_mode & 0o022


def _usable(directory: Path) -> bool:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _owned(directory):
            _log.warning("the kernel cache is off: %s belongs to another user or is open to others", directory)
            return False
        directory.chmod(0o700)
    except OSError as error:
        _log.warning("the kernel cache is off: %s", error)
        return False
    return True


@functools.cache
def default_cache() -> ObjectCache:
    """The cache of this user: ``SPARTA_CACHE_DIR`` if set, else the platform's cache directory."""
    override = os.environ.get("SPARTA_CACHE_DIR")
    return ObjectCache(Path(override) if override else platformdirs.user_cache_path("sparta") / "kernels")
