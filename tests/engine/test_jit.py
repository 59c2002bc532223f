"""Generated code: what it consists of, which lists are refused, and what happens where it is not allowed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import rankprune as rp
from rankprune.engine import runtime
from rankprune.engine.backend import alone, lowering, native, tuning
from rankprune.engine.backend.generated import Code, jit_allowed
from rankprune.engine.backend.multiply import JitConv
from rankprune.engine.backend.native import Program, View

pytestmark = pytest.mark.skipif(
    native.lanes(native.variants()[0]) < 16 or not jit_allowed(), reason="needs AVX-512, and leave to generate code"
)


def lists(outputs=3, width=3, residual=False, relu=True, **changed):
    """Output 0 reads floats 0 and 48, output 2 reads float 48, output 1 nothing."""
    arrays = {
        "values": np.array([2.0, 3.0, 5.0], np.float32),
        "bias": np.array([0.5, -0.5, 1.0, 0.0, 0.0][:outputs], np.float32),
        "offsets": np.array([0, 48, 48], np.int32),
        "channels": np.array([0, 0, 2], np.uint8),
        "starts": np.array([0, 3], np.int64),
        "base": np.array([0], np.int64),
        **changed,
    }
    return outputs, width, residual, relu, list(arrays.values())


def disassembled(code: np.ndarray, folder: Path) -> list[str]:
    """The instructions of the only chunk, by binutils. The code begins where the header says."""
    header = code[:104].view(np.int64)
    (folder / "code").write_bytes(code[header[9] : header[11]].tobytes())
    line = ["objdump", "-D", "-b", "binary", "-m", "i386:x86-64", "-M", "intel", str(folder / "code")]
    text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^ +[0-9a-f]+:\t[0-9a-f ]+\t(.+)$", text, re.M)
    found = [re.sub(r"DWORD BCST (\[.*\])", r"DWORD PTR \1{1to16}", one) for one in found]  # newer binutils
    return [re.sub(r" +", " ", re.sub("0x[0-9a-f]{9,}", "ADDRESS", one)).strip() for one in found]


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
def test_the_code_of_a_tiny_layer(tmp_path):
    code = disassembled(np.asarray(Code(*lists(residual=True))), tmp_path)
    assert code[: code.index("ret") + 1] == [
        "movabs rax,ADDRESS",  # the bias
        "vbroadcastss zmm0,DWORD PTR [rax+0x0]",
        "vbroadcastss zmm1,DWORD PTR [rax+0x4]",
        "vbroadcastss zmm2,DWORD PTR [rax+0x8]",
        "movabs rax,ADDRESS",  # 512 bytes after the weights
        "vmovups zmm31,ZMMWORD PTR [rdi+0x0]",
        "vfmadd231ps zmm0,zmm31,DWORD PTR [rax-0x200]{1to16}",
        "vmovups zmm31,ZMMWORD PTR [rdi+0xc0]",  # loaded once for both outputs
        "vfmadd231ps zmm0,zmm31,DWORD PTR [rax-0x1fc]{1to16}",
        "vfmadd231ps zmm2,zmm31,DWORD PTR [rax-0x1f8]{1to16}",
        "vpxord zmm31,zmm31,zmm31",
        *(
            line
            for i in range(3)
            for line in (
                f"vaddps zmm{i},zmm{i},ZMMWORD PTR [rsi+0x0]",
                "add rsi,r8",
                f"vmaxps zmm{i},zmm31,zmm{i}",
                f"vmovups ZMMWORD PTR [rdx+0x0],zmm{i}",
                "add rdx,rcx",
            )
        ),
        "ret",
    ]


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
def test_far_inputs_and_many_weights(tmp_path):
    """The registers move on, so that offsets stay short; an input that is not a whole vector has a long offset."""
    floats = np.repeat(np.arange(0, 24000, 24), 2).astype(np.int32)
    many = {
        "values": np.ones(floats.size, np.float32),
        "offsets": floats,
        "channels": np.tile(np.arange(2, dtype=np.uint8), floats.size // 2),
        "starts": np.array([0, floats.size], np.int64),
    }
    code = disassembled(np.asarray(Code(*lists(**many))), tmp_path)
    inputs, weights, at = [], 0, {"rdi": 0, "rax": 0}
    for line in code[: code.index("ret")]:
        if moved := re.fullmatch(r"add (rdi|rax),0x(\w+)", line):
            at[moved[1]] += int(moved[2], 16)
        if read := re.search(r"vmovups zmm31,.*\[rdi([+-])0x(\w+)\]", line):
            inputs.append(at["rdi"] + int(read[1] + read[2], 16))
        if read := re.search(r"vfmadd231ps .*\[rax([+-])0x(\w+)\]", line):
            assert at["rax"] + int(read[1] + read[2], 16) == 4 * weights - 512
            weights += 1
    assert weights == floats.size
    assert inputs == [4 * int(offset) for offset in floats[::2]]


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
def test_masked_inputs(tmp_path):
    """Masks 1 to 7 are mask registers, of which each chunk loads those it needs; mask 8 is a vector register."""
    masks = np.array([0, 3, 8], np.uint8)
    code = disassembled(np.asarray(Code(*lists(offsets=np.array([0, 5, 7], np.int32), masks=masks))), tmp_path)
    assert code[:3] == ["kmovw k1,WORD PTR [r9+0xe]", "vpmovm2d zmm30,k1", "kmovw k3,WORD PTR [r9+0x4]"]
    assert [line for line in code if "rdi" in line] == [
        "vmovups zmm31,ZMMWORD PTR [rdi+0x0]",
        "vmovups zmm31{k3}{z},ZMMWORD PTR [rdi+0x14]",
        "vpandd zmm31,zmm30,ZMMWORD PTR [rdi+0x1c]",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"channels": np.array([0, 0, 3], np.uint8)},  # no such output
        {"starts": np.array([0, 2], np.int64)},  # weights of no chunk
        {"starts": np.array([1, 3], np.int64)},
        {"starts": np.array([0, 4], np.int64)},
        {"base": np.array([1 << 40], np.int64)},
        {"base": np.array([-(1 << 40)], np.int64)},
        {"offsets": np.array([0, 1 << 28, 1 << 28], np.int32)},
        {"masks": np.array([0, 9, 0], np.uint8)},
        {"width": 31},
        {"width": 0},
        {"outputs": 0},
        {"outputs": 5, "starts": np.array([0, 3, 2], np.int64), "base": np.zeros(2, np.int64)},
        {"outputs": 4, "starts": np.array([0, 0, 3], np.int64), "base": np.zeros(2, np.int64)},  # output 2 of 1
    ],
)
def test_invalid_lists_are_refused(wrong):
    with pytest.raises(RuntimeError, match="no code can be generated"):
        Code(*lists(**wrong))


def add(code: np.ndarray, given: list[np.ndarray], arena: int = 64, **changed) -> None:
    splits = np.array([0, 1], np.int64)
    params = {
        "in": View(0, 0, 0), "out": View(0, 0, 16), "res": View(-1, 0, 0), "columns": 0, "slabs": 1, "rows": 2,
        "channels": 3, "activation": native.Active(1, 0.0, 0.0), "height": 2, "groups": 1, "by_group": 0,
        "code": code.ctypes.data, "masks": None, "splits": splits.ctypes.data, "next": None, "next_chunks": 0, **changed,
    }  # fmt: skip
    Program(native.variants()[0], 1, arena, 96).add(JitConv(*params.values()), 1, [*given, splits])


def test_the_check_of_its_operator():
    code = np.asarray(Code(*lists()))
    add(code, [code])
    with pytest.raises(ValueError, match="not given"):
        add(code, [])
    fake = np.zeros(4096, np.uint8)
    with pytest.raises(ValueError, match="not generated here"):
        add(fake, [fake])
    with pytest.raises(ValueError, match="beyond the end of the arena"):
        add(code, [code], arena=63)  # floats 48 to 63
    early = np.asarray(Code(*lists(base=np.array([-1], np.int64))))
    with pytest.raises(ValueError, match="before the beginning"):
        add(early, [early])
    masked = np.asarray(Code(*lists(masks=np.array([1, 0, 0], np.uint8))))
    with pytest.raises(ValueError, match="too short or was not given"):
        add(masked, [masked])
    few, enough = np.zeros(7, np.uint16), np.zeros(8, np.uint16)
    with pytest.raises(ValueError, match="too short or was not given"):
        add(masked, [masked, few], masks=few.ctypes.data)
    add(masked, [masked, enough], masks=enough.ctypes.data)
    with pytest.raises(ValueError, match="another layer"):
        add(code, [code], channels=4)
    with pytest.raises(ValueError, match="another layer"):
        add(code, [code], res=View(0, 0, 16))
    with pytest.raises(ValueError, match="another layer"):
        add(code, [code], activation=native.Active(0, 0.0, 0.0))
    with pytest.raises(ValueError, match="vectors"):
        add(code, [code], height=3)
    add(code, [code], next=code.ctypes.data, next_chunks=1)
    with pytest.raises(ValueError, match="chunks that the next layer does not have"):
        add(code, [code], next=code.ctypes.data, next_chunks=2)
    with pytest.raises(ValueError, match="not generated here"):
        add(code, [code, fake], next=fake.ctypes.data, next_chunks=1)


def maps(address: int) -> str | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[1]
    return None


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_code_cannot_be_written_and_is_freed():
    code = Code(*lists())
    array = np.asarray(code)
    address = array.ctypes.data
    assert maps(address) == "r-xp"
    assert not array.flags.writeable
    del code
    assert maps(address) == "r-xp"  # the array keeps it
    del array
    assert maps(address) != "r-xp"


def network() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 40, 3, padding=1), nn.ReLU(), nn.Conv2d(40, 33, 3, stride=2), nn.Hardswish()
    ).eval()
    rp.prune(net, "random", sparsity=0.8)
    return net, torch.randn(3, 3, 31, 29)


def test_a_plan_with_generated_kernels_runs_without_them(tmp_path, monkeypatch):
    net, x = network()
    with torch.no_grad():
        want = net(x).numpy()
    fast = rp.compile(net, x[:1], tune=False, threads=1)
    assert "generated" in str(fast.plan())
    fast.save(tmp_path / "net.plan")
    assert np.abs(runtime.load(tmp_path / "net.plan")(x.numpy()) - want).max() < 1e-5
    for module in (alone, lowering, tuning):
        monkeypatch.setattr(module, "jit_allowed", lambda: False)
    assert np.abs(runtime.load(tmp_path / "net.plan")(x.numpy()) - want).max() < 1e-5
    plain = rp.compile(net, x[:1], threads=1)
    assert "generated" not in str(plain.plan())
    assert (plain(x) - torch.from_numpy(want)).abs().max() < 1e-5


def test_weights_come_back_from_a_generated_layer(tmp_path):
    """A program for another size is compiled from the packed weights."""
    net, x = network()
    fast = rp.compile(net, x[:1], tune=False, threads=1)
    other = torch.randn(2, 3, 40, 17)
    with torch.no_grad():
        assert (fast(other) - net(other)).abs().max() < 1e-5


def test_a_generated_layer_keeps_nan_and_infinity():
    net = nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU()).eval()
    nn.init.constant_(net[0].weight, 1.0)
    with torch.no_grad():
        net[0].weight[4:] = 0
    fast = rp.compile(net, torch.zeros(1, 1, 8, 8), tune=False, threads=1)
    assert "generated" in str(fast.plan())
    x = torch.zeros(1, 1, 8, 8)
    x[0, 0, 0, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    got = fast(x)
    assert torch.equal(got[0, :4].isnan(), net(x)[0, :4].isnan())
    assert torch.equal(got[0, :4].nan_to_num(7.0), net(x)[0, :4].nan_to_num(7.0))
    assert not got[0, 4:].isnan().any()  # zeros are skipped
