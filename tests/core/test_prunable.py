"""What is pruned, what is left out and said, and what makes a sparsity other than it looks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankprune as rp
from _nets import Conv1D, cnn, recurrent, sgd, train
from rankprune.core.summary import LayerCount, Report
from rankprune.prunable import weights_of


class Words(nn.Module):
    """A text classifier: most of its parameters are in an embedding, some in a bare matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))  # a vector, whatever its shape
        self.mix = nn.Parameter(torch.randn(8, 8))
        self.norm = nn.LayerNorm((3, 8))
        self.gru = nn.GRU(8, 10, num_layers=2, batch_first=True)
        self.head = nn.Linear(10, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm((self.embed(ids) + self.token) @ self.mix)
        return self.head(self.gru(x)[0][:, -1])


PRUNED = ["gru.weight_ih_l0", "gru.weight_hh_l0", "gru.weight_ih_l1", "gru.weight_hh_l1", "head.weight"]


def attach(model: nn.Module, method: Any = "gmp", **options: Any) -> rp.Sparsifier:
    return rp.attach(model, sgd(model), method, **{"sparsity": 0.5, "total_steps": 100, **options})


def test_every_matrix_is_pruned_or_named_with_its_size() -> None:
    sp = attach(Words())
    assert list(sp.masks) == PRUNED
    assert sp.left_out == {
        "mix": "a parameter of Words, which is no known layer; include='mix' prunes it",
        "embed.weight": "an embedding, dense by default; include='embed.weight' prunes it",
        "norm.weight": "the scale of a norm",
        "norm.bias": "the scale of a norm",
    }
    text = str(sp.summary())
    assert "left out: embed.weight 100×8, 800 weights (an embedding, dense by default" in text
    assert "left out: mix 8×8, 64 weights (" in text


def test_the_sparsity_of_the_whole_model_stands_beside_that_of_the_prunable_part() -> None:
    model = Words()
    report = rp.prune(model, sparsity=0.5)
    prunable = 30 * 8 + 30 * 10 + 30 * 10 + 30 * 10 + 4 * 10
    everything = prunable + 800 + 8 + 64 + 48 + 4 * 30 + 4
    assert (report.total, report.parameters) == (prunable, everything)
    assert report.parameters == sum(p.numel() for p in model.parameters())
    assert report.model_sparsity == pytest.approx(prunable / 2 / everything)
    assert f"{50 * prunable / everything:.4f} %" in str(report)


def test_include_adds_embeddings_and_bare_parameters() -> None:
    sp = attach(Words(), include=["mix", nn.Embedding])
    assert set(sp.masks) == {"mix", "embed.weight", *PRUNED}
    assert set(sp.left_out) == {"norm.weight", "norm.bias"}
    assert rp.prune(Words(), sparsity=0.5, include="mix").total == 1180 + 64
    with pytest.warns(UserWarning, match=r"include='nothing' matches no prunable weight"):
        attach(Words(), include="nothing")
    with pytest.warns(UserWarning, match=r"include='token' matches no prunable weight"):
        attach(nn.Sequential(nn.Linear(4, 4)), include="token")
    assert "embed.weight" not in attach(Words(), include="*", dense="embed").masks  # dense wins


def test_an_embedding_that_is_a_linear_layers_weight_too_is_pruned_once() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(20, 8), "head": nn.Linear(8, 20, bias=False)})
    model["head"].weight = model["embed"].weight
    sp = attach(model)
    assert list(sp.masks) == ["embed.weight"]
    assert sp.left_out == {}


def test_recurrent_weights_of_every_form() -> None:
    lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, proj_size=2)
    names = [n for n, p in lstm.named_parameters() if p.ndim == 2]
    assert [w.attribute for w in weights_of(lstm)] == names
    assert len(names) == 12
    for cell in (nn.RNNCell(3, 4), nn.LSTMCell(3, 4), nn.GRUCell(3, 4)):
        assert [w.attribute for w in weights_of(cell)] == ["weight_ih", "weight_hh"]


def test_an_lstm_computes_with_the_zeros() -> None:
    """The module keeps a list of its weights for the kernels: it must be the pruned ones that are used."""
    model = recurrent()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "rigl", sparsity=0.9, total_steps=12, every=3)
    train(model, optimizer, 1, 12)
    sp.finalize()
    again = recurrent(seed=5)
    again.load_state_dict(model.state_dict())
    x = torch.randn(4, 3, 8, 8)
    assert torch.equal(model(x), again(x))
    lstm = model.lstm
    assert all(a is b for a, b in zip(lstm._flat_weights, lstm.parameters()))
    assert float((lstm.weight_ih_l0 == 0).float().mean()) > 0.5


def test_a_hugging_face_conv1d_is_a_linear_layer_the_other_way_round() -> None:
    layer = Conv1D(6, 4)
    assert list(weights_of(layer)) == [("weight", "linear", True)]
    with torch.no_grad():
        layer.weight[:, 2] = 0.0  # an output that is off
    (row,) = rp.rank.profile(nn.Sequential(layer)).rows
    assert row.shape == (6, 4)
    assert row.dead_rows == 1
    assert attach(nn.Sequential(layer)).layers[0].rows == 6


def test_a_gpt2_is_pruned_where_its_weights_are() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=12)
    model = transformers.GPT2LMHeadModel(config)
    sp = attach(model)
    inside = {f"transformer.h.{i}.{n}.weight" for i in (0, 1) for n in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}  # fmt: skip
    assert inside <= set(sp.masks)
    assert set(sp.masks) - inside == {"transformer.wte.weight"}  # that of the head as well
    assert list(sp.left_out) == ["transformer.wpe.weight"]
    macs = {row.name: row.dense for row in rp.flops.count(model, {"input_ids": torch.zeros(1, 12, dtype=torch.long)}).rows}
    assert macs["transformer.h.0.attn.c_attn.weight"] == 12 * 16 * 48


def test_macs_of_an_lstm_by_hand() -> None:
    model = nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True)
    rows = rp.flops.count(model, torch.randn(3, 7, 5)).rows
    tokens = 21
    assert {row.name: row.dense for row in rows} == {
        **{f"weight_ih_l0{d}": tokens * 16 * 5 for d in ("", "_reverse")},
        **{f"weight_hh_l0{d}": tokens * 16 * 4 for d in ("", "_reverse")},
        **{f"weight_ih_l1{d}": tokens * 16 * 8 for d in ("", "_reverse")},
        **{f"weight_hh_l1{d}": tokens * 16 * 4 for d in ("", "_reverse")},
    }
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 7, 5), [7, 4, 2], batch_first=True)
    assert rp.flops.count(model, (packed,)).rows[0].dense == 13 * 16 * 5


# -- what makes a sparsity other than it looks ------------------------------------------------------------------------


def test_a_layer_is_nearly_empty_below_one_weight_in_ten_rows() -> None:
    assert LayerCount("a", (1000, 8), 8000, 99, rows=1000).collapsed
    assert not LayerCount("a", (1000, 8), 8000, 100, rows=1000).collapsed
    (text,) = Report([LayerCount("a", (1000, 8), 8000, 99, rows=1000), LayerCount("b", (4, 4), 16, 1, rows=4)]).warnings
    assert "a (99 of 8,000 for 1,000 rows)" in text
    assert "b (" not in text


def small_and_large() -> nn.Module:
    """The second layer's weights are so small that one threshold for all cuts every one of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    with torch.no_grad():
        model[2].weight.mul_(1e-4)
    return model


def test_layers_that_collapse_are_named() -> None:
    message = r"nearly empty, .*2\.weight \(1 of 4,096 for 64 rows\)"
    with pytest.warns(UserWarning, match=message):
        rp.prune(small_and_large(), "magnitude", sparsity=0.9)
    model = small_and_large()
    sp = attach(model, "magnitude", sparsity=0.9, total_steps=1)
    assert "nearly empty" in str(sp.summary())
    with pytest.warns(UserWarning, match=message):
        sp.finalize()


def test_one_shot_pruning_collapses_no_layer_by_default() -> None:
    model = small_and_large()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = rp.prune(model, sparsity=0.9)
    assert report.sparsity == pytest.approx(0.9, abs=1e-3)
    assert all(layer.kept >= layer.rows for layer in report.layers)


def test_a_pruned_mobilenet_still_answers() -> None:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.mobilenet_v2()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rp.prune(model, sparsity=0.9)
    with torch.no_grad():
        out = model.train()(torch.randn(4, 3, 64, 64))
    assert float(out.std(0).mean()) > 1e-3  # it depends on the input: it was exactly 0


def test_standardised_convolutions_are_named() -> None:
    class StdConv2d(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            mean, std = self.weight.mean((1, 2, 3), keepdim=True), self.weight.std((1, 2, 3), keepdim=True)
            return self._conv_forward(x, (self.weight - mean) / (std + 1e-6), self.bias)

    def net() -> nn.Module:
        return nn.Sequential(StdConv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))

    said = r"standardised in forward, .* run dense: 0\.weight; keep them with dense="
    with pytest.warns(UserWarning, match=said):
        sp = attach(net())
    assert "standardised in forward" in str(sp.summary())
    with pytest.warns(UserWarning, match=said):
        rp.prune(net(), sparsity=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(net(), dense="0")


@pytest.mark.parametrize("name", ["StdConv2d", "StdConv2dSame", "ScaledStdConv2d", "ScaledStdConv2dSame"])
def test_those_of_timm_are_known(name: str) -> None:
    layers = pytest.importorskip("timm.layers")
    from rankprune.prunable import standardises

    assert standardises(getattr(layers, name)(3, 8, 3))
    assert not standardises(nn.Conv2d(3, 8, 3))


# -- settings of several methods --------------------------------------------------------------------------------------


def test_a_keyword_named_after_a_method_is_for_that_method() -> None:
    settings: dict[str, Any] = {"rigl": {"every": 4, "grow": 0.2}, "gmp": {"every": 2}, "ham": {"alpha": 10.0}}
    for name, every in (("rigl", 4), ("gmp", 2), ("gmp+ham", 2)):
        sp = attach(cnn(), name, **settings)
        assert sp.groups[0].plan.every == every  # type: ignore[attr-defined]
    assert sp.groups[0].extras[0].alpha == 10.0  # type: ignore[attr-defined]
    attach(cnn(), "feather", **settings)
    attach(cnn(), rp.methods.Feather(0.5), sparsity=None, **settings)
    sp = attach(cnn(), {"0": "rigl", "*": "gmp"}, distribution="uniform", **settings)
    assert [g.plan.every for g in sp.groups] == [4, 2]  # type: ignore[attr-defined]
    assert [g.method.distribution for g in sp.groups] == ["uniform", "uniform"]


def test_settings_of_other_methods_are_checked_too() -> None:
    with pytest.raises(ValueError, match=r"rigl has no hyper-parameter 'evry': did you mean 'every'"):
        attach(cnn(), "feather", rigl={"evry": 3})
    with pytest.raises(ValueError, match=r"ham has no option 'alfa'"):
        attach(cnn(), "feather", ham={"alfa": 3})
    with pytest.raises(ValueError, match=r"feather has no hyper-parameter 'every'"):
        attach(cnn(), "feather", every=3)
    with pytest.raises(ValueError, match=r"every goes into the method object itself"):
        attach(cnn(), rp.methods.RigL(0.5), sparsity=None, rigl={"every": 3})
