"""The shape of the repository: import arrows, packaging, import cost, size limits and docstrings."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LAYERS = {
    "tesa": {"tesa"},
    "propagation": {"propagation", "tesa"},
    "kernels": {"kernels", "tesa"},
    "sparta": {"sparta", "propagation", "kernels", "tesa"},
}
"""Top-level folder -> the folders it may import."""

HEAVY = ("numba", "llvmlite", "rich", "transformers", "typer", "sklearn", "torch._dynamo", "torch._inductor")
LONGEST_FUNCTION, LONGEST_FILE = 60, 400


def sources(*folders: str) -> list[Path]:
    """All Python files of some top-level folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def label(path: Path) -> str:
    """What a test about `path` is called."""
    return str(path.relative_to(ROOT))


def python(code: str, cwd: Path) -> str:
    """What `code` prints in a fresh interpreter that does not see an editable install of sparta."""
    hide = (
        "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in getattr(f, '__module__', '')]\n"
    )
    command = [sys.executable, "-c", hide + code]
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def imported(tree: ast.AST) -> Iterator[str]:
    """The full names that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "relative imports hide which layer is meant"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(name: str) -> str | None:
    """The top-level folder that the imported `name` lives in; None if it is not ours."""
    first, *rest = name.split(".")
    if first != "sparta":
        return None
    return rest[0] if rest and rest[0] in LAYERS else "sparta"


@pytest.mark.parametrize("path", sources(*LAYERS), ids=label)
def test_imports_follow_the_arrows(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    crossed = {name for name in imported(ast.parse(path.read_text())) if layer_of(name) not in {None, *LAYERS[layer]}}
    assert not crossed, f"{layer} may import only {sorted(LAYERS[layer])}"


@pytest.mark.parametrize("path", sources("tesa"), ids=label)
def test_tesa_needs_little(path: Path) -> None:
    names = {name.split(".")[0] for name in imported(ast.parse(path.read_text()))}
    assert names - sys.stdlib_module_names <= {"sparta", "numpy", "safetensors", "sympy", "torch"}


@pytest.mark.parametrize("statement", ["import tesa", "from kernels import table", "import propagation.rules"])
def test_lint_bans_bare_imports(statement: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", "sparta/example.py", "-"]
    result = subprocess.run(command, cwd=ROOT, input=f"{statement}\n", capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "TID251" in result.stdout


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check")], ids=" ".join)
def test_lint_is_clean(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "ruff", *arguments, "."]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("path", sources(*LAYERS, "tests", "examples", "benchmarks"), ids=label)
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    lengths = {node.name: _body_lines(node) for node in functions}
    assert not {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION}


def _body_lines(function: ast.FunctionDef) -> int:
    """Lines of a function without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", sources(*LAYERS), ids=label)
def test_public_names_are_documented(path: Path) -> None:
    tree = ast.parse(path.read_text())
    bare = [name for name, node in _public(tree, "") if ast.get_docstring(node) is None]
    assert not bare
    assert (ast.get_docstring(tree) or "").strip("."), "every module says in one line what it holds"


_Documented = ast.FunctionDef | ast.ClassDef


def _public(tree: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, _Documented]]:
    for node in tree.body:
        if isinstance(node, _Documented) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _public(node, f"{prefix}{node.name}.")


def test_importing_sparta_is_cheap() -> None:
    code = (
        "import time, torch\n"
        "before, start = set(sys.modules), time.perf_counter()\n"
        "import sparta\n"
        "seconds = time.perf_counter() - start\n"
        f"print(seconds, *sorted((set(sys.modules) - before) & set({HEAVY!r})))\n"
    )
    seconds, *heavy = python(code, ROOT).split()
    assert not heavy
    assert float(seconds) < 0.3


def test_a_clone_on_the_path_finds_its_folders() -> None:
    code = (
        "import sparta.tesa.attribute, sparta.propagation.stages, sparta.kernels.problem\n"
        "print(sparta.tesa.__file__, {'tesa', 'propagation', 'kernels'} & set(sys.modules))\n"
    )
    assert python(code, ROOT).split() == [str(ROOT / "tesa" / "__init__.py"), "set()"]


def configuration() -> dict[str, dict[str, dict[str, list[str]]]]:
    """The `tool` part of pyproject.toml."""
    tool: dict[str, dict[str, dict[str, list[str]]]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    return tool


def packages() -> set[str]:
    """The packages of the folders, as they are called once installed."""
    folders = (path.parent.relative_to(ROOT) for path in sources(*LAYERS) if path.name == "__init__.py")
    names = (".".join(folder.parts) for folder in folders)
    return {name if name.split(".")[0] == "sparta" else f"sparta.{name}" for name in names}


def test_every_package_is_declared() -> None:
    assert set(configuration()["setuptools"]["packages"]) == packages()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources, without network."""
    copy, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in LAYERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(target))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(copy)], check=True, capture_output=True)
    return next(target.glob("sparta-*.whl"))


def test_a_wheel_holds_every_source(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    installed = {
        label(path) if path.is_relative_to(ROOT / "sparta") else f"sparta/{label(path)}" for path in sources(*LAYERS)
    }
    assert installed <= held
    assert "sparta/py.typed" in held
    assert not {name for name in held if not name.startswith(("sparta/", "sparta-"))}


def test_an_installed_wheel_imports(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        f"sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "import sparta.tesa, sparta.kernels.problem, sparta.propagation.stages\n"
        "print(sparta.tesa.__file__)"
    )
    assert python(code, tmp_path).strip() == str(tmp_path / "site" / "sparta" / "tesa" / "__init__.py")


def test_the_environment_is_read_in_few_places() -> None:
    readers: dict[str, set[str]] = {}
    for path in sources(*LAYERS):
        for variable in re.findall(r"environ[^\n]*[\"'](SPARTA_[A-Z_]+)", path.read_text()):
            readers.setdefault(variable, set()).add(label(path))
    assert len(readers) <= 3
    assert all(len(files) == 1 for files in readers.values()), readers


def readme_commands() -> list[str]:
    """The lines of the README that a user of a fresh machine pastes."""
    return [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("python3 -m venv .venv")]


def test_the_readme_has_one_demo_and_one_test_command() -> None:
    commands = readme_commands()
    assert sum(command.endswith("sparta demo") for command in commands) == 1
    assert sum("-m pytest" in command for command in commands) == 1
    assert all("torch==2.13.0" in command for command in commands)


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("*/*.md")), ids=label)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", path.read_text())
    local = [target for target in targets if "://" not in target]
    assert not [target for target in local if not (path.parent / target).exists()]


@pytest.mark.parametrize("folder", LAYERS)
def test_every_folder_says_what_it_owns(folder: str) -> None:
    lines = (ROOT / folder / "README.md").read_text().splitlines()
    assert 0 < len(lines) <= 40
