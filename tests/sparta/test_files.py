"""Saved models: exact after loading in another process, self-describing, and hostile files never get through."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

import sparta
from sparta.runtime.files import _digest

FORCE = {"measure": False}


def optimized(**arguments: Any) -> sparta.OptimizedModule:
    """A small optimized model with sparse kernels in it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 24)).eval()
    masks = {"0.weight": torch.rand(96, 64) < 0.1, "2.weight": (torch.rand(6, 96) < 0.2).repeat_interleave(4, 0)}
    return sparta.optimize(model, masks, example_inputs=(torch.randn(4, 64),), options=FORCE, **arguments)


def test_round_trip_is_exact(tmp_path: Path) -> None:
    fast = optimized()
    fast.save(tmp_path / "m.sparta")
    again = sparta.load(tmp_path / "m.sparta")
    x = torch.randn(17, 64)
    assert torch.equal(fast(x), again(x))
    assert again.report() == fast.report()
    assert again.state_dict().keys() == fast.state_dict().keys()


def test_loads_in_a_fresh_process(tmp_path: Path) -> None:
    fast = optimized()
    fast.save(tmp_path / "m.sparta")
    x = torch.randn(3, 64)
    torch.save(x, tmp_path / "x.pt")
    script = (
        "import torch, sparta; torch.set_num_threads(1); "
        f"y = sparta.load({str(tmp_path / 'm.sparta')!r})(torch.load({str(tmp_path / 'x.pt')!r})); "
        f"torch.save(y, {str(tmp_path / 'y.pt')!r})"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
    assert torch.equal(torch.load(tmp_path / "y.pt"), fast(x))


def test_a_file_holds_no_pickle(tmp_path: Path) -> None:
    optimized().save(tmp_path / "m.sparta")
    content = (tmp_path / "m.sparta").read_bytes()
    assert b"PK\x03\x04" not in content[:4096]
    assert b"torch._utils" not in content


def test_several_shapes_are_kept(tmp_path: Path) -> None:
    fast = optimized(dynamic_batch=False)
    x = torch.randn(7, 64)
    fast(x)
    fast.save(tmp_path / "m.sparta")
    again = sparta.load(tmp_path / "m.sparta")
    assert len(again.programs) == 2
    assert torch.equal(fast(x), again(x))


def test_shared_tensors_are_stored_once(tmp_path: Path) -> None:
    fast = optimized(dynamic_batch=False)
    fast.save(tmp_path / "one.sparta")
    fast(torch.randn(7, 64))
    fast.save(tmp_path / "two.sparta")
    with safetensors.safe_open(tmp_path / "two.sparta", "pt") as file:
        names = [name for name in file.keys() if name.endswith("bias")]  # noqa: SIM118
    assert len(names) == len({name.partition("#")[0] for name in names})


def test_other_shapes_are_refused_after_loading(tmp_path: Path) -> None:
    optimized(dynamic_batch=False).save(tmp_path / "m.sparta")
    with pytest.raises(sparta.SpartaError, match=r"not compiled for inputs .*accepts \(4, 64\)"):
        sparta.load(tmp_path / "m.sparta")(torch.randn(5, 64))


def test_nothing_compiled_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(sparta.SpartaError, match="nothing is compiled"):
        sparta.optimize(nn.Linear(2, 2)).save(tmp_path / "m.sparta")
    assert not list(tmp_path.iterdir())


def test_keyword_arguments_and_structures_survive(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor, y: Tensor | None = None, *, scale: float = 2.0) -> dict[str, Any]:
            z = self.fc(x) * scale
            return {"z": z, "pair": (z if y is None else z + y, [z.sum()])}

    fast = sparta.optimize(Net(), None, (torch.randn(2, 4),), {"scale": 3.0}, options=FORCE)
    fast.save(tmp_path / "m.sparta")
    again = sparta.load(tmp_path / "m.sparta")
    x = torch.randn(2, 4)
    want, got = fast(x, scale=3.0), again(x, scale=3.0)
    assert want.keys() == got.keys()
    assert torch.equal(want["pair"][1][0], got["pair"][1][0])
    with pytest.raises(sparta.InputError):
        again(x, scales=3.0)


Change = Callable[[dict[str, Any], dict[str, Tensor]], None]


def _node(content: dict[str, Any], op: str) -> dict[str, Any]:
    return next(node for node in content["programs"][0]["graph"] if node["op"] == op)


def _target(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    _node(content, "call_function")["target"] = "os.system"


def _from_file(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    _node(content, "call_function")["target"] = "aten.from_file.default"


def _indices(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    name = next(name for name in tensors if name.endswith("col_indices"))
    tensors[name] = tensors[name] + 10_000


def _pointers(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    name = next(name for name in tensors if name.endswith("crow_indices"))
    tensors[name] = tensors[name].flip(0).contiguous()


def _values(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    name = next(name for name in tensors if name.endswith("values"))
    tensors[name] = tensors[name][:1].contiguous()


def _kernel(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    node = next(n for n in content["programs"][0]["graph"] if str(n["target"]).startswith("sparta."))
    plan = json.loads(node["args"]["tuple"][4])
    node["args"]["tuple"][4] = json.dumps({**plan, "kernels": {"2": "os.system"}})


def _shape(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    node = next(n for n in content["programs"][0]["graph"] if str(n["target"]).startswith("sparta."))
    plan = json.loads(node["args"]["tuple"][4])
    plan["problem"]["in_features"] = 2**40
    node["args"]["tuple"][4] = json.dumps(plan)


def _structure(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    content["programs"][0]["out_spec"] = content["programs"][0]["out_spec"].replace("null", '"os.system"', 1)


def _version(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    content["format_version"] = 99


def _missing(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    del content["programs"][0]["graph"]


def _leaves(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    content["programs"][0]["leaves"] = []


@pytest.mark.parametrize(
    "change",
    [_target, _from_file, _indices, _pointers, _values, _kernel, _shape, _structure, _version, _missing, _leaves],
)
def test_hostile_files_are_refused(tmp_path: Path, change: Change) -> None:
    """The attacker knows the format and signs the file with a right digest."""
    path = tmp_path / "m.sparta"
    optimized().save(path)
    with safetensors.safe_open(path, "pt") as file:
        content = json.loads(file.metadata()["sparta"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(content, tensors)
    content.pop("digest", None)
    content["digest"] = _digest(content, tensors)
    safetensors.torch.save_file(tensors, path, metadata={"sparta": json.dumps(content)})
    with pytest.raises(sparta.FormatError):
        sparta.load(path)


@pytest.mark.parametrize("position", [0, 8, 200, -3])
def test_damaged_bytes_are_refused(tmp_path: Path, position: int) -> None:
    path = tmp_path / "m.sparta"
    optimized().save(path)
    content = bytearray(path.read_bytes())
    content[position] ^= 0x55
    path.write_bytes(content)
    with pytest.raises(sparta.FormatError):
        sparta.load(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 64, b"\xff" * 64])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.sparta").write_bytes(content)
    with pytest.raises(sparta.FormatError, match="not a sparta model"):
        sparta.load(tmp_path / "m.sparta")
