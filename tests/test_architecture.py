"""Arrows point one way: each room imports only the rooms above it in the architecture note."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src" / "rankprune"
# A room may import the rooms with a lower number, and itself. Rooms with the same number may not import each other.
LEVEL = {
    "_util": 0, "openmp": 0, "prunable": 0, "rank": 1, "core": 2, "flops": 3, "methods": 3, "extras": 3,
    "formats": 3, "engine.graph": 4, "engine.frontend": 5, "engine.backend": 5, "engine": 6, "integrations": 6,
    "lab.errors": 7, "lab.losses": 7, "lab.progress": 7, "lab.models": 7, "lab.data": 7, "lab.recipes": 8, "lab.distributed": 8,
    "lab.runs": 9, "lab.bench": 10, "lab.training": 10, "lab.sweep": 11, "lab.report": 11, "lab.paper": 12, "cli": 13,
    "__main__": 14,
}  # fmt: skip


def room_of(module: str) -> str:
    """Return the room of a module: the longest prefix of its name in the table."""
    parts = module.split(".")
    return next((".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in LEVEL), "")


def imported(path: Path) -> set[str]:
    """Return the modules a file imports, by absolute or relative name, at the top or inside a function."""
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
        found |= {".".join(name[1:]) for name in names if name[0] == "rankprune" and len(name) > 1}
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    if module == "__init__":
        return
    room = room_of(module)
    for name in imported(path):
        other = room_of(name)
        if other and other != room:
            assert LEVEL[other] < LEVEL[room], f"{module} imports {name}"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_underscore_modules_stay_in_their_room(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for name in imported(path):
        private = [part for part in name.split(".") if part.startswith("_") and not part.startswith("__")]
        if private and private[0] != "_util" and (ROOT / Path(*name.split(".")[:-1])).is_dir():
            assert room_of(name) == room_of(module), f"{module} imports {name}"


def test_modules_of_the_engine_do_not_import_each_other_in_circles() -> None:
    """Nor for type checkers alone: a file can be read after those it imports."""
    files = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in (ROOT / "engine").rglob("*.py")}
    left = {
        name: {found for full in imported(path) for found in (full, full.rpartition(".")[0]) if found in files} - {name}
        for name, path in files.items()
    }
    assert "engine.graph.graph" in left["engine.backend.lowering"]
    while ready := {name for name, needs in left.items() if not needs & set(left)}:
        for name in ready:
            del left[name]
    assert left == {}


def test_every_room_is_in_the_table() -> None:
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in ROOT.rglob("*.py")}
    assert {m for m in modules if not room_of(m)} <= {"__init__", "lab.__init__"}


def code_lines(source: str) -> int:
    """Return the number of lines that are neither blank nor part of a comment or docstring."""
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code)


def test_files_are_short() -> None:
    long = {str(p.relative_to(ROOT)): n for p in ROOT.rglob("*.py") if (n := code_lines(p.read_text())) > 280}
    assert long == {}


def test_what_a_line_of_code_is() -> None:
    assert code_lines('"""Two\n\nlines."""\n\nx = (1,  # one\n     2)\n\ndef f():\n    """No."""\n    # nor this\n    return x\n') == 4


def test_rpg_and_rigl_read_next_to_their_algorithms() -> None:
    """Without imports: 45 lines for RPG with its rank term, 12 for RigL."""
    for name, limit in (("rpg", 45), ("rigl", 12)):
        source = (ROOT / "methods" / f"{name}.py").read_text()
        imports = [node for node in ast.parse(source).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert code_lines(source) - sum((n.end_lineno or 0) - n.lineno + 1 for n in imports) <= limit


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, rankprune; dir(rankprune); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT.parent), "PATH": ""})


def test_the_core_does_not_import_the_compiler() -> None:
    """`torch._dynamo` takes as long to import as torch; it is needed only when an optimizer steps."""
    code = "import sys, rankprune as rp; rp.attach, rp.prune, rp.methods.RPG; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


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
