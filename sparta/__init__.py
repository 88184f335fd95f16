"""sparta: a compiler for sparse PyTorch models."""

from pathlib import Path as _Path

_root = _Path(__file__).resolve().parent.parent
if (_root / "tesa").is_dir() and (_root / "pyproject.toml").is_file():
    # A checkout on sys.path would hide the installed subpackages; the mapping of pyproject.toml, by hand.
    __path__.append(str(_root))
