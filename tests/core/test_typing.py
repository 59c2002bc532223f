"""Editors and type checkers see the public names with their signatures, and a misspelt one is an error."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

import rankprune as rp
from rankprune.core.keywords import of_plan

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
reveal_type(rp.methods.RPG)
reveal_type(rp.methods.RPG(lam=4.0, every=50).every)
reveal_type(rp.methods.EAST(every=50, cycles=3))
rp.atach
rp.methods.RPG(lamb=4.0)
rp.methods.RPG(every="often")
rp.methods.Magnitude(every=50)
"""
# The compilers inside torch take most of the time, and none of the types above comes from them.
CONFIGURATION = """
[mypy]
follow_imports = silent
ignore_missing_imports = true
[mypy-torch._dynamo.*,torch._inductor.*,torch._functorch.*,torch._export.*,torch.export.*,torch.fx.*,torch.distributed.*,torch.onnx.*,sympy.*]
follow_imports = skip
"""
SETTINGS = "lam: float | def (int) -> float | str | None", "every: int | None", "prune_end: int | float | str"


def test_mypy_sees_the_public_names(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(CODE)
    (tmp_path / "mypy.ini").write_text(CONFIGURATION)
    options = ["--config-file", "mypy.ini", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([sys.executable, "-m", "mypy", *options, "user.py"], cwd=tmp_path, capture_output=True,
                          text=True, env={"MYPYPATH": str(SRC), "PATH": ""}, check=False)  # fmt: skip
    lines = done.stdout.splitlines()
    revealed = [line.partition("Revealed type is ")[2] for line in lines if "Revealed type" in line]
    assert len(revealed) == 13
    assert not any(kind in ('"Any"', '"builtins.object"') for kind in revealed)
    assert "sparsity: float | None" in revealed[0].replace("Union[builtins.float, None]", "float | None")
    assert "total_steps: int" in revealed[0].replace("builtins.int", "int")
    assert revealed[6] == '"rankprune.methods.rpg.RPG"'
    plain = revealed[10].replace("builtins.", "").replace("lam: float | (def (int) -> float)", "lam: float | def (int) -> float")
    assert all(setting in plain for setting in SETTINGS), plain
    assert revealed[11].replace("builtins.", "") == '"int | None"'
    assert revealed[12] == '"rankprune.methods.east.EAST"'
    errors = [line for line in lines if ": error:" in line]
    assert len(errors) == 4
    assert 'has no attribute "atach"' in errors[0]
    assert 'Unexpected keyword argument "lamb" for "RPG"' in errors[1]
    assert 'Argument "every" to "RPG" has incompatible type "str"' in errors[2]
    assert 'Unexpected keyword argument "every" for "Magnitude"' in errors[3]


def declared(cls: type) -> dict[str, object]:
    """The keywords that a method declares for its plan, with their types."""
    names = [name for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, of_plan)]
    hints = get_type_hints(cls)
    return {name: hints[name] for name in names}


@pytest.mark.parametrize("name", rp.list_methods())
def test_a_method_declares_the_settings_of_its_plan(name: str) -> None:
    cls = rp.method_info(name).cls
    hints = get_type_hints(type(cls.plan))
    assert declared(cls) == {field.name: hints[field.name] for field in fields(cls.plan)}


def test_settings_of_the_plan_are_read_from_the_method() -> None:
    assert rp.methods.RPG(every=50).every == 50
    assert rp.methods.RigL().update_end == 0.75
    with pytest.raises(AttributeError):
        _ = rp.methods.RPG(plan=rp.plan.AtOnce()).every
