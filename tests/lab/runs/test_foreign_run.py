"""A run folder from elsewhere: opening it runs no code, loads no pickle and opens no connection."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import rankprune as rp
from rankprune.lab.models import About, ModelError, create_model
from rankprune.lab.models.arguments import check_args
from rankprune.lab.recipes import RecipeError, load_recipe
from rankprune.lab.runs.open_model import open_model

pytest.importorskip("torchvision")
pytest.importorskip("timm")

# Runs command lines, each in a fork of itself after every way to the network and into pickle has been blocked.
GUARDED = """
import json, sys
import torch, timm, torchvision, safetensors.torch, numpy, huggingface_hub
from rankprune.cli import main
import pickle, _pickle, socket, urllib.request, subprocess, os

def refuse(what):
    def refused(*args, **kwargs):
        sys.stderr.write(f"FORBIDDEN {what}\\n")
        sys.stderr.flush()
        os._exit(99)
    return refused

class Refused:
    def __init__(self, *args, **kwargs):
        refuse(type(self).__name__)()

def guard():
    for module in (pickle, _pickle):
        module.load, module.loads = refuse("pickle.load"), refuse("pickle.loads")
        module.Unpickler = type("Unpickler", (Refused,), {})
    torch.load = torch.serialization.load = torch.jit.load = refuse("torch.load")
    torch.hub.load_state_dict_from_url = torch.hub.download_url_to_file = refuse("torch.hub")
    numpy.load = refuse("numpy.load")
    socket.socket.connect = refuse("socket.connect")
    socket.create_connection = socket.getaddrinfo = refuse("socket")
    subprocess.Popen = os.system = os.execv = refuse("a process")

for line in sys.stdin:
    argv, out, err = json.loads(line)
    pid = os.fork()
    if not pid:
        for number, name in ((1, out), (2, err)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        guard()
        sys.exit(main(argv))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
Guarded = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    return create_model("timm:test_vit", 10)


def folder_of(path: Path, network: torch.nn.Module, model: dict[str, Any], about: dict[str, Any] | None = None) -> Path:
    """A finished run as its files would arrive."""
    path.mkdir()
    recipe = {"name": "foreign", "seed": 0, "epochs": 1, "data": {"name": "imagefolder"}, "model": model}
    (path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    rp.save(network, path / "model.sparse.safetensors", about=about)
    return path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    source = str(Path(__file__).resolve().parents[3] / "src")
    env = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    out, err = (tmp_path_factory.mktemp("said") / name for name in ("out", "err"))
    with subprocess.Popen([sys.executable, "-c", GUARDED], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(*argv: str) -> subprocess.CompletedProcess[str]:
            print(json.dumps([argv, str(out), str(err)]), file=process.stdin, flush=True)
            code = int(process.stdout.readline())  # type: ignore[union-attr]
            return subprocess.CompletedProcess(argv, code, out.read_text(), err.read_text())

        yield run
        process.stdin.close()


HOSTILE: dict[str, dict[str, Any]] = {
    "a pickle": {"checkpoint_path": "evil.pth"},
    "an address": {"pretrained_cfg_overlay": {"url": "http://127.0.0.1:9/evil.pth"}},
    "a whole configuration": {"pretrained_cfg": {"file": "evil.pth"}},
    "pretrained weights": {"pretrained": True},
    "a place for downloads": {"cache_dir": "elsewhere"},
    "more than a number": {"img_size": {"url": "x"}},
    "a path as a word": {"global_pool": "../../evil"},
    "an absurd size": {"embed_dim": 1 << 40},
    "not a number": {"drop_rate": float("nan")},
    "a long list": {"depths": [1] * 1000},
}


@pytest.mark.parametrize("args", HOSTILE.values(), ids=HOSTILE)
def test_arguments_that_are_not_plain_are_refused(args: dict[str, Any], network: torch.nn.Module, tmp_path: Path) -> None:
    run = folder_of(tmp_path / "run", network, {"name": "timm:test_vit", "args": args})
    with pytest.raises(ModelError, match=next(iter(args))) as caught:
        open_model(run)
    assert "\n" not in str(caught.value)
    with pytest.raises(RecipeError, match=next(iter(args))):  # nor may a recipe that is to be trained
        load_recipe("imagenet-deit-s-dense", [f"model.args={json.dumps(args)}"])
    about = {"name": "timm:test_vit", "num_classes": 10, "in_channels": 3, "image_size": 160, "args": args}
    with pytest.raises(ModelError, match=next(iter(args))):
        About.from_dict(about, "a file")


@pytest.mark.parametrize("key", ["weights_backbone", "weights", "pretrained_backbone", "pretrained", "progress"])
def test_torchvision_is_not_asked_to_fetch(key: str) -> None:
    with pytest.raises(ModelError, match=f"may not pass '{key}' to torchvision:fcn_resnet50"):
        check_args("torchvision:fcn_resnet50", {key: "DEFAULT"})


def test_our_own_models_take_their_arguments_but_no_weights() -> None:
    own = {"min_size": [96, 128], "max_size": 192, "trainable_layers": 2}
    assert check_args("maskrcnn-resnet50-fpn", own) == own
    with pytest.raises(ModelError, match="may not pass 'pretrained' to maskrcnn-resnet50-fpn"):
        check_args("maskrcnn-resnet50-fpn", {"pretrained": "IMAGENET1K_V1"})


def test_a_folder_is_opened_without_network_or_pickle(guarded: Guarded, network: torch.nn.Module, tmp_path: Path) -> None:
    """The guard is there to be met: what it forbids ends the process with 99."""
    model = {"name": "timm:test_vit", "pretrained": True, "weights": "evil.pth", "args": {"drop_path_rate": 0.1}}
    run = folder_of(tmp_path / "run", network, model)
    done = guarded("analyze", str(run), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["layers"]
    torch.save(network.state_dict(), tmp_path / "w.pth")
    met = guarded("analyze", str(tmp_path / "w.pth"), "--model", "timm:test_vit")  # which torch reads, weights only
    assert (met.returncode, met.stderr) == (99, "FORBIDDEN torch.load\n")


@pytest.mark.parametrize("where", ["recipe", "metadata"])
def test_hostile_arguments_reach_no_factory(where: str, guarded: Guarded, network: torch.nn.Module, tmp_path: Path) -> None:
    args = {"checkpoint_path": str(tmp_path / "evil.pth"), "pretrained_cfg_overlay": {"url": "http://127.0.0.1:9/x"}}
    about = {"name": "timm:test_vit", "num_classes": 10, "in_channels": 3, "image_size": 160, "args": args}
    model = {"name": "timm:test_vit", "args": args if where == "recipe" else {}}
    run = folder_of(tmp_path / "run", network, model, about if where == "metadata" else None)
    torch.save(network.state_dict(), tmp_path / "evil.pth")
    done = guarded("analyze", str(run))
    assert done.returncode == 2
    assert done.stderr.startswith("rankprune: A recipe or file may not pass 'checkpoint_path' to timm:test_vit")
    assert done.stderr.count("\n") == 1
    out = tmp_path / "page.html"
    done = guarded("report", str(run), "--out", str(out))  # shows the run without its layers
    assert done.returncode == 0
    assert "is shown without its layers" in done.stderr
    assert "FORBIDDEN" not in done.stderr
    assert out.exists()


@pytest.mark.parametrize("name", ["timm:hf-hub:evil/model", "timm:local-dir:/evil", "hf-hub:evil/model", "torchvision:evil"])
def test_a_name_that_is_an_address_is_no_model(name: str, network: torch.nn.Module, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="There is no model '"):
        open_model(folder_of(tmp_path / "run", network, {"name": name}))


def test_a_file_that_names_a_huge_model_takes_no_memory(tmp_path: Path) -> None:
    """A few kilobytes that name a network of 2.5 GB are refused by its shapes, before it is built."""
    about = {"name": "torchvision:regnet_y_128gf", "num_classes": 1000, "in_channels": 3, "image_size": 224, "args": {}}
    rp.save({"x": torch.zeros(1)}, tmp_path / "p.safetensors", about=about)
    code = (
        "import resource, sys, torchvision, rankprune.lab.runs.open_model as w, pathlib\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    w.open_model(pathlib.Path(sys.argv[1]))\n"
        "except ValueError as error:\n    print(error)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")}
    line = [sys.executable, "-c", code, str(tmp_path / "p.safetensors")]
    said, grown = subprocess.run(line, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said.startswith("p.safetensors does not fit torchvision:regnet_y_128gf: it lacks ")
    assert int(grown) < 300  # MB


@pytest.mark.parametrize(
    "change",
    [{"num_classes": 0}, {"num_classes": "10"}, {"in_channels": True}, {"image_size": 1 << 19}, {"name": 3}, {"more": 1}],
    ids=str,
)
def test_metadata_that_is_wrong_is_one_sentence(change: dict[str, Any], network: torch.nn.Module, tmp_path: Path) -> None:
    about = {"name": "timm:test_vit", "num_classes": 10, "in_channels": 3, "image_size": 160, "args": {}, **change}
    rp.save(network, tmp_path / "p.safetensors", about=about)
    with pytest.raises(ModelError) as caught:
        open_model(tmp_path / "p.safetensors")
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_the_models_are_one_sentence(network: torch.nn.Module, tmp_path: Path) -> None:
    run = folder_of(tmp_path / "run", network, {"name": "timm:test_vit", "args": {"depth": 2}})
    with pytest.raises(ModelError, match="do not fit timm:test_vit"):
        open_model(run)
    shutil.copy(run / "recipe.yaml", tmp_path)
    (run / "recipe.yaml").write_text("model: [1, 2]\ndata: 3\n")
    with pytest.raises(ModelError, match="does not say which model it belongs to"):
        open_model(run)
