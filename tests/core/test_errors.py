"""Bad input gets one sentence that names the thing, the value and the way out, and loses nothing."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import adamw, batch, cnn, sgd, train, vit


def attach(model: nn.Module | None = None, method: Any = "rpg", **options: Any) -> rp.Sparsifier:
    model = model or cnn()
    return rp.attach(model, sgd(model), method, **{"sparsity": 0.9, "total_steps": 500, **options})


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "sparsity 0": (lambda: attach(sparsity=0.0), r"sparsity=0.0 is not between 0 and 1"),
    "sparsity 1": (lambda: attach(sparsity=1.0), r"sparsity=1.0"),
    "sparsity in percent": (lambda: attach(sparsity=98), r"sparsity=98 .*0.98"),
    "sparsity by layer": (lambda: attach(sparsity={"0": 0.5}), r"sparsity=.*'0': 0.5.* is not one number: .* mapping"),
    "empty mapping": (lambda: attach(method={}), r"method={} names no method"),
    "extra by name": (lambda: attach(extras=["ham"]), r"extras holds 'ham', which is no extra: .*'rpg\+ham'"),
    "grow as text": (lambda: attach(grow="0.3"), r"grow='0.3' is not a share of a layer"),
    "no sparsity": (lambda: attach(sparsity=None), r"sparsity=None"),
    "sparsity nan": (lambda: attach(sparsity=float("nan")), r"sparsity=nan"),
    "too few for the layers": (lambda: attach(sparsity=0.9995), r"leaves 1 of 2008 weights for 3 layers"),
    "no layer": (lambda: attach(nn.Sequential(nn.BatchNorm2d(3))), r"Sequential has no weight of a known layer to prune"),
    "all dense": (lambda: attach(dense=["*"]), r"no weight of a known layer to prune: all are left out \(kept dense\)"),
    "all frozen": (lambda: rp.prune(cnn().requires_grad_(False), sparsity=0.5), r"all are left out \(frozen\)"),
    "no shape yet": (lambda: attach(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))), r"0.weight has no shape yet"),
    "two of one name": (
        lambda: attach(nn.ModuleDict({"fc": nn.Linear(4, 4), "module": nn.ModuleDict({"fc": nn.Linear(4, 4)})})),
        r"fc.weight and module.fc.weight are both 'fc.weight' without wrappers: rename a module",
    ),
    "unknown method": (lambda: attach(method="rpgg"), r"no method 'rpgg': did you mean 'rpg'"),
    "unknown hyper": (lambda: attach(lambd=3), r"rpg has no hyper-parameter 'lambd': did you mean 'lam'"),
    "hyper of another": (lambda: attach(method="magnitude", lam=3), r"magnitude has no hyper-parameter 'lam'"),
    "too short": (lambda: attach(total_steps=50, every=100), r"total_steps=50 with every=100"),
    "no steps": (lambda: attach(total_steps=0), r"total_steps=0"),
    "float steps": (lambda: attach(total_steps=1e3), r"total_steps=1000.0"),
    "every": (lambda: attach(every=0), r"every=0"),
    "update_end": (lambda: attach(every=100, update_end=40), r"no mask update fits"),
    "grow in percent": (lambda: attach(grow=30), r"grow=30 is not a share of a layer: .* 0.3"),
    "grow below 0": (lambda: attach(method="set", grow=-0.5), r"grow=-0.5 is not a share"),
    "two sparsities": (
        lambda: attach(method=rp.methods.RPG(sparsity=0.5), sparsity=0.9),
        r"sparsity=0.9 is given beside a method object with sparsity=0.5: give one of them",
    ),
    "distribution beside an object": (
        lambda: rp.prune(cnn(), rp.methods.Magnitude(), sparsity=0.9, distribution="erk"),
        r"distribution goes into the method object",
    ),
    "no step": (lambda: attach(prune_end=None), r"prune_end=None is not a step"),
    "share": (lambda: attach(prune_end=1.5), r"prune_end=1.5"),
    "schedule": (lambda: attach(density_schedule="linear").groups[0].method.scheduled, r"'linear'"),
    "reduction": (lambda: attach(rank_reduction="max"), r"rank_reduction='max'"),
    "lam as text": (lambda: attach(lam="4"), r"lam='4' is neither a number from 0, nor a ratio such as"),
    "delta above 1": (lambda: attach(delta=5), r"delta=5 is not a number from 0 to 1"),
    "grow": (lambda: attach(method="rigl", grow=-0.5), r"grow=-0.5 is not a share"),
    "power": (lambda: attach(method="powerprop", alpha=0.0), r"alpha=0.0 is below 1"),
    "norm": (lambda: attach(method="topkast", norm=3), r"norm=3 is unknown: use 1 or 2"),
    "backward set": (lambda: attach(method="topkast", backward_sparsity=-0.5), r"backward_sparsity=-0.5 is not in"),
    "threshold's power": (lambda: attach(method="feather", p=0.0), r"p=0.0 is no power"),
    "threshold of 0": (lambda: attach(method="dsr", threshold=0.0), r"threshold=0.0 stays there"),
    "temperature": (lambda: attach(method="grasp", temperature=0.0), r"temperature=0.0 cannot divide"),
    "no batches": (lambda: attach(method="snip", batches=0), r"batches=0 is not a number of batches"),
    "damping": (lambda: attach(method="mlprune", damping=0.0), r"damping=0.0 leaves factors without an inverse"),
    "floor": (lambda: attach(method="gmp+rank_floor", rank_floor={"every": 0}), r"every=0 is not a number of steps"),
    "steering": (lambda: attach(method="feather+rank_steer", rank_steer={"every": 0}), r"every=0 is not a number"),
    "distribution": (lambda: attach(distribution="erkk"), r"distribution='erkk'"),
    "budget": (lambda: attach(budget="flops"), r"budget='flops'"),
    "macs without example": (lambda: attach(budget="macs"), r"needs example="),
    "macs with erk": (lambda: attach(method="rigl", budget="macs", example=1), r"needs distribution='global'"),
    "mapping without match": (
        lambda: attach(method={"nothing*": "gmp"}),
        r"no prunable weight is left for 'nothing\*'",
    ),
    "mapping without method": (lambda: attach(method={"*": {"every": 3}}), r"names no method"),
    "object and hyper": (lambda: attach(method=rp.methods.RPG(), lam=3), r"lam goes into the method object"),
    "method of no name": (lambda: attach(method={"*": {"method": None}}), r"there is no method None: known are acdc"),
    "a first layer larger than the budget": (
        lambda: attach(method="gmp", distribution="uniform_dense_first"),
        r"sparsity=0.9 leaves 201 weights, not enough for a dense first layer of 216",
    ),
    "fewer macs than layers": (
        lambda: attach(method="gmp", sparsity=0.998, budget="macs", example=torch.zeros(1, 3, 8, 8)),
        r"sparsity=0.998 leaves 66 of 32896 MACs for 3 layers, where each needs at least one weight \(81 MACs in all\)",
    ),
    "ramp after the end": (
        lambda: attach(method="str", prune_end=900),
        r"str reaches its sparsity at step 900, after total_steps=500",
    ),
    "last phase after the end": (
        lambda: attach(method="acdc", prune_at=(10, 900), restore_at=(50,)),
        r"acdc reaches its sparsity at step 900, after total_steps=500",
    ),
    "sensitivity in percent": (
        lambda: rp.sensitivity(cnn(), lambda model: 0.0, [50]),
        r"sparsity=50 is not between 0 and 1",
    ),
    "prune needs training": (lambda: rp.prune(cnn(), "rpg", sparsity=0.5), r"rpg prunes while training"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence(case: str) -> None:
    act, sentence = CASES[case]
    with pytest.raises(ValueError, match=sentence) as error:
        act()
    assert "\n" not in str(error.value)


def test_not_a_method_or_optimizer() -> None:
    with pytest.raises(TypeError, match="method=3"):
        attach(method=3)
    with pytest.raises(TypeError, match="method=3"):
        rp.prune(cnn(), 3, sparsity=0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a torch optimizer"):
        rp.attach(cnn(), object(), "rpg", sparsity=0.9, total_steps=500)  # type: ignore[arg-type]


def test_a_failed_attach_touches_nothing() -> None:
    model = cnn()
    before = copy.deepcopy(model.state_dict())
    for options in ({"sparsity": 2.0}, {"method": "rigl", "every": 9999}, {"method": "nope"}):
        with pytest.raises(ValueError):
            attach(model, **options)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())


def test_an_attach_that_fails_on_its_data_gives_the_weights_back() -> None:
    model = cnn()
    before = copy.deepcopy(model.state_dict())

    def broken(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such loss")

    with pytest.raises(RuntimeError, match="no such loss"):
        attach(model, {"0": "magnitude", "*": "snip"}, data=[batch(1)], loss_fn=broken)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_attach_twice_and_owners() -> None:
    model = cnn()
    optimizer = sgd(model)
    first = rp.attach(model, optimizer, "rigl", sparsity=0.9, total_steps=500)
    with pytest.raises(ValueError, match=r"0.weight is attached already"):
        rp.attach(model, optimizer, "rigl", sparsity=0.9, total_steps=500)
    first.detach()
    rp.attach(model, optimizer, "static", total_steps=5).detach()
    with pytest.raises(ValueError, match=r"8.weight is in no optimizer: add it, or leave it out"):
        rp.attach(model, sgd(model[:5]), "rigl", sparsity=0.9, total_steps=500)
    with pytest.raises(ValueError, match=r"0.weight is in 2 optimizers"):
        rp.attach(model, [sgd(model), adamw(model)], "rigl", sparsity=0.9, total_steps=500)


def test_a_glob_that_matches_nothing_is_said() -> None:
    with pytest.warns(UserWarning, match=r"dense='stem\*' matches no prunable weight"):
        attach(dense=["stem*"])
    with pytest.warns(UserWarning, match=r"dense=Sequential matches no prunable weight"):
        attach(dense=[nn.Sequential])


def test_a_weight_that_is_prunable_anyway_may_be_included() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "8.weight" in attach(include="8").masks


def test_one_glob_or_type_needs_no_list() -> None:
    for dense, name in (("8.*", "8.weight"), (nn.Linear, "8.weight")):
        assert attach(dense=dense).left_out == {name: "kept dense"}


def test_not_at_target_names_the_step() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "rpg", sparsity=0.9, total_steps=40, every=4)
    train(model, optimizer, 1, 20)
    with pytest.raises(rp.NotAtTarget, match=r"at step 20 and reaches the 201 asked for at step 36"):
        sp.finalize()
    train(model, optimizer, 21, 22)  # nothing was lost
    report = sp.finalize(project=True)
    assert report.kept == 201


def test_not_at_target_past_its_step_says_so() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "rigl", sparsity=0.9, total_steps=24, every=4)
    sp.set_masks({key: torch.ones_like(mask) for key, mask in sp.masks.items()})
    train(model, optimizer, 1, 24)
    with pytest.raises(rp.NotAtTarget, match=r"keeps 2,008 of 2,008 at step 24, not the 201 asked for: pass project=True"):
        sp.finalize()
    assert sp.finalize(project=True).kept == 201


def test_a_state_of_something_else_is_refused_and_nothing_changes() -> None:
    model = cnn()
    sp = attach(model, "rigl")
    before = sp.state_dict()
    other = attach(vit(), "rigl").state_dict()
    damaged = copy.deepcopy(before)
    damaged["groups"][0]["sites"]["3.weight"]["mask"] = torch.zeros(3, dtype=torch.uint8)
    flipped = copy.deepcopy(before)
    bits = flipped["groups"][0]["sites"]["3.weight"]["mask"]
    bits[int((bits != 255).nonzero()[0])] |= lowest_zero(int(bits[bits != 255][0]))
    missing = copy.deepcopy(before)
    del missing["groups"][0]["sites"]["3.weight"]["mask"]
    for state, sentence in [
        ({}, "not a sparsifier's state"),
        (model.state_dict(), "not a sparsifier's state"),
        ({**before, "version": 99}, "version 99"),
        (other, "another model"),
        (damaged, "damaged"),
        (flipped, r"the masks of rigl in the checkpoint keep 202, not the 201 it declares: use another checkpoint"),
        (missing, "incomplete"),
        (attach(cnn(), "set").state_dict(), "method=set"),
        (attach(cnn(), "rigl", total_steps=400).state_dict(), "total_steps=400"),
        (attach(cnn(), "rigl", sparsity=0.8).state_dict(), "final=402"),
        ({**before, "groups": []}, "0 methods"),
    ]:
        with pytest.raises(ValueError, match=sentence) as error:
            sp.load_state_dict(state)
        assert "\n" not in str(error.value)
    after = sp.state_dict()
    assert all(
        torch.equal(after["groups"][0]["sites"][k]["mask"], v["mask"]) for k, v in before["groups"][0]["sites"].items()
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda group: group.pop("state"),
        lambda group: group.pop("retry"),
        lambda group: group["sites"]["8.weight"].pop("state"),
        lambda group: group["sites"]["8.weight"]["state"].update(latent=torch.zeros(3)),
    ],
    ids=["no state", "no retry", "no state of a layer", "state of another shape"],
)
def test_a_damaged_state_changes_nothing(damage: Callable[[Any], Any]) -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "feather", sparsity=0.9, total_steps=20)
    early = copy.deepcopy(sp.state_dict())
    damage(early["groups"][0])
    train(model, optimizer, 1, 15)
    before = copy.deepcopy(sp.state_dict())
    with pytest.raises(ValueError, match="use another checkpoint"):
        sp.load_state_dict(early)
    after = sp.state_dict()
    assert (after["step"], after["groups"][0]["budget"]) == (15, before["groups"][0]["budget"])
    for key, layer in before["groups"][0]["sites"].items():
        assert torch.equal(after["groups"][0]["sites"][key]["mask"], layer["mask"])
        assert torch.equal(after["groups"][0]["sites"][key]["state"]["latent"], layer["state"]["latent"])


def lowest_zero(byte: int) -> int:
    return ~byte & (byte + 1)


def test_a_state_loads_without_unpickling() -> None:
    file = io.BytesIO()
    torch.save(attach(cnn(), "rpg").state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["step"] == 0


def test_set_masks_checks_names_and_shapes() -> None:
    sp = attach(cnn(), "rigl")
    with pytest.raises(ValueError, match=r"no prunable weight 'x'"):
        sp.set_masks({"x": torch.ones(1, dtype=torch.bool)})
    with pytest.raises(ValueError, match=r"the mask of 0.weight"):
        sp.set_masks({"0.weight": torch.ones(1, dtype=torch.bool)})


def test_files(tmp_path: Path) -> None:
    model = cnn()
    path = tmp_path / "model.safetensors"
    rp.save(model, path)
    data = path.read_bytes()
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    (tmp_path / "text").write_text("hello")
    for name in ("cut", "text"):
        with pytest.raises(ValueError, match="damaged or not a safetensors file") as error:
            rp.load(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        rp.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="another model"):
        rp.load(path, vit())
    import safetensors.torch

    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(ValueError, match=r"not written by rankprune.save"):
        rp.load(tmp_path / "foreign")
