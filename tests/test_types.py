"""The whole package passes mypy --strict, through a link tree: static tools do not follow setuptools' package-dir."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAPPED = ("tesa", "propagation", "kernels")


def link_tree(folder: Path) -> Path:
    """`folder`, holding a package `sparta` laid out as the installed one is."""
    package = folder / "sparta"
    package.mkdir()
    for entry in (ROOT / "sparta").iterdir():
        (package / entry.name).symlink_to(entry)
    for name in MAPPED:
        (package / name).symlink_to(ROOT / name)
    return folder


def mypy(folder: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """The result of checking the package `sparta` in `folder` with the repository's configuration."""
    arguments = ("--config-file", ROOT / "pyproject.toml", "--cache-dir", cache, "-p", "sparta")
    command = [sys.executable, "-m", "mypy", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_package_is_typed_strictly(tmp_path: Path) -> None:
    result = mypy(link_tree(tmp_path), ROOT / ".mypy_cache")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_the_check_sees_the_mapped_folders(tmp_path: Path) -> None:
    tree = link_tree(tmp_path)
    kernels = tree / "sparta" / "kernels"
    kernels.unlink()
    kernels.mkdir()
    (kernels / "__init__.py").write_text("def untyped(x):\n    return x\n")
    result = mypy(tree, tmp_path / "cache")
    assert "sparta/kernels/__init__.py:1: error: Function is missing a type annotation" in result.stdout
