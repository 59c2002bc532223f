"""Python's idea of the kernels' parameters is the library's: names, order and types of fields, constants, choices."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankprune.engine.backend import build, lowering, native


def test_every_operator_of_the_library_has_parameters_in_python_that_fit() -> None:
    ours = {params.__name__: params for params in native.Params.__subclasses__() if params.__module__.startswith("rankprune")}
    assert set(native.operators()) <= set(ours)
    assert [native.number_of(ours[name]) for name in native.operators()] == list(range(len(native.operators())))
    assert lowering.lower  # importing it defines them


@pytest.mark.parametrize(
    "text",
    [
        "View out, in; int64_t slabs, channels, rows; Floats weight, bias; double eps",  # two views swapped: the same size
        "View in, out; int64_t channels, slabs, rows; Floats weight, bias; double eps",
        "View in, out; int64_t slabs, channels, rows; Floats weight, bias; int64_t eps",  # another type of the same size
        "View in, out; int64_t slabs, channels, rows; Floats weight; double eps",
        "View in, out; int64_t slabs, channels, rows; Floats weight, shift; double eps",
    ],
)
def test_other_fields_are_refused_though_their_size_may_be_the_same(text: str) -> None:
    made = type("Norm", (native.Params,), {"_fields_": native.fields(text)})
    with pytest.raises(RuntimeError, match="operator Norm has the fields"):
        native.number_of(made)


def test_an_operator_that_the_library_lacks_is_refused() -> None:
    with pytest.raises(RuntimeError, match="operator Nothing has the fields"):
        native.number_of(type("Nothing", (native.Params,), {"_fields_": native.fields("int64_t at")}))
    with pytest.raises(RuntimeError, match="no constant kNothing"):
        native.kernel_constant("kNothing")


def test_constants_are_those_of_the_header() -> None:
    header = (build.SOURCES / "api.h").read_text()
    stated = dict(re.findall(r"X\((k\w+), (\d+)\)", header))
    assert stated["kGatherCount"] == "4096"
    assert {name: str(native.kernel_constant(name)) for name in stated} == stated


def test_a_library_with_other_names_of_activations_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(native.library()._name)
    monkeypatch.setattr(native, "ACTIVATIONS", native.ACTIVATIONS[::-1])
    with pytest.raises(RuntimeError, match="does not fit this version"):
        native.bind(path)
