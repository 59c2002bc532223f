"""Every example runs as its docstring says, in a process of its own, and prints what it promises."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# What must be in the output, beside an exit code of 0.
PROMISES = {
    "plain_loop": r"all prunable weights +58,664 +1,173,280 +95\.0000 %[\s\S]*file: \d[\s\S]*weights [\d.]+ MB -> ",
    "lightning_fit": r"step 92: [\s\S]*step 184: [\s\S]*sparsity 95\.00%[\s\S]*58,664 +1,173,280",
    "hugging_face": r"'sparsity'[\s\S]*accuracy [\d.]+%[\s\S]*80\.0\d\d\d %",
    "torchrun": r"58,664 +1,173,280[\s\S]*masks on 2 ranks: (\w{16}), \1\n",
    "distillation": r"(seed \d: teacher .*\n){3}gain by distillation: \+[\d.]+ points, least \+",  # it wins on every seed
    "prune_my_checkpoint": r"pruned to 95\.00%[\s\S]*bytes before, [\d,]+ after",
    "macs_budget": r"budget in weights: 30\.00% of the weights, [\s\S]*budget in macs: [\d.]+% of the weights, (30\.00|29\.99)% of the MACs",
}
NEEDS = {"lightning_fit": "lightning", "hugging_face": "transformers"}


def test_each_example_is_tested_and_listed() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == set(PROMISES)
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"({name}.py)" in listed for name in names)
    assert all(f"({path.name})" in listed for path in EXAMPLES.glob("*.ipynb"))


# What a cell of the notebook must print, beside running through.
NOTEBOOK = (r"accuracy: dense [\d.]+%, 98 % sparse [\d.]+%", r"bytes dense, [\d,]+ bytes sparse: [\d.]+%", r"weights [\d.]+ MB -> ", r"report\.html")


@pytest.mark.long
def test_the_notebook_runs(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / "own_model.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")  # stored without outputs
    nbclient.NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(out.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs)
    assert all(re.search(promise, printed) for promise in NOTEBOOK), printed
    assert (tmp_path / "report.html").stat().st_size > 1_000_000


@pytest.mark.long
@pytest.mark.parametrize("name", PROMISES)
def test_it_runs(name: str, tmp_path: Path) -> None:
    needed = NEEDS.get(name)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    path = EXAMPLES / f"{name}.py"
    command = re.search(r"^ {4}(python|torchrun) (.*)$", path.read_text(), re.MULTILINE)
    assert command, "the docstring says how to run it"
    options = re.findall(r"--\S+ \d+", command[2])
    launcher = [] if command[1] == "python" else ["-m", "torch.distributed.run", *" ".join(options).split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launcher, str(path)], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(PROMISES[name], done.stdout), done.stdout
    assert list(tmp_path.iterdir()) == []  # it leaves nothing behind
