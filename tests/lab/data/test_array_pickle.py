from __future__ import annotations

import os
import pickle
import subprocess

import numpy as np
import pytest

from rankprune.lab.data.array_pickle import loads_arrays


def python2_pickle(data: np.ndarray, labels: list[int], module: str) -> bytes:
    """The opcodes by which Python 2 and its numpy wrote a CIFAR batch, protocol 2."""

    def string(value: bytes) -> bytes:
        short = len(value) < 256
        return b"U" + bytes([len(value)]) + value if short else b"T" + len(value).to_bytes(4, "little") + value

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    shape = b"".join(number(n) for n in data.shape)
    array = (
        f"c{module}\n_reconstruct\n".encode() + b"cnumpy\nndarray\n" + number(0) + b"\x85" + string(b"b") + b"\x87R"
        + b"(" + number(1) + b"(" + shape + b"t"
        + b"cnumpy\ndtype\n" + string(b"u1") + number(0) + number(1) + b"\x87R"
        + b"(" + number(3) + string(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
        + b"\x89" + string(data.tobytes()) + b"tb"
    )  # fmt: skip
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + listed + b"u."


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
@pytest.mark.parametrize("rows", [2, 40])
def test_python_2_files(module: str, rows: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, (rows, 12), np.uint8)
    read = loads_arrays(python2_pickle(data, list(range(rows)), module))
    assert read[b"labels"] == list(range(rows))
    np.testing.assert_array_equal(read[b"data"], data)
    assert read[b"data"].dtype == np.uint8


@pytest.mark.parametrize("protocol", [3, 4])
def test_python_3_files(protocol: int) -> None:
    value = {b"data": np.arange(12, dtype=np.uint8).reshape(3, 4), b"names": [b"a", 1, 2.5, None, ("x", True)]}
    read = loads_arrays(pickle.dumps(value, protocol))
    np.testing.assert_array_equal(read[b"data"], value[b"data"])
    assert read[b"names"] == value[b"names"]


class Evil:
    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> tuple[object, ...]:
        return self.call[0], tuple(self.call[1:])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ((os.system, "exit 1"), r"(posix|nt)\.system"),
        ((eval, "1 + 1"), r"builtins\.eval"),
        ((subprocess.Popen, "true"), r"subprocess\.Popen"),
        ((getattr, 1, "real"), r"builtins\.getattr"),
        ((np.load, "x"), r"numpy\.load"),
    ],
)
def test_nothing_else_is_built(call: tuple[object, ...], named: str) -> None:
    for protocol in (3, 4, 5):
        with pytest.raises(pickle.UnpicklingError, match=f"asks for {named}"):
            loads_arrays(pickle.dumps({"data": Evil(*call)}, protocol))


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"\x80\x02}r\xff\xff\xff\x7f.", "stores an object at memo index 2147483647"),
        (b"\x80\x02", "damaged"),
        (pickle.dumps(np.array([{}], object), 3), "does not hold numbers"),
        (pickle.dumps(np.zeros(2, [("a", "u1")]), 3), "does not hold numbers"),
        (pickle.dumps(np.zeros((4, 4), np.uint8), 3).replace(b"K\x04K\x04", b"K\x04K\x05"), "size differs"),
        (pickle.dumps(np.zeros((4, 4), np.uint8), 3).replace(b"K\x04K\x04", b"K\x04\x88"), "without shape"),
    ],
)
def test_arrays_that_are_not_what_they_say(raw: bytes, sentence: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match=sentence):
        loads_arrays(raw)


def test_the_order_of_bytes_and_of_axes() -> None:
    for array in (np.arange(6, dtype=">i4").reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3))):
        np.testing.assert_array_equal(loads_arrays(pickle.dumps(array, 3)), array)
