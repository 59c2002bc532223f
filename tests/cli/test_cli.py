"""The command as a user meets it: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rankprune
from _runs import HereRunner
from rankprune.cli import build_parser, main
from rankprune.cli.arguments import positionals_first
from rankprune.lab.models import create_model
from rankprune.lab.recipes import list_recipes

TINY = ["epochs=1", "data.limit_train=64", "data.limit_test=50", "data.batch_size=32"]
SAMPLE = [
    "fashion-dense", "fashion-rpg-98", "fashion-set-95", "cifar10-cpu-resnet20-rpg-99.9", "cifar10-cpu-vgg-rigl-99",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    assert main(["train", "fashion-magnitude-95", *TINY, "--out", str(out)]) == 0
    return out


def test_train_prints_json_and_finds_the_run_again(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fashion-magnitude-95", *TINY, "--out", str(runs), "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["finished_before"] is True
    assert Path(result["folder"]).is_dir()
    assert (result["kept"], result["prunable"]) == (58_664, 1_173_280)
    assert err == ""


def test_train_prints_a_table(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fashion-magnitude-95", *TINY, "--out", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "58,664 of 1,173,280" in out
    assert "was finished before" in out


@pytest.mark.parametrize("name", SAMPLE)
def test_smoke_of_some_recipes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", name, "--smoke", "--json", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    lines = [line for line in err.splitlines() if not line.startswith("rankprune: warning: ")]
    assert all(": step " in line for line in lines)  # no bar where there is no terminal, but plain lines
    wanted = 0.0 if name.endswith("dense") else float(name.rpartition("-")[2]) / 100
    assert result["sparsity"] == pytest.approx(wanted, abs=1 / result["prunable"])


ROWS = [
    *(name for name in list_recipes("fashion-*") if name.endswith(("dense", "-95"))),
    *(f"{task}-{row}" for task in ("cifar10-vgg19", "cifar10-resnet32") for row in ("pbw-99", "rpg-99")),
    *(f"cifar10-cpu-{net}-{row}" for net in ("vgg", "resnet20", "vit") for row in ("dense", "rpg-99", "feather-99")),
]  # those of ImageNet and COCO: tests/training/test_smoke.py


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_smoke_of_every_method_and_task(name: str, tmp_path: Path) -> None:
    assert main(["train", name, "--smoke", "--out", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["train", "fashion-rgp-98"], 2, ["fashion-rpg-98"]),
        (["train", "fashion-rpg-98", "optimizer.lrr=1"], 2, ["'lrr'", "'lr'"]),
        (["train", "fashion-dense", "model.name=vgg-smal"], 2, ["vgg-smal", "vgg-small"]),
        (["train", "fashion-dense", "model.name=timm:resnet1"], 2, ["timm:resnet"]),
        (["train", "fashion-dense", "model.weights=absent.pth"], 2, ["absent.pth"]),
        (["train", "cifar10-cpu-vgg-rpg-98"], 2, ["--data"]),
        (["train", "cifar10-cpu-vgg-rpg-98", "--data", "nowhere"], 2, ["nowhere"]),
        (["train", "fashion-rpg-98", "epochs=1", "method.every=1000"], 2, ["every=1000"]),
        (["train", "fashion-dense", *TINY, "epochs=2", "optimizer.lr=1e30"], 3, ["loss", "step"]),
        (["train", "fashion-rpg-98", "sparsity=0.9"], 2, ["'sparsity'", "did you mean method.sparsity?"]),
        (["train", "fashion-rpg-98", "lr=0.1"], 2, ["did you mean optimizer.lr?"]),
        (["train", "fashion-rpg-98", "lam=2"], 2, ["did you mean method.lam?"]),
        (["train", "fashion-rpg-98", "optimzer.lr=0.1"], 2, ["did you mean 'optimizer'?"]),
        (["recipes", "nothing-*"], 2, ["'nothing-*'", "rankprune recipes"]),
        (["methods", "nothing-*"], 2, ["'nothing-*'", "rankprune methods"]),
        (["sweep", "absent.yaml"], 2, ["absent.yaml"]),
        (["compare", "nowhere"], 2, ["nowhere"]),
        (["analyze", "nowhere.safetensors", "--model", "vgg-small"], 2, ["nowhere.safetensors"]),
        (["prune", "nowhere.pth", "--model", "vgg-small", "--sparsity", "0.9", "--out", "x.safetensors"], 2, ["nowhere"]),
        (["prune", "w.pth", "--model", "vgg-small", "--sparsity", "0.9", "--out", "x.pth"], 2, ["x.pth", ".safetensors"]),
        (["prune", "w.pth", "--model", "vgg-small", "--sparsity", "0.9", "--out", "no/x.safetensors"], 2, ["no/x.safetensors", "create no first"]),
        (["analyze", "nowhere"], 2, ["no run folder or weights file nowhere"]),
        (["analyze", "."], 2, ["holds no run itself", "model.sparse.safetensors"]),
        (["bench", "nowhere.pth"], 2, ["no run folder or weights file nowhere.pth"]),
        (["bench", "runs/nowhere"], 2, ["no run folder or weights file runs/nowhere"]),
        (["bench", "vgg-smal"], 2, ["vgg-small"]),
        (["bench", "torchvision:resnet1"], 2, ["torchvision:resnet"]),
        (["bench", "vgg-small", "--batch", "0"], 2, ["batch=0"]),
        (["bench", "vgg-small", "--threads", "-1"], 2, ["threads=-1"]),
        (["bench", "vgg-small", "--threads", "999"], 2, ["threads=999 is more than the"]),
        (["bench", "vgg-small", "--image-size", "0"], 2, ["image_size=0"]),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    argv: list[str], code: int, words: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(argv) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.long)])
def test_a_terminal_without_greek_is_spoken_to_in_words(encoding: str, runs: Path) -> None:
    """Also where the name of a file is in none of its letters: a finished command must not fail while it prints."""
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "rankprune"]
    for argv, words in (
        (["analyze", "--help"], "of the delta-rank"),
        (["compare", str(runs)], "delta-rank / full rank at delta=0.1"),
    ):
        done = subprocess.run([*command, *argv], env=env, capture_output=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, b"")
        assert words in done.stdout.decode(encoding)
    done = subprocess.run([*command, "compare", "где"], env={**env, "PYTHONUTF8": "1"}, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert done.stderr.startswith(rb"rankprune: \u0433\u0434\u0435 holds no finished run")


def test_usage_is_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, words in (
        ([], "it needs COMMAND"), (["trian"], "did you mean 'train'"), (["prune", "x.pth"], "it needs --sparsity, --out"),
        (["train"], "it needs RECIPE: for example `rankprune train fashion-feather-98`"), (["train", "fashion-dense", "--nothing"], "--nothing"),
        (["bench", "vgg-small", "--batch", "two"], "--batch"),
    ):  # fmt: skip
        assert main(argv) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert words in err
        assert "--help" in err


def test_options_and_settings_come_in_any_order() -> None:
    parser = build_parser()
    for words in (
        "train --out x fashion-dense --json epochs=1 --data d seed=2",
        "train epochs=1 seed=2 --data=d --out x --json fashion-dense",
    ):
        args = parser.parse_args(positionals_first(parser, words.split()))
        assert (args.recipe, args.overrides) == ("fashion-dense", ["epochs=1", "seed=2"])
        assert (args.out, args.data, args.json) == ("x", "d", True)
    args = parser.parse_args(positionals_first(parser, ["sweep", "--ray", "seed=1", "f.yaml", "--jobs", "2"]))
    assert (args.ray, args.jobs) == ("local", 2)
    args = parser.parse_args(positionals_first(parser, ["train", "lr=0.1.yaml", "seed=1"]))
    assert (args.recipe, args.overrides) == ("lr=0.1.yaml", ["seed=1"])
    args = parser.parse_args(positionals_first(parser, ["compare", "--json", "--", "-odd-name"]))
    assert args.runs == ["-odd-name"]


def test_every_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "prune", "sweep", "analyze", "compare", "completion"):
        assert main([command, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"  rankprune {command} " in text
        assert "exit codes" in text
    assert "rankprune demo" in build_parser().format_help()


def test_prune_of_ones_own_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = create_model("torchvision:resnet18", 7)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "own.pth")
    out = tmp_path / "pruned.safetensors"
    argv = ["prune", str(tmp_path / "own.pth"), "--model", "torchvision:resnet18", "--sparsity", "0.9"]
    assert main([*argv, "--distribution", "erk", "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    pruned = create_model("torchvision:resnet18", 7)
    rankprune.load(out, pruned)
    weights = [p for p in pruned.parameters() if p.ndim > 1]
    total = sum(w.numel() for w in weights)
    assert report["total"] == total
    assert sum(int(w.count_nonzero()) for w in weights) == report["kept"] == round(total * 0.1)
    kept = {layer["name"]: layer["kept"] / layer["total"] for layer in report["layers"]}
    assert kept["layer1.0.conv1.weight"] > kept["layer4.1.conv2.weight"]  # ERK spares small layers
    assert main([*argv, "--method", "rpg", "--out", str(out)]) == 2
    assert "attach" in capsys.readouterr().err


def test_analyze_of_a_run_and_of_a_file(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder,) = runs.glob("fashion-magnitude-95-*")
    assert main(["analyze", str(folder), "--json", "--delta", "0.2"]) == 0
    found = json.loads(capsys.readouterr().out)
    result = json.loads((folder / "result.json").read_text())
    assert found["delta"] == 0.2
    assert found["macs_sparse"] == result["macs_sparse"]
    assert found["dead_filters"] == result["dead_filters"]
    assert len(found["layers"]) == 9
    for words in (["--delta", "nan"], ["--delta", "0"], ["--image-size", "0"], ["--image-size", "-3"]):
        assert main(["analyze", str(folder), *words]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"{words[0].strip('-').replace('-', '_')}={words[1]}" in err
    for file in ("model.sparse.safetensors", "best.ckpt"):
        assert main(["analyze", str(folder / file)]) == 0
        assert "features.24" in capsys.readouterr().out
    shutil.copy(folder / "model.sparse.safetensors", runs / "alone.safetensors")
    assert main(["analyze", str(runs / "alone.safetensors")]) == 0  # the file itself says which model it is of
    rankprune.save(rankprune.load(runs / "alone.safetensors"), runs / "alone.safetensors")  # which is now forgotten
    assert main(["analyze", str(runs / "alone.safetensors")]) == 2
    assert "--model" in capsys.readouterr().err
    assert main(["analyze", str(runs / "alone.safetensors"), "--model", "vgg-small", "--image-size", "14"]) == 0


def test_compare_and_sweep(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("task: fashion\nmethods: [magnitude, random]\nsparsities: [95]\n")
    assert main(["sweep", str(file), *TINY, "--out", str(runs), "--json"]) == 0
    swept = json.loads(capsys.readouterr().out)
    assert [run["method"] for run in swept["runs"]] == ["magnitude", "random"]
    assert swept["failures"] == {}
    assert main(["compare", *(run["folder"] for run in swept["runs"])]) == 0
    table = capsys.readouterr().out
    assert "fashion-magnitude-95" in table
    assert "fashion-random-95" in table


def test_a_sweep_with_a_failed_run_is_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rankprune.lab.sweep.sweep.make_runner", lambda *_: HereRunner())  # the test before starts processes
    file = tmp_path / "sweep.yaml"
    file.write_text("recipes: [fashion-dense]\noverrides: [optimizer.lr=1e30, epochs=2]\n")
    assert main(["sweep", str(file), *TINY[1:], "--out", str(tmp_path)]) == 1
    assert "failed: fashion-dense (seed 0)" in capsys.readouterr().out


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "fashion-*", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == list_recipes("fashion-*")
    assert main(["methods", "--json"]) == 0
    assert {method["name"] for method in json.loads(capsys.readouterr().out)} >= {"rpg", "gmp", "rigl", "set"}
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["torch"] == torch.__version__
    listed = {extra["extra"] for extra in found["extras"]}
    assert listed == {
        "train", "vision", "tensorboard", "detection", "onnx", "report", "lightning", "transformers", "accelerate", "ray",
    }  # fmt: skip


def test_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from rankprune.lab.runs import environment

    monkeypatch.setitem(environment.EXTRAS, "onnx", ("export", ("no_such_library",)))
    assert main(["doctor"]) == 0
    assert "missing no_such_library: pip install 'rankprune[onnx]'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("net", "kept"),
    [("vgg-small", "5,866 of 1,173,280"), pytest.param("vgg-small-fc", "12,622 of 2,524,448", marks=pytest.mark.long)],
)
def test_demo_in_miniature(
    net: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a network whose ranks are quick to compute; the demo's own in the long tests."""
    monkeypatch.setattr("rankprune.cli.demo._OVERRIDES", [f"model.name={net}"])
    monkeypatch.setattr("rankprune.lab.sweep.sweep.make_runner", lambda *_: HereRunner())  # tests of sweeps start processes
    assert main(["demo", "--smoke", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    for word in ("smoke-fashion-dense", *(f"smoke-fashion-{name}-99.5" for name in ("feather", "rpg", "gmp")), "δ=", kept):
        assert word in out
    assert (tmp_path / "demo.html").as_uri() in out
    assert "rankprune.attach" in out
    assert "Four runs" in err
    last = out.splitlines()[-1]
    assert last.startswith("With 99.5 % of its weights pruned by feather, the network has ")
    assert "x smaller" in last
    assert " ms per image on the sparse engine instead of " in last
    assert " in torch" in last


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_is_a_script_the_shell_accepts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "fashion-rpg-98" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
    if shell == "bash" and shutil.which("bash"):
        ask = "\nCOMP_WORDS=(rankprune train fashion-rp) COMP_CWORD=2; _shtab_rankprune; echo ${COMPREPLY[@]}"
        done = subprocess.run(["bash", "-c", script + ask], capture_output=True, text=True, check=True)
        assert "fashion-rpg-98" in done.stdout.split()
        assert "fashion-dense" not in done.stdout.split()


def test_bars_on_a_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rankprune", "train", "fashion-dense", "--smoke", "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100"}
    ours, theirs = pty.openpty()
    with open(tmp_path / "out", "w") as out:
        process = subprocess.Popen([*command, str(tmp_path / "b")], stdout=out, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        shown += part
    assert process.wait() == 0
    assert b"smoke-fashion-dense" in shown
    assert b"8/8" in shown


WITHOUT = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {library!r}:
            raise ModuleNotFoundError("No module named {library}", name={library!r})
sys.meta_path.insert(0, Hide())
from rankprune.cli import main
sys.exit(main({argv!r}))
"""


@pytest.mark.parametrize(
    ("library", "argv"),
    [
        ("pydantic", ["train", "fashion-dense"]),
        ("yaml", ["recipes"]),
        ("timm", ["train", "fashion-dense", "ema.decay=0.9"]),
        pytest.param("torchvision", ["train", "fashion-dense", "model.name=torchvision:resnet18"], marks=pytest.mark.long),
        ("shtab", ["completion", "bash"]),
    ],
)
def test_a_missing_extra_is_named_with_its_command(library: str, argv: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT.format(library=library, argv=argv)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert library in done.stderr
    assert "pip install 'rankprune[" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_and_lists_do_not_wait_for_torch() -> None:
    for argv in (["recipes"], ["train", "--help"]):
        code = f"import sys\nfrom rankprune.cli import main\ntry:\n    main({argv!r})\nexcept SystemExit:\n    pass\n"
        code += "sys.exit('torch' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANKPRUNE_DEBUG", "1")
    assert main(["train", "no-such-recipe-at-all"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.filterwarnings("default:.* updates its masks")
def test_warnings_of_the_package_are_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["epochs=1", "method.every=1", "data.limit_train=256", "data.limit_test=50"]
    assert main(["train", "fashion-gmp-95", *small, "--out", str(tmp_path)]) == 0
    err = capsys.readouterr().err
    assert "rankprune: warning: gmp updates its masks" in err
    assert "UserWarning" not in err


def test_an_unknown_argument_is_reported_by_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "one", "two"]) == 2
    assert capsys.readouterr().err.startswith("rankprune analyze: there is no argument two: for example `rankprune analyze ")


def test_a_setting_of_methods_in_a_dense_run_names_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fashion-dense", "method.every=1"]) == 2
    assert "write method.METHOD.every" in capsys.readouterr().err


def test_doctor_says_whether_the_engine_can_be_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert main(["doctor"]) == 0
    assert "the sparse engine is not available: there is no C++17 compiler" in capsys.readouterr().out
