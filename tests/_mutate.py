"""Seeded damage to the files of every format we read, and a program that reads them: `_mutate.py FORMAT,… SEED COUNT`.

A case is a good file with bits flipped, parts cut or repeated, or a field of its description made extreme, its checksum
right again. Reading it must end soon, in a result or in one of the format's own exceptions with one sentence.
"""

from __future__ import annotations

import faulthandler
import hashlib
import io
import json
import math
import os
import pickle
import random
import resource
import signal
import struct
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 20  # of CPU time that one case may take; waiting for a busy machine does not count
NUMBERS = [-1, 0, 1, 2, 3, 5, 7, 8, 9, 64, 255, 256, 4096, 65535, 65536, 1 << 20, (1 << 20) + 1, (1 << 31) - 1, 1 << 31,
           1 << 32, 1 << 40, 1 << 53, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 10**400, -(1 << 31), -(1 << 63), 0.5, 1e-45,
           1e308, -1e308, math.inf, -math.inf, math.nan]  # fmt: skip
OTHERS = ["", "x", "\0", "x" * 1000, None, [], {}, [[]], [0] * 100, {"x": 1}, True, False]
WORDS = [b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\x00\x00\x80\x7f", b"\x01\0\0\0"]


class Format(NamedTuple):
    """Good files, how they are damaged, and how they are read; `errors` are what the reader may raise."""

    good: Callable[[], list[Any]]
    damage: Callable[[Any, random.Random], bytes]
    read: Callable[[Path], Any]
    errors: Callable[[], tuple[type[Exception], ...]]
    suffix: str = ""


def bytes_of(data: bytes, rng: random.Random) -> bytes:
    """Some bits flipped, cut off, repeated, removed or overwritten; half of the time near the beginning."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if not found:
            break
        at = rng.randrange(len(found) if rng.random() < 0.5 else min(len(found), 512))
        match rng.randrange(6):
            case 0:
                found[at] ^= 1 << rng.randrange(8)
            case 1:
                del found[at:]
            case 2:
                found[at:at] = found[at : at + rng.randrange(1, 40)]
            case 3:
                del found[at : at + rng.randrange(1, 40)]
            case 4:
                found[at : at + 4] = rng.choice(WORDS)
            case _:
                found[at : at + 8] = rng.randbytes(8)
    return bytes(found)


def _spots(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            found += _spots(tree[key], (*path, key))
    return found


def tree_of(tree: Any, rng: random.Random) -> Any:
    """A copy of a tree of dicts and lists with a field or two replaced, moved by little, dropped, added or swapped."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        spots = _spots(tree)
        if not spots:
            return rng.choice(OTHERS)
        *path, last = rng.choice(spots)
        spot = tree
        for key in path:
            spot = spot[key]
        old, kind = spot[last], rng.random()
        if kind < 0.35 and type(old) is int:
            spot[last] = old + rng.choice((-8, -1, 1, 2, 8, 64))
        elif kind < 0.5:
            *other, end = rng.choice(spots)
            value = tree
            for key in (*other, end):
                value = value[key]
            spot[last] = json.loads(json.dumps(value))
        elif kind < 0.6:
            del spot[last]
        elif kind < 0.7 and isinstance(spot, list):
            spot.insert(last, old)
        elif kind < 0.75 and isinstance(spot, dict):
            spot[rng.choice(["groups", "x", "", f"{last}_"])] = old
        else:
            spot[last] = rng.choice(NUMBERS if rng.random() < 0.75 else OTHERS)
    return tree


# --- plans of the engine ---

_PLAN = struct.Struct("<8sIQ32s")


def _plans() -> list[bytes]:
    """Networks that use every operator."""
    import numpy as np

    from rankprune.engine import planfile
    from rankprune.engine.backend import selfcheck
    from rankprune.engine.backend.choice import Choice, KernelPlan

    sys.path.insert(0, str(Path(__file__).parent / "engine"))
    from test_planfile import elementwise, network  # type: ignore[import-not-found]

    found = []
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        for graph in (network(), elementwise(), selfcheck.image_net(rng, 3)[0], selfcheck.token_net(rng)):
            choices = {i: Choice(1, 5, 2) for i, node in enumerate(graph.nodes) if node.weight is not None}
            planfile.write(Path(folder) / "plan", graph, KernelPlan(choices, choices), True)
            found.append((Path(folder) / "plan").read_bytes())
    return found


def _damaged_plan(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return bytes_of(data, rng)
    if rng.random() < 0.3:
        return _extreme_plan(rng)
    length = _PLAN.unpack_from(data)[2]
    head, rest = json.loads(data[_PLAN.size :][:length]), bytearray(data[_PLAN.size + length :])
    header = tree_of(head, rng) if rng.random() < 0.9 else head
    if rng.random() < 0.3:
        at = rng.randrange(len(rest) // 4) * 4
        rest[at : at + 4] = rng.choice(WORDS)
    return sealed_plan(header, bytes(rest))


def sealed_plan(header: Any, rest: bytes) -> bytes:
    """A plan whose checksum is right, whatever it says."""
    from rankprune.engine import planfile

    text = json.dumps(header).encode()
    body = text + b" " * (-(_PLAN.size + len(text)) % 64) + rest
    size = len(body) - len(rest)
    return _PLAN.pack(b"RPENGINE", planfile.VERSION, size, hashlib.sha256(body).digest()) + body


def _extreme_plan(rng: random.Random) -> bytes:
    """One operator whose numbers fit each other and are far larger than a network's."""

    def some(most: int) -> int:
        return int(2 ** (rng.random() * math.log2(most)))

    head: dict[str, Any] = {"inputs": [0], "outputs": [1], "blobs": [], "eight": rng.random() < 0.5, "choices": []}
    if rng.random() < 0.3:
        head["outputs"] *= some(50)
    rest = bytearray()

    def array(kind: str, shape: list[int], content: bytes) -> dict[str, Any]:
        head["blobs"].append([len(rest), len(content)])
        rest.extend(content + bytes(-len(content) % 64))
        return {"type": kind, "shape": shape, "blob": len(head["blobs"]) - 1}

    op = rng.choice(["conv", "conv", "pool", "linear", "attention"])
    attrs: dict[str, Any] = {"activation": "relu"}
    weight: dict[str, Any] | None = None
    if op in ("conv", "pool"):
        source, kernel, out = [some(64)], [], []
        attrs |= {"stride": [], "padding": [], "dilation": []}
        for _ in range(2):
            size, k, stride, spread = some(64), some(4096 if op == "pool" else 64), some(1 << 20), some(1 << 12)
            spread = 1 if k == 1 else spread
            pad = max(rng.choice((0, k // 2, some(1 << 20))), -(-(spread * (k - 1) + 1 - size) // 2))
            pad = pad if op == "conv" else min(pad, k // 2)
            room = size + 2 * pad - spread * (k - 1) - 1
            source.append(size)
            kernel.append(k)
            out.append(room // stride + 1)
            for name, value in (("stride", stride), ("padding", pad), ("dilation", spread)):
                attrs[name].append(value)
        outputs = source[0] if op == "pool" else some(64)
        shapes = [source, [outputs, *out]]
        if op == "pool":
            attrs = {k: v for k, v in attrs.items() if k != "activation"}
            attrs |= {"kernel": kernel, "average": rng.randrange(2), "count_pad": rng.randrange(2)}
        else:
            attrs["groups"] = rng.choice([g for g in (1, source[0]) if outputs % g == 0])
            weight = {"shape": [outputs, source[0] // attrs["groups"], *kernel]}
    elif op == "linear":
        tokens, ins, outputs = ([some(1 << 12)] if rng.random() < 0.5 else []), some(1 << 20), some(1 << 16)
        shapes, weight = [[*tokens, ins], [*tokens, outputs]], {"shape": [outputs, ins]}
    else:
        heads, dim, tokens_in = some(64), some(64), some(1 << 14)
        shapes = [[tokens_in, heads * dim]] * 2
        attrs = {x: [0, 0, 0, 0, 0, dim, 1, 0, 0, 1] for x in "qkv"}
        attrs |= {"sizes": [1, heads, tokens_in, tokens_in, dim, dim], "stacked": rng.randrange(2)}
    arrays = {"scale": array("f4", [1, 1], struct.pack("<f", 0.1))} if op == "attention" else {}
    if weight is not None:
        few = sorted(rng.sample(range(min(math.prod(weight["shape"]), 1 << 30)), min(3, math.prod(weight["shape"]))))
        weight["values"] = array("f4", [len(few)], struct.pack(f"<{len(few)}f", *([1.0] * len(few))))
        weight["position"] = array("i4", [len(few)], struct.pack(f"<{len(few)}i", *few))
        arrays = {"bias": array("f4", [weight["shape"][0]], bytes(4 * weight["shape"][0]))}
        choice = {"width": rng.choice((1, 2, 4)), "height": some(20), "block": rng.choice((0, 1, 7)), "groups": some(9),
                  "dense": rng.random() < 0.5}  # fmt: skip
        head["choices"] = [[images, 0, choice] for images in (0, 1)]
    node = {"op": op, "inputs": [0] * (3 if op == "attention" else 1), "output": 1, "name": "n", "attrs": attrs,
            "arrays": arrays, "weight": weight}  # fmt: skip
    if op == "conv" and rng.random() < 0.1:
        node["inputs"] = [0, 0]
    return sealed_plan({**head, "shapes": shapes, "nodes": [node]}, bytes(rest))


def _read_plan(path: Path) -> None:
    import numpy as np

    from rankprune.engine import runtime

    net = runtime.load(path, 1, max_memory=1 << 26, max_work=1e7)
    for batch in (1, 8):
        net(*(np.ones((batch, *shape), np.float32) for shape in net.input_shapes))


def _plan_errors() -> tuple[type[Exception], ...]:
    from rankprune.engine.planfile import DamagedPlan

    return (DamagedPlan,)


# --- safetensors: ours, and any ---


def _state() -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    kept = torch.rand(40, 30, generator=generator) < 0.1
    some = torch.rand(9, 9, generator=generator) < 0.4
    return {"a": torch.randn(40, 30, generator=generator) * kept, "b": torch.randn(7, generator=generator),
            "c": torch.randn(9, 9, generator=generator).half() * some, "n": torch.tensor(3)}  # fmt: skip


def _sparse_files() -> list[tuple[bytes, Any, dict[str, Any]]]:
    """The bytes, and the description and tensors that they are made of."""
    from safetensors import safe_open

    import rankprune

    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f"
        state = _state()
        for values in ("exact", "float16"):
            rankprune.save({**state, "tied": state["a"]}, path, values=values)
            with safe_open(str(path), "pt") as file:
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
                found.append((path.read_bytes(), json.loads(file.metadata()["rankprune"]), tensors))
    return found


def _damaged_sparse(good: tuple[bytes, Any, dict[str, Any]], rng: random.Random) -> bytes:
    import safetensors.torch
    import torch

    from rankprune.formats import sparse

    data, entry, tensors = good
    if rng.random() < 0.2:
        return bytes_of(data, rng)
    if rng.random() < 0.2:
        return _damaged_safetensors(data, rng)
    entry, tensors = tree_of(entry, rng), dict(tensors)
    if rng.random() < 0.4:
        blob = bytes_of(tensors["rankprune.sparse"].numpy().tobytes(), rng) or b"x"
        tensors["rankprune.sparse"] = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
    if isinstance(entry, dict):
        entry["crc"] = sparse._checksum(entry, tensors)
    return safetensors.torch.save(tensors, {"rankprune": json.dumps(entry)})


def _read_sparse(path: Path) -> None:
    import rankprune

    rankprune.load(path, max_bytes=1 << 26)


def _sparse_errors() -> tuple[type[Exception], ...]:
    from rankprune.formats.sparse import TooLarge

    return (ValueError, TooLarge)


def _plain_files() -> list[bytes]:
    import safetensors.torch

    return [safetensors.torch.save(_state(), {"made": "by hand"})]


def _damaged_safetensors(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return bytes_of(data, rng)
    length = int.from_bytes(data[:8], "little")
    text = json.dumps(tree_of(json.loads(data[8 : 8 + length]), rng)).encode()
    text += b" " * (-len(text) % 8)
    size = len(text) if rng.random() < 0.9 else rng.choice([n for n in NUMBERS if type(n) is int and 0 <= n < 1 << 64])
    return size.to_bytes(8, "little") + text + data[8 + length :]


def _read_weights(path: Path) -> None:
    from rankprune.lab.models.weights import read_state_dict

    read_state_dict(path)


def _weight_errors() -> tuple[type[Exception], ...]:
    from rankprune.lab.models.errors import WeightsError

    return (WeightsError,)


# --- checkpoints ---


def _checkpoints() -> list[bytes]:
    import torch

    from rankprune.lab.training import checkpoint

    net = torch.nn.Linear(5, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "last.ckpt"
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "names": ["a", None, 2.5]}
        checkpoint.write(path, state)
        return [path.read_bytes()]


def _damaged_archive(data: bytes, rng: random.Random) -> bytes:
    """Damage to a member of the zip archive that torch writes, mostly the pickle, or to the archive."""
    if rng.random() < 0.3:
        return bytes_of(data, rng)
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as new:
        names = old.namelist()
        chosen = rng.choice([*names, *[name for name in names if name.endswith("data.pkl")] * 4])
        for name in names:
            content = old.read(name)
            new.writestr(name, bytes_of(content, rng) if name == chosen else content)
    return made.getvalue()


def _damaged_checkpoint(data: bytes, rng: random.Random) -> bytes:
    """Mostly with a right checksum."""
    if rng.random() < 0.2:
        return bytes_of(data, rng)
    body = _damaged_archive(data[:-66] + b"\0\0", rng)
    return body[:-2] + struct.pack("<H", 64) + hashlib.sha256(body).hexdigest().encode()


def _read_checkpoint(path: Path) -> None:
    from rankprune.lab.training import checkpoint

    checkpoint.read(path)


def _torch_files() -> list[bytes]:
    import torch

    made = io.BytesIO()
    torch.save({"state_dict": _state(), "epoch": 3}, made)
    return [made.getvalue()]


# --- recipes ---

_YAML = ["&a [*a]", "*b", "!!int ''", "!!timestamp x", "!!float .", "!!binary ?", "!!python/name:os.system", "<<: 1", "? [1]",
         "- - - -", "[" * 60, "{" * 60, "|", ">", "'", '"', "%YAML 9.9", "---", "\t", "\0", "\ud800", "1:2:3", "0x", "0b",
         "1e999", "-.inf", ".nan", "9" * 400, "~", "true", "2023-02-31", "x" * 300, "é", "#"]  # fmt: skip


def _recipes() -> list[str]:
    from rankprune.lab.recipes.load import load_recipe, to_dict
    from rankprune.lab.recipes.yaml_file import dump

    return [dump(to_dict(load_recipe(name))) for name in ("fashion-rpg-98", "fashion-dense")]


def _damaged_recipe(good: str, rng: random.Random) -> bytes:
    from rankprune.lab.recipes.yaml_file import dump, parse

    if rng.random() < 0.2:
        return bytes_of(good.encode(), rng)
    if rng.random() < 0.5:
        changed = tree_of(parse(good, ""), rng)
        return dump(changed).encode() if isinstance(changed, dict) else b"- 1\n"
    lines = good.splitlines()
    for _ in range(rng.choice((1, 2, 5))):
        at = rng.randrange(len(lines))
        key = lines[at].partition(":")[0]
        lines[at] = rng.choice([f"{key}: {rng.choice(_YAML)}", rng.choice(_YAML), f"{lines[at]}\n{lines[at]}", f"  {lines[at]}"])
    return "\n".join(lines).encode(errors="surrogatepass")


def _read_recipe(path: Path) -> None:
    from rankprune.lab.recipes.load import fingerprint, load_recipe

    fingerprint(load_recipe(path))


def _recipe_errors() -> tuple[type[Exception], ...]:
    from rankprune.lab.recipes.errors import RecipeError

    return (RecipeError,)


# --- records of the paper, results of runs ---


def _records() -> list[Any]:
    from _runs import a_result

    result = a_result("n", 0.9, 0.5, 5, 10)
    return [{"run": "r", "code": "c", "name": "n", "seed": 0, "finished": "2024", "result": result}]


def _results() -> list[Any]:
    from _runs import a_result

    return [a_result("n", 0.9, 0.5, 5, 10, top5_last=0.99, survival={"1": 0.5})]


def _damaged_json(good: Any, rng: random.Random) -> bytes:
    """Mostly with a right checksum."""
    from rankprune.lab.runs.sealed_json import seal

    if rng.random() < 0.3:
        return bytes_of(json.dumps(seal(good)).encode(), rng)
    changed = tree_of(good, rng)
    return json.dumps(seal(changed) if isinstance(changed, dict) and rng.random() < 0.9 else changed).encode()


def _read_record(path: Path) -> None:
    from rankprune.lab.paper.records import Records

    list(Records(path.parent))


def _read_result(path: Path) -> None:
    from rankprune.lab.runs.result import RunResult
    from rankprune.lab.runs.run_folder import RESULT, RunFolder

    path.replace(path.parent / RESULT)
    found = RunFolder(path.parent).result()
    assert found is None or isinstance(found, RunResult)


def _run_errors() -> tuple[type[Exception], ...]:
    from rankprune.lab.errors import OffTarget, RunError

    return (RunError, OffTarget)


# --- pickled arrays of CIFAR ---


def _pickles() -> list[bytes]:
    import numpy as np

    sys.path.insert(0, str(Path(__file__).parent / "lab" / "data"))
    from test_array_pickle import python2_pickle  # type: ignore[import-not-found]

    data = np.random.default_rng(0).integers(0, 256, (2, 3072), np.uint8)
    modern = pickle.dumps({b"data": data, b"labels": [1, 2]}, 4)
    return [python2_pickle(data, [1, 2], "numpy.core.multiarray"), modern]


def _read_pickle(path: Path) -> None:
    from rankprune.lab.data import cifar10

    cifar10._decode(path, path.read_bytes())


def _data_errors() -> tuple[type[Exception], ...]:
    from rankprune.lab.data.errors import DataError

    return (DataError,)


FORMATS = {
    "plan": Format(_plans, _damaged_plan, _read_plan, _plan_errors),
    "sparse": Format(_sparse_files, _damaged_sparse, _read_sparse, _sparse_errors, ".safetensors"),
    "safetensors": Format(_plain_files, _damaged_safetensors, _read_weights, _weight_errors, ".safetensors"),
    "checkpoint": Format(_checkpoints, _damaged_checkpoint, _read_checkpoint, lambda: (ValueError,), ".ckpt"),
    "torch": Format(_torch_files, _damaged_archive, _read_weights, _weight_errors, ".pt"),
    "recipe": Format(_recipes, _damaged_recipe, _read_recipe, _recipe_errors, ".yaml"),
    "record": Format(_records, _damaged_json, _read_record, _run_errors, ".json"),
    "result": Format(_results, _damaged_json, _read_result, _run_errors, ".json"),
    "pickle": Format(_pickles, bytes_of, _read_pickle, _data_errors),
}


def attack(name: str, seed: int, count: int) -> dict[str, Any]:
    """Read so many damaged files; what was raised that is not one of the format's sentences is listed under `raw`."""
    form = FORMATS[name]
    good, errors, rng = form.good(), form.errors(), random.Random(seed)
    found: dict[str, Any] = {"read": 0, "refused": 0, "raw": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"case{form.suffix}"
        for case in range(count):
            path.write_bytes(form.damage(rng.choice(good), rng))
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            print(case, file=sys.stderr)
            try:
                form.read(path)
                found["read"] += 1
            except Exception as error:
                sentence = str(error)
                found["refused"] += 1
                if type(error) not in errors or "\n" in sentence or not 10 < len(sentence) < 500:
                    found["raw"].append(f"case {case}: {type(error).__name__}: {sentence[:300]}")
            signal.setitimer(signal.ITIMER_PROF, 0)
    return found


def bounded(name: str, seed: int, count: int, library: list[str]) -> dict[str, Any]:
    """`attack` with the bounds that a reader must keep to."""
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)  # the traceback of a case that takes too long, then the end
    if library:  # kernels with sanitizers, which need all addresses; their own option bounds the memory
        from rankprune.engine.backend import native

        bound = native.bind(Path(library[0]))
        native.library = lambda: bound  # type: ignore[assignment]
    attack(name, seed, 3)  # which imports what it needs
    if not library:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)
    return attack(name, seed, count)


def main() -> None:
    """Each format in a process of its own, forked from this one, which has imported for all of them what is slow."""
    names, seed, count, *library = sys.argv[1:]
    if "," in names:
        import torch  # noqa: F401
    for name in names.split(","):
        print(name, file=sys.stderr, flush=True)
        child = os.fork()
        if not child:
            code = 1
            try:
                print(json.dumps({"name": name, **bounded(name, int(seed), int(count), library)}), flush=True)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise SystemExit(f"{name} ended with {code}")


if __name__ == "__main__":
    main()
