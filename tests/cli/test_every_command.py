"""Every command with good, missing, wrongly typed, corrupt and unwritable input: exit code, one sentence, no traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from _runs import run, small
from rankprune.cli import build_parser, main

NET = """
from torch import nn
def make(num_classes=10):
    return nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, num_classes))
def raises():
    raise RuntimeError("no luck")
def number():
    return 3
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(6, 8)
    def forward(self, first, second):
        return self.first(first) + self.second(second)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, a corrupt one, weights, corrupt weights, a model of one's own, and a file in the way."""
    folder = tmp_path_factory.mktemp("place")
    done = run(small("fashion-magnitude-90", "epochs=1"), folder / "runs").folder
    done.rename(folder / "runs" / "good")
    shutil.copytree(folder / "runs" / "good", folder / "bad" / "run")
    (folder / "bad" / "run" / "result.json").write_text('{"kept": ')
    (folder / "bad" / "run" / "model.sparse.safetensors").write_bytes(b"not a model")
    (folder / "net.py").write_text(NET)
    (folder / "broken.py").write_text("def make(:\n")
    namespace: dict[str, object] = {}
    exec(NET, namespace)
    torch.save(namespace["make"]().state_dict(), folder / "own.pth")  # type: ignore[operator]
    torch.save(namespace["Pair"]().state_dict(), folder / "pair.pth")  # type: ignore[operator]
    (folder / "corrupt.pth").write_bytes(b"\x80\x02}q\x00X")
    (folder / "corrupt.yaml").write_text("a: [1\n")
    (folder / "sweep.yaml").write_text("recipes: [fashion-dense]\noverrides: [epochs=1, data.limit_train=32, data.limit_test=50, data.batch_size=16]\n")
    (folder / "file").write_text("in the way")
    results = folder / "results"
    results.mkdir()
    (results / "queue.yaml").write_text("stages:\n  - {name: a, task: fashion, methods: [dense]}\n")
    broken = folder / "broken_results"
    (broken / "records").mkdir(parents=True)
    (broken / "queue.yaml").write_text("stages: 3\n")
    return folder


TINY = "epochs=1 data.limit_train=32 data.limit_test=50 data.batch_size=16"
# (command line, exit code, words of the sentence; for code 0 words of the output)
CASES = [
    ("demo", "demo --help", 0, "99.5 %"),
    ("demo", "demo --out", 2, "--out"),
    ("demo", "demo --smoke=3", 2, "--smoke"),
    ("demo", "demo --out file/x", 2, "is a file"),
    ("demo", "demo --out /proc/nowhere", 2, "cannot be written"),
    ("demo", "demo fashion", 2, "no argument fashion"),
    ("train", f"train fashion-dense {TINY} --out out", 0, "is finished"),
    ("train", f"train {TINY} --out out fashion-dense", 0, "was finished before"),
    ("train", "train absent.yaml", 2, "absent.yaml"),
    ("train", "train", 2, "it needs RECIPE"),
    ("train", "train fashion-dense epochs=many", 2, "epochs"),
    ("train", "train corrupt.yaml", 2, "corrupt.yaml"),
    ("train", "train fashion-dense --model broken.py:make", 2, "cannot be imported"),
    ("train", "train fashion-dense --model absent.py:make", 2, "no file absent.py"),
    ("train", "train fashion-dense --model net.py:mak", 2, "did you mean 'make'?"),
    ("train", "train fashion-dense model.name=net.py:other", 2, "--model net.py:other"),
    ("train", "train fashion-dense --model net.py:raises", 2, "net.py:raises raised RuntimeError: no luck"),
    ("train", "train fashion-dense --model net.py:number", 2, "net.py:number returned 'int'"),
    ("train", "train net.py:make", 2, "name a recipe and write --model net.py:make"),
    # What it prints as the next command, and what that and others need to open the run.
    ("train", f"train fashion-dense {TINY} --model net.py:make --out own", 0, "--model net.py:make"),
    ("compare", "compare own --latency --model net.py:make", 0, "ms engine"),
    ("figures", "figures own --model net.py:make --out drawn", 0, "layers.png"),
    ("train", "train cifar10-cpu-vgg-gmp-90", 2, "data.download"),
    ("train", f"train fashion-dense {TINY} --out file", 2, "is a file"),
    ("train", f"train fashion-dense {TINY} --out /proc/nowhere", 2, "cannot be written"),
    ("sweep", "sweep sweep.yaml --out out", 0, "fashion-dense"),
    ("sweep", "sweep absent.yaml", 2, "absent.yaml"),
    ("sweep", "sweep sweep.yaml --jobs few", 2, "--jobs"),
    ("sweep", "sweep sweep.yaml --jobs 0", 2, "jobs=0"),
    ("sweep", "sweep corrupt.yaml", 2, "corrupt.yaml"),
    ("sweep", "sweep sweep.yaml --out file", 2, "is a file"),
    ("compare", "compare runs", 0, "fashion-magnitude-90"),
    ("compare", "compare absent", 2, "absent"),
    ("compare", "compare", 2, "it needs RUN"),
    ("compare", "compare runs --latency=3", 2, "--latency"),
    ("compare", "compare bad/run", 1, "result.json is damaged"),
    ("report", "report runs --out page.html", 0, "page.html"),
    ("report", "report absent", 2, "absent"),
    ("report", "report runs --engine=3", 2, "--engine"),
    ("report", "report bad/run --out page.html", 1, "result.json is damaged"),
    ("report", "report runs --out file/page.html", 2, "--out file/page.html"),
    ("report", "report runs --out /proc/page.html", 2, "cannot be written"),
    ("watch", "watch --help", 0, "updates itself"),
    ("watch", "watch absent", 2, "absent"),
    ("watch", "watch runs --port many", 2, "--port"),
    ("watch", "watch runs --host 0.0.0.0", 2, "not a loopback address"),
    ("watch", "watch bad/run --port 0", 1, "result.json is damaged"),
    ("figures", "figures runs --out drawn", 0, "drawn"),
    ("figures", "figures absent", 2, "absent"),
    ("figures", "figures runs --out", 2, "--out"),
    ("figures", "figures bad/run --out drawn", 1, "result.json is damaged"),
    ("figures", "figures runs --out file", 2, "is a file"),
    ("prune", "prune own.pth --model net.py:make --sparsity 0.5 --out p.safetensors", 0, "saved p.safetensors"),
    ("prune", "prune absent.pth --model net.py:make --sparsity 0.5 --out p.safetensors", 2, "absent.pth"),
    ("prune", "prune own.pth --model net.py:make --sparsity half --out p.safetensors", 2, "--sparsity"),
    ("prune", "prune own.pth --model net.py:make --sparsity 2 --out p.safetensors", 2, "sparsity"),
    ("prune", "prune own.pth --model net.py:make --sparsity 0.5 --method woodfisher --out p.safetensors", 2, "training data"),
    ("prune", "prune own.pth --sparsity 0.5 --out p.safetensors", 2, "add --model"),
    ("prune", "prune corrupt.pth --model net.py:make --sparsity 0.5 --out p.safetensors", 2, "corrupt.pth"),
    ("prune", "prune own.pth --model net.py:make --sparsity 0.5 --out file/p.safetensors", 2, "--out"),
    ("prune", "prune own.pth --model net.py:make --sparsity 0.5 --out /proc/p.safetensors", 2, "cannot be written"),
    ("analyze", "analyze own.pth --model net.py:make --image-size 14", 0, "sparsity"),
    ("analyze", "analyze pair.pth --model net.py:Pair", 0, "MACs are not counted"),
    ("analyze", "analyze absent", 2, "absent"),
    ("analyze", "analyze own.pth --model net.py:make --delta 2", 2, "delta=2"),
    ("analyze", "analyze own.pth --model net.py:make --delta small", 2, "--delta"),
    ("analyze", "analyze corrupt.pth --model net.py:make", 2, "corrupt.pth"),
    ("bench", "bench runs/good --against torch --threads 1", 0, "rankprune"),
    ("bench", "bench net.py:make --image-size 14 --against torch --threads 1", 0, "rankprune"),
    ("bench", "bench absent.pth", 2, "absent.pth"),
    ("bench", "bench runs/good --batch two", 2, "--batch"),
    ("bench", "bench net.py", 2, "net.py:Net"),
    ("bench", "bench pair.pth --model net.py:Pair --threads 1", 2, "rankprune.compile"),
    ("bench", "bench bad/run", 2, "model.sparse.safetensors"),
    ("bench", "bench vgg-small --image-size 3 --against torch --threads 1", 2, "does not accept an input of (1, 3, 3, 3)"),
    ("paper", "paper list --results results", 0, "what ran"),
    ("paper", "paper nothing --results results", 2, "'nothing'"),
    ("paper", "paper run --for ever --results results", 2, "--for"),
    ("paper", "paper run --jobs many --results results", 2, "--jobs"),
    ("paper", "paper list --results broken_results", 2, "queue.yaml"),
    ("paper", "paper run --results absent", 2, "queue"),
    ("paper", "paper run --results results --out file/x", 2, "is a file"),
    ("export", "export runs/good --to sparse --out e.safetensors --threads 1", 0, "wrote e.safetensors"),
    ("export", "export absent --to onnx", 2, "absent"),
    ("export", "export runs/good --to paper", 2, "--to"),
    ("export", "export bad/run --to sparse --out e.safetensors", 2, "model.sparse.safetensors"),
    ("export", "export runs/good --to sparse --threads one", 2, "--threads"),
    ("export", "export runs/good --to sparse --out /proc/e.safetensors", 2, "cannot be written"),
    ("export", "export runs/good --to sparse --out file/e.safetensors", 2, "--out"),
    ("recipes", "recipes fashion-rpg-98", 0, "fashion-rpg-98"),
    ("recipes", "recipes", 0, "TASK-METHOD-SPARSITY"),
    ("recipes", "recipes feather", 2, "did you mean the pattern '*feather*'?"),
    ("recipes", "recipes --all", 2, "--all"),
    ("recipes", "recipes nothing", 2, "'nothing'"),
    ("models", "models vgg-small", 0, "vgg-small"),
    ("models", "models nothing-at-all", 2, "'nothing-at-all'"),
    ("models", "models vgg", 2, "did you mean the pattern '*vgg*'?"),
    ("models", "models --all", 2, "--all"),
    ("methods", "methods rpg", 0, "rpg"),
    ("methods", "methods nothing", 2, "'nothing'"),
    ("methods", "methods --all", 2, "--all"),
    ("doctor", "doctor", 0, "torch"),
    ("doctor", "doctor --verbose", 2, "--verbose"),
    ("completion", "completion bash", 0, "fashion-rpg-98"),
    ("completion", "completion tcsh", 2, "shell"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "words"), [case[1:] for case in CASES], ids=[case[1] for case in CASES])
def test_every_command(
    line: str, code: int, words: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert main(line.split()) == code, capfd.readouterr().err
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    if code == 0:
        assert words in out
        return
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("rankprune")
    assert last.endswith((".", "?"))
    assert words in last
    progress = ("rankprune: 1 of ", "rankprune: 2 of ", "rankprune: reading", "rankprune: skipped", "rankprune: warning: ")
    assert [text for text in err.splitlines()[:-1] if not text.startswith(progress)] == []


def test_the_table_has_every_command() -> None:
    commands = next(action.choices for action in build_parser()._actions if isinstance(action.choices, dict))
    assert {command for command, *_ in CASES} == set(commands)


def test_one_damaged_result_among_many_is_named_and_skipped(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    (place / "many").mkdir()
    shutil.copytree(place / "runs" / "good", place / "many" / "a")
    shutil.copytree(place / "bad" / "run", place / "many" / "b")
    for command in (["compare", "many"], ["report", "many", "--out", "many.html"]):
        assert main(command) == 0
        err = capsys.readouterr().err
        assert "skipped: many/b/result.json is damaged" in err
