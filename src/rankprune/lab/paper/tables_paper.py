"""The tables of the paper: its number, its erratum and our number side by side."""

from __future__ import annotations

from typing import Any, Literal

from .evidence import number
from .measure import UPDATES, measurement_key
from .table import NAMES, PROTOCOL, Evidence, Table, numbers, plain

Scale = Literal["cpu", "full"]
_SMALL = (
    "cpu scale: small networks at 16 pixels and a few epochs replace the paper's; compare methods with each other, not "
    "with the paper's accuracies."
)
_RAN = "network and data of ours"


def accuracies(name: str, evidence: Evidence, scale: Scale) -> Table:
    """Build the tables cifar10, imagenet and deit: one row per network, sparsity and method.

    Args:
        name: Name of the table in numbers.yaml.
        evidence: The runs and their records.
        scale: "cpu" or "full".

    Returns:
        The table.
    """
    data = numbers()[name]
    errata = {(e["net"], e["sparsity"], e["method"]): e["says"] for e in data.get("errata", ())}
    table = Table(name, data["title"], ("paper's network", "sparsity", "method", "paper", "erratum", "ours", _RAN))
    for net, rows in data["nets"].items():
        task, paper, also = rows[scale], rows["paper"], rows.get("also", {})
        dense = evidence.find(task, "dense", None)
        ours = (evidence.accuracy(dense), evidence.ran_on(dense))
        table.rows.append((net, "0", "dense", plain(rows["dense"]), "", *ours))
        for sparsity in sorted({*paper, *also.get("sparsities", ())}):
            methods = dict.fromkeys([*paper.get(sparsity, {}), *also.get("methods", ())])
            for method in methods:
                value = paper.get(sparsity, {}).get(method)
                runs = evidence.find(task, method, sparsity)
                if value is None and not runs:
                    continue
                erratum = errata.get((net, sparsity, method), "")
                label = NAMES.get(method, method)
                ours = (evidence.accuracy(runs), evidence.ran_on(runs))
                table.rows.append((net, f"{sparsity:g}", label, plain(value), erratum, *ours))
    table.notes = [*data.get("notes", ()), *([_SMALL] if scale == "cpu" else ()), PROTOCOL]
    return _titled(evidence, evidence.finish(table), scale, *(f"{rows['full']}-" for rows in data["nets"].values()))


def _titled(evidence: Evidence, table: Table, scale: Scale, *full: str) -> Table:
    """Add to the title which networks were run, and how many full-scale runs there are."""
    if scale == "cpu":
        count = sum(record["name"].startswith(full) and not record.get("smoke") for record in evidence.records)
        table.title += f"; ours: {table.ran or 'not run'}; {count} at full scale"
    return table


def scratch(evidence: Evidence, scale: Scale) -> Table:
    """Compare RPG from a trained network and from scratch.

    Args:
        evidence: The runs and their records.
        scale: "cpu" or "full".

    Returns:
        The table.
    """
    data = numbers()["scratch"]
    task = data["nets"]["ResNet-50"][scale]
    head = ("sparsity", "start", "paper", "ours", _RAN, "MACs, paper", "MACs, ours")
    table = Table("scratch", data["title"], head)
    for sparsity, paper in data["paper"].items():
        for start in ("pretrained", "scratch"):
            if scale == "full":
                runs = evidence.find(task, "rpg" if start == "pretrained" else "rpg-scratch", sparsity)
            else:
                runs = evidence.find(task, "rpg", sparsity, pretrained=start == "pretrained")
            macs = f"{paper['macs']:.3f}" if start == "scratch" else ""
            ours = evidence.accuracy(runs)
            cells = (plain(paper[start]), ours, evidence.ran_on(runs), macs, _macs(evidence, runs))
            table.rows.append((f"{sparsity:g}", start, *cells))
    macs_note = "MACs: of one image, as a fraction of the dense network's."
    table.notes = [macs_note, *([_SMALL] if scale == "cpu" else ()), PROTOCOL]
    return _titled(evidence, evidence.finish(table), scale, f"{data['nets']['ResNet-50']['full']}-rpg-")


def maskrcnn(evidence: Evidence, scale: Scale) -> Table:
    """Build the table of box and mask AP. At cpu scale the recipes are only smoke-tested, which gives no AP.

    Args:
        evidence: The runs and their records.
        scale: "cpu" or "full".

    Returns:
        The table.
    """
    data = numbers()["maskrcnn"]
    table = Table("maskrcnn", data["title"], ("sparsity", "method", "paper: box", "mask", "ours: box", "mask"))
    cells: list[tuple[float, str, list[float]]] = [(0, "dense", data["dense"])]
    cells += [(s, method, both) for s, row in data["paper"].items() for method, both in row.items()]
    for sparsity, method, both in cells:
        runs = evidence.find(data["task"], method, sparsity, smoke=scale == "cpu")
        box, mask = _average_precision(evidence, runs, scale)
        table.rows.append((f"{sparsity:g}", NAMES[method], f"{both[0]:.1f}", f"{both[1]:.1f}", box, mask))
    if scale == "cpu":
        table.notes.append(
            "cpu scale: each recipe was run for a few steps on generated images, to check that it works; this gives "
            "no AP, so our columns say not run."
        )
    table.notes.append(
        "Frozen parts are neither pruned nor counted. λ = 0.5 and δ̃ = 0.2 are our choice; the authors' are unpublished."
    )
    return _titled(evidence, evidence.finish(table), scale, f"{data['task']}-")


def _average_precision(evidence: Evidence, runs: list[Any], scale: Scale) -> tuple[str, str]:
    if not runs:
        return "not run", "not run"
    records = evidence.records_of(runs)
    if not records:
        text = "not run" if runs[0].known() else f"no recipe {runs[0].name}"
        return text, text
    if any("failed" in record for record in records):
        return "failed", "failed"
    if scale == "cpu":
        return "not run", "not run"
    box = [100 * value for value in evidence.values(runs, lambda r: r.accuracy_last)]
    mask = [100 * value for value in evidence.values(runs, lambda r: r.scores.get("mask_ap_last"))]
    return number(box, 1), number(mask, 1)


def _macs(evidence: Evidence, runs: list[Any]) -> str:
    share = evidence.macs(runs)
    return "" if share is None else f"{share:.3f}"


def runtime(evidence: Evidence, scale: Scale) -> Table:
    """Build the table of milliseconds per image.

    Args:
        evidence: The runs and their records.
        scale: Not used; there is one measurement.

    Returns:
        The table.
    """
    data = numbers()["runtime"]
    head = ("sparsity", "paper: top-1", "paper: ms", "x dense", "ours: ms", "x dense", "x torch", "x onnxruntime")
    table = Table("runtime", data["title"], head, planned=1)
    record = evidence.records.newest(measurement_key("runtime"))
    times = record["result"]["times"] if record else {}

    def faster(peer: str, mine: dict[str, float]) -> str:
        time = times.get(peer)
        return " / ".join(f"{time[by] / mine[by]:.2f}" for by in ("minimum", "median")) if time else "absent"

    for sparsity, (milliseconds, top1) in data["paper"].items():
        paper = (f"{top1:.2f}", f"{milliseconds:.2f}", f"{data['paper'][0][0] / milliseconds:.2f}")
        cells: tuple[str, ...] = ("not run", "", "", "")
        if (mine := times.get(f"{sparsity:g}")) is not None:
            spent = " / ".join(f"{1e3 * mine[by]:.1f}" for by in ("minimum", "median"))
            cells = (spent, *(faster(peer, mine) for peer in ("0", "torch", "onnxruntime")))
        table.rows.append(("dense" if not sparsity else f"{sparsity:g}", *paper, *cells))
    if record:
        bench = record["result"]
        how = f"{bench['threads']} threads, one image of {bench['size']} pixels, {bench['rounds']} rounds, interleaved"
        table.notes.append(f"ours: {bench['model']}; {record['environment']['cpu']}, {how}; minimum / median.")
        table.notes.append(
            "x: speed-up of the engine over itself, torch and ONNX Runtime, each with the dense network."
        )
        table.done = 1
    table.notes.append("paper: DeepSparse on another CPU; compare the ratios to dense, not the milliseconds.")
    return table


def overhead(evidence: Evidence, scale: Scale) -> Table:
    """Build the table of what the rank gradient costs, and of training FLOPs against dense training.

    Args:
        evidence: The runs and their records.
        scale: "cpu" or "full".

    Returns:
        The table.
    """
    data = numbers()["overhead"]
    table = Table("overhead", data["title"], ("what", "paper", "ours"), planned=1)
    record = evidence.records.newest(measurement_key("overhead"))
    big, small = (record["result"][key] for key in ("resnet50", "small")) if record else ({}, {})
    svd, whole = data["svd"], data["whole"]
    share = svd["minutes"] / whole["minutes"]

    def ours(result: dict[str, Any], key: str, form: str) -> str:
        return format(result[key], form) if result else "not run"

    dense, each = data["dense_training_flops"], 60 * svd["minutes"] / UPDATES
    table.rows += [
        ("SVD FLOPs of all updates, as the paper counts them", f"{svd['flops']:.3g}", ours(big, "svd_flops", ".3g")),
        ("approximate FLOPs of the closed form", "", ours(big, "gram_flops", ".3g")),
        ("FLOPs of dense training, ResNet-50", f"{dense:.3g}", ours(big, "dense_training_flops", ".3g")),
        (
            "rank gradient, fraction of training time",
            f"{share:.1%} (of {whole['minutes']} min)",
            ours(small, "share", ".2%"),
        ),
        ("rank gradient, seconds per update, ResNet-50", f"{each:.2f}", ours(big, "rank_seconds", ".2f")),
    ]
    task = {"cpu": "cifar10-cpu-resnet20", "full": "imagenet-resnet50"}[scale]
    for method, value in data["training_share"].items():
        runs = evidence.find(task, method, 90)
        text = evidence.number(runs, lambda r: r.training_share, 2) or "not run"
        table.rows.append((f"training FLOPs at 90 %, fraction of dense: {NAMES[method]}", f"{value:.2f}", text))
    if small:
        table.notes.append(
            f"fraction of training time, ours: {small['model']}, an update every {small['every']} steps."
        )
    table.notes.append(
        "paper: V100 GPUs; ours: a CPU. Training FLOPs: three passes per step over the weights kept at that step."
    )
    finished = evidence.finish(table)
    finished.planned, finished.done = finished.planned + 1, finished.done + (record is not None)
    return finished
