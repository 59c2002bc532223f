"""One network of each family, 90 % pruned: the numbers of torch at odd sizes and batches, and never slower than torch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import rankprune as rp
from rankprune.engine.timing import in_turns

pytest.importorskip("torchvision")
pytest.importorskip("timm")
pytest.importorskip("transformers")

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "networks.py"
sys.path.insert(0, str(PATH.parent))  # for _user_networks, beside it
spec = importlib.util.spec_from_file_location("networks", PATH)
networks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(networks)
QUICK = ("torchvision:shufflenet_v2_x0_5@65", "timm:edgenext_xx_small@64", "hf:bert", "hf:gpt2")
CHANGES_ITSELF = "timm:convit_tiny@224"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Measured choices of these tests stay their own; the built kernels are shared."""
    import rankprune.engine.backend.tuning as tuning

    monkeypatch.setattr(tuning, "cache_folder", lambda: tmp_path)


@pytest.mark.parametrize("name", QUICK)
def test_a_sample_agrees_with_torch(name):
    model, example = networks.build(name)
    fast = rp.compile(model, example, threads=1, tune=False)
    assert fast.program.natives
    for batch in (1, 5):
        assert networks.error(model, fast, networks.repeated(example, batch)) <= 1e-4


def test_bert_takes_sequences_of_any_length():
    model, example = networks.build("hf:bert")
    fast = rp.compile(model, example, threads=1, tune=False)
    assert "aten.linear.default" not in fast.islands
    for length in (37, 8):
        shorter = {key: value[:, :length] for key, value in networks.repeated(example, 2).items()}
        assert networks.error(model, fast, shorter) <= 1e-4
        assert type(networks.call(fast, shorter)) is type(networks.call(model, shorter))
    only_ids = {"input_ids": torch.randint(3, 900, (3, 8))}
    assert networks.error(model, fast, only_ids) <= 1e-4


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in networks.FAMILIES if name != CHANGES_ITSELF])
def test_each_family(name):
    model, example = networks.build(name)
    fast = rp.compile(model, example, threads=1)
    for batch in (1, 2, 5, 13):
        assert networks.error(model, fast, networks.repeated(example, batch)) <= 1e-4, batch
    torch.set_num_threads(1)
    ratios = []
    for _ in range(3):  # a slow spell of the machine must not decide
        theirs, ours = in_turns([lambda: networks.call(model, example), lambda: networks.call(fast, example)])
        ratios.append(ours / theirs)
        if ratios[-1] <= 1.05:
            return
    pytest.fail(f"{name} takes {min(ratios):.2f} times as long as torch: {fast.report}")


@pytest.mark.long
def test_a_network_that_changes_its_buffers_is_refused_by_name():
    model, example = networks.build(CHANGES_ITSELF)
    with pytest.raises(ValueError, match=r"changes blocks\.0\.attn\.rel_indices"):
        rp.compile(model, example, threads=1)
