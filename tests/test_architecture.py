"""Arrows point one way: each room imports only the rooms above it in the architecture note."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src" / "rankprune"
# Lower numbers may not import higher ones.
LEVEL = {
    "_atomic": 0, "_openmp": 0, "topk": 0, "budget": 0, "schedules": 0, "_layers": 0, "rank": 0, "flops": 1,
    "_optimizer_state": 0, "_averaging": 0, "_sharding": 1, "_site": 1, "_registry": 1, "_summary": 1, "_clock": 1,
    "_growth": 2, "_group": 2, "_periodic": 3, "method": 3, "_discover": 3, "_optimizers": 3, "_gradients": 3, "_checkpoint": 3, "_attach": 4,
    "_hooks": 4, "methods": 4, "extras": 4, "sparsifier": 5, "oneshot": 5,
    "formats": 5, "engine": 5, "models": 5, "data": 6, "losses": 5,
    "recipes": 7, "training": 8, "integrations": 8, "report": 8, "paper": 9, "cli": 9, "__main__": 10,
}  # fmt: skip
# Names resolved at run time, so that methods can be found: not an arrow between rooms.
LAZY = {("_registry", "methods"), ("_registry", "extras")}


def imports(path: Path) -> set[str]:
    """The rooms a file imports, whether by absolute or relative name, at the top or inside a function."""
    package = ("rankprune", *path.relative_to(ROOT).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            names = [(*module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            continue
        found |= {name[1] for name in names if name[0] == "rankprune" and len(name) > 1}
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_up(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    typing_only = {"method"} if room == "_group" else set()  # Group's annotation of its method
    for other in imports(path) - typing_only:
        if other in LEVEL and other != room and (room, other) not in LAZY:
            assert LEVEL[other] <= LEVEL[room], f"{room} imports {other}"


def test_every_room_is_in_the_table() -> None:
    rooms = {p.relative_to(ROOT).parts[0].removesuffix(".py") for p in ROOT.rglob("*.py")}
    assert rooms - {"__init__"} <= set(LEVEL)


def test_files_are_short() -> None:
    long = {str(p.relative_to(ROOT)): n for p in ROOT.rglob("*.py") if (n := len(p.read_text().splitlines())) > 350}
    assert long == {}


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, rankprune; dir(rankprune); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT.parent), "PATH": ""})


def test_the_core_needs_torch_numpy_and_safetensors_alone() -> None:
    """Import and use every core room with all other third-party packages hidden."""
    code = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {'torchvision', 'timm', 'yaml', 'pydantic', 'rich', 'scipy', 'tensorboard'}:
            raise ImportError(name + ' is hidden')
sys.meta_path.insert(0, Hide())
import torch, rankprune as rp
net = torch.nn.Linear(20, 10)
sp = rp.attach(net, torch.optim.SGD(net.parameters(), 0.1), 'rpg', sparsity=0.5, total_steps=4, every=1, rank_layers='all')
for _ in range(4):
    net(torch.randn(3, 20)).sum().backward(); sp.optimizers[0].step()
print(sp.finalize().kept, rp.rank.exact_rank(net.weight), rp.flops.count(net, torch.zeros(1, 20)).dense, rp.list_methods())
"""
    env = {"PYTHONPATH": str(ROOT.parent), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    assert done.stdout.startswith("100 ")
