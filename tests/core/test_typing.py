"""Editors and type checkers see the public names with their signatures, and a misspelt one is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
CODE = """
import rankprune as rp
reveal_type(rp.attach)
reveal_type(rp.prune)
reveal_type(rp.compile)
reveal_type(rp.save)
reveal_type(rp.load)
reveal_type(rp.Sparsifier.finalize)
reveal_type(rp.methods.RPG(lam=4.0, plan=rp.plan.Gradual(every=100)))
reveal_type(rp.methods.RigL)
reveal_type(rp.rank.exact_rank)
reveal_type(rp.list_methods)
rp.atach
rp.methods.RPG(lamb=4.0)
"""


def test_mypy_sees_the_public_names(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(CODE)
    options = ["--follow-imports=silent", "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([sys.executable, "-m", "mypy", *options, "user.py"], cwd=tmp_path, capture_output=True,
                          text=True, env={"MYPYPATH": str(SRC), "PATH": ""}, check=False)  # fmt: skip
    lines = done.stdout.splitlines()
    revealed = [line.partition("Revealed type is ")[2] for line in lines if "Revealed type" in line]
    assert len(revealed) == 10
    assert not any(kind in ('"Any"', '"builtins.object"') for kind in revealed)
    assert "sparsity: float | None" in revealed[0].replace("Union[builtins.float, None]", "float | None")
    assert "total_steps: int" in revealed[0].replace("builtins.int", "int")
    assert revealed[6] == '"rankprune.methods.rpg.RPG"'
    errors = [line for line in lines if ": error:" in line]
    assert len(errors) == 2
    assert 'has no attribute "atach"' in errors[0]
    assert 'Unexpected keyword argument "lamb" for "RPG"' in errors[1]
