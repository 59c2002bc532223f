"""The paper's figures as tables of our runs, and what we ask beyond: combinations, and when the rank term helps."""

from __future__ import annotations

from typing import Any

from .evidence import LEAST, beats, best
from .measure import measurement_key
from .runs import Run
from .table import EMBEDDED_NOTE, PROTOCOL, Evidence, Table, named, numbers
from .tables_paper import Scale

_RANK = (
    "rank: mean over the layers of δ-rank / full rank at δ 0.1 (the smallest k with ‖W̄ − W̄_k‖ < δ); exact: of the "
    "numerical rank / full rank; dead: filters without a weight."
)
_BASE = ("acdc", "feather", "gmp", "rpg")
KINDS: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (
    ("rank, mean over layers", ()),
    ("rank, sum over layers", (("method.rank_reduction", "sum"),)),
    ("noise of its size, mean", (("method.rank_signal", "noise"),)),
)
ERK = (("method.distribution", "erk"),)
UNCLIPPED = (("clip_norm", None),)
BF16 = ("amp", "bf16")  # conditions, each compared with itself alone
TRIED = (4, 64)  # λ against none; 4 is the largest of the authors, and 64 has a say beside the task (`growth`)
AT = (99.0, 99.5)  # sparsities at which a combination must win to become a preset


def lambdas(evidence: Evidence, scale: Scale) -> Table:
    """Rank and accuracy against λ: mean over layers, their sum, and noise of the same size."""
    data = numbers()["lambda"]
    table = Table("lambda", data["title"], ("growth by", "λ", "accuracy", "rank", "exact", "dead"))
    table.rows.append(("task gradient alone", "0", *_described(evidence, at_lambda(evidence, scale, 0))))
    for label, settings in KINDS:
        for lam in data["lams"][1:]:
            table.rows.append((label, f"{lam:g}", *_described(evidence, at_lambda(evidence, scale, lam, settings))))
    about = f"ours: {data[scale]} at {data['sparsity']} %, gradients not clipped."
    table.notes = [*data["notes"], about, _RANK, PROTOCOL]
    return evidence.finish(table)


def at_lambda(evidence: Evidence, scale: Scale, lam: float, settings: tuple[tuple[str, Any], ...] = ()) -> list[Run]:
    data = numbers()["lambda"]
    own = UNCLIPPED if scale == "cpu" else ()  # the real recipe has no clipping that could be left out
    return evidence.find(data[scale], "rpg", data["sparsity"], (("method.lam", lam), *settings, *own))


def _described(evidence: Evidence, runs: list[Run]) -> tuple[str, ...]:
    return (
        evidence.accuracy(runs),
        evidence.number(runs, lambda r: r.delta_rank_ratio),
        evidence.number(runs, lambda r: r.exact_rank_ratio),
        evidence.number(runs, lambda r: r.dead_filters, 0),
    )


def ranks(evidence: Evidence, scale: Scale) -> Table:
    """Average rank against sparsity, of every method run without further settings."""
    data = numbers()["rank"]
    table = Table("rank", data["title"], ("net", "method", "sparsity", "rank", "exact", "dead", "accuracy"))
    for run in plain_runs(evidence):
        runs = evidence.find(run.task, run.method, run.percent)
        accuracy, rank, exact, dead = _described(evidence, runs)
        table.rows.append((net(run), named(run), f"{run.percent or 0:g}", rank or "not run", exact, dead, accuracy))
    table.notes = [*data["notes"], _RANK, PROTOCOL]
    return evidence.finish(table)


def flops(evidence: Evidence, scale: Scale) -> Table:
    """Accuracy against the MACs of one image; ERK spreads weights so that a layer's density falls with its size."""
    data = numbers()["flops"]
    table = Table("flops", data["title"], ("net", "method", "sparsity", "MACs", "accuracy"))
    for run in sorted(plain_runs(evidence, (ERK,)), key=lambda r: (r.task, r.percent or 0, r.method)):
        runs = evidence.find(run.task, run.method, run.percent, run.settings)
        share = evidence.macs(runs)
        text = "not run" if share is None else f"{share:.4f}"
        table.rows.append((net(run), named(run), f"{run.percent or 0:g}", text, evidence.accuracy(runs)))
    own = (
        "ERK: PowerPropagation, RigL and Top-KAST spread by it unless told otherwise; PowerPropagation's rows with and "
        "without the word are runs of one setting."
    )
    table.notes = [*(f"paper: {text}" for text in data["paper"]), "MACs: as a share of the dense net.", own, PROTOCOL]
    return evidence.finish(table)


def clipping(evidence: Evidence, scale: Scale) -> Table:
    """What a limit on the gradient's norm does to each method."""
    found = [r for r in evidence.runs if r.settings == UNCLIPPED]
    sparsities = sorted({r.percent for r in found if r.percent is not None})
    head = ("method", *(f"{s:g} %{', no limit' * free}" for s in sparsities for free in (False, True)))
    table = Table("clipping", "Gradients clipped to a norm of 3, and not: small VGG, accuracy by sparsity", head)
    for method in sorted({r.method for r in found}):
        both = [evidence.find("cifar10-cpu-vgg", method, s, own) for s in sparsities for own in ((), UNCLIPPED)]
        table.rows.append((method, *(evidence.accuracy(runs) for runs in both)))
    table.notes = [
        "A filter before BatchNorm has a gradient of its norm's inverse: where few and small weights are left of it, a "
        "step without a limit throws it far, and methods that compare magnitudes of all layers then keep little else.",
        PROTOCOL,
    ]
    return evidence.finish(table)


def combinations(evidence: Evidence, scale: Scale) -> Table:
    """Extras on top of methods, and whether one combination may be called best."""
    vgg = [r for r in evidence.runs if r.task.endswith("vgg") and not r.pretrained and r.percent is not None]
    vgg = [r for r in vgg if BF16 not in r.settings]
    shown = [r for r in vgg if "+" in r.method or (r.method in _BASE and not r.settings)]
    sparsities = sorted({r.percent for r in shown if r.percent is not None})
    head = ("method", *(f"{s:g} %" for s in sparsities), f"rank at {AT[-1]:g} %", "exact", "dead")
    table = Table("combinations", "Extras on top of methods: small VGG, accuracy by sparsity", head)
    for method, settings in sorted({(r.method, r.settings) for r in shown}, key=str):
        runs = {s: evidence.find("cifar10-cpu-vgg", method, s, settings) for s in sparsities}
        accuracies = [evidence.accuracy(runs[s]) for s in sparsities]
        _, *described = _described(evidence, runs.get(AT[-1], []))
        table.rows.append((_label(method, settings), *accuracies, *described))
    table.notes = [_RANK, verdict(evidence, vgg), PROTOCOL]
    return evidence.finish(table)


def verdict(evidence: Evidence, runs: list[Run]) -> str:
    """A sentence on whether a combination beats every single method by two standard errors."""
    candidates: dict[str, dict[float, list[float]]] = {}
    singles: dict[str, dict[float, list[float]]] = {}
    for run in _first_seeds(r for r in runs if r.percent in AT):
        if "+" not in run.method and run.settings:
            continue
        values = evidence.values(
            evidence.find(run.task, run.method, run.percent, run.settings), lambda r: r.accuracy_last
        )
        into = candidates if "+" in run.method else singles
        if len(values) >= LEAST:
            into.setdefault(_label(run.method, run.settings), {})[float(run.percent or 0)] = values
    # A method far behind on its first seed was not run again; the leaders are what must be beaten.
    candidates, singles = ({n: f for n, f in found.items() if len(f) == len(AT)} for found in (candidates, singles))
    rule = f"by more than two standard errors of the difference, on {LEAST} seeds each, at 99 and 99.5 %"
    if not (candidates and singles):
        lacking = "combination" if singles else "single method" if candidates else "method"
        return f"best: not decided; no {lacking} has been run on {LEAST} seeds at 99 and 99.5 % yet."
    won = best(candidates, singles, AT)
    if won is None:
        return f"best: none of {', '.join(candidates)} beats every leading single method ({', '.join(singles)}) {rule}."
    return f"best: {won} beats every leading single method ({', '.join(singles)}) {rule}."


def conditions(evidence: Evidence, scale: Scale) -> Table:
    """RPG with and without its rank term under other conditions."""
    head = ("condition", "λ", "accuracy", "at λ 0", "helps", "rank", "at λ 0")
    table = Table("conditions", "When does the rank term help? RPG with a λ and with none", head)
    pairs: dict[tuple[Any, ...], dict[tuple[float, str], Run]] = {}
    for run in evidence.runs:
        settings = dict(run.settings)
        lam, signal = settings.pop("method.lam", None), settings.pop("method.rank_signal", "rank")
        if run.method.split("+")[0] == "rpg" and lam in (0, *TRIED):
            group = (run.task, run.method, run.percent, tuple(sorted(settings.items())), run.pretrained)
            pairs.setdefault(group, {}).setdefault((lam, signal), run)
    for (task, method, sparsity, settings, pretrained), by_lam in pairs.items():
        words = [f"{task} at {sparsity:g} %", *(_word(key, value) for key, value in settings)]
        condition = ", ".join([*words, *method.split("+")[1:], *["pretrained"] * pretrained])
        without = by_lam.pop((0, "rank"), None)
        if without is None:
            continue
        for (lam, signal), run in by_lam.items():
            both = [evidence.find(r.task, r.method, r.percent, r.settings, r.pretrained) for r in (run, without)]
            accuracies = (evidence.accuracy(runs) for runs in both)
            verdict = helps(*(evidence.values(runs, lambda r: r.accuracy_last) for runs in both))
            ranks = (evidence.number(runs, lambda r: r.delta_rank_ratio) for runs in both)
            label = f"{lam:g}" + ", noise" * (signal == "noise")
            table.rows.append((condition, label, *accuracies, verdict, *ranks))
    noise = "noise: growth by noise of the rank gradient's size instead, the control."
    said = f"helps: by more than two standard errors of the difference, on {LEAST} seeds or more each."
    table.notes = [said, noise, _RANK, PROTOCOL]
    return evidence.finish(table)


def growth(evidence: Evidence, scale: Scale) -> Table:
    """Why the rank term changes so little: what it chooses, and what becomes of it."""
    head = ("method", "grown", "there an update later", "the same without the rank term", "rank / task gradient")
    table = Table("growth", "What becomes of the weights RPG grows", head, planned=1)
    record = evidence.records.newest(measurement_key("growth"))
    for case in record["result"]["cases"] if record else ():
        cells = (f"{case['survived']:.1%}", f"{case['alike']:.1%}", f"{case['size']:.3f}")
        table.rows.append((_label(case["method"], tuple(case["settings"].items())), f"{case['grown']:,}", *cells))
    if record:
        about = f"ours: {record['result']['run']}, one seed; all updates of a run together."
        table.notes += [about, *[EMBEDDED_NOTE] * record["result"].get("embedded", False)]
        table.done = 1
    table.notes += [
        "the same without the rank term: of as many places as the update before grew, outside the mask.",
        "rank / task gradient: root mean squares outside the mask, λ included, median over layers and updates.",
    ]
    return table


def helps(ours: list[float], theirs: list[float]) -> str:
    """A word on two lists of accuracies; none where there are too few to say."""
    if min(len(ours), len(theirs)) < LEAST:
        return ""
    return "yes" if beats(ours, theirs) else "harms" if beats(theirs, ours) else "no"


def plain_runs(evidence: Evidence, settings: tuple[tuple[tuple[str, Any], ...], ...] = ()) -> list[Run]:
    """One run a method and sparsity of CIFAR nets and ResNet-50, as the recipes have them or with these additions."""
    chosen = [r for r in evidence.runs if "cifar10" in r.task or "resnet50" in r.task]
    chosen = [r for r in chosen if r.settings in ((), *settings)]
    chosen = [r for r in chosen if "+" not in r.method]
    chosen = [r for r in chosen if not (r.pretrained or "vit" in r.task)]
    return sorted(_first_seeds(chosen), key=lambda r: (r.task, r.method, r.percent or 0))


def _first_seeds(runs: Any) -> list[Run]:
    found: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        found.setdefault((run.task, run.method, run.percent, run.settings), run)
    return list(found.values())


def net(run: Run) -> str:
    return run.task.removeprefix("cifar10-cpu-")


def _label(method: str, settings: tuple[tuple[str, Any], ...]) -> str:
    options = ", ".join(_word(key, value) for key, value in settings)
    return method + (f" ({options})" if options else "")


def _word(key: str, value: Any) -> str:
    if key in ("model.name", "amp"):
        return str(value)
    return "not clipped" if (key, value) in UNCLIPPED else f"{key.rpartition('.')[2]}={value}"
