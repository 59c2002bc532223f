"""The paper's figures as tables of our runs, and our own questions: combinations, and when the rank term helps."""

from __future__ import annotations

from typing import Any

from .evidence import LEAST, beats, best
from .measure import measurement_key
from .runs import Run
from .table import EMBEDDED_NOTE, PROTOCOL, Evidence, Table, named, numbers
from .tables_paper import Scale

_RANK = (
    "rank: mean over the layers of δ-rank / full rank at δ = 0.1 (the smallest k with ‖W̄ − W̄_k‖ < δ); exact: the same "
    "with the numerical rank; dead: filters without a weight."
)
_BASE = ("acdc", "feather", "gmp", "rpg")
KINDS: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (
    ("rank, mean over layers", ()),
    ("rank, sum over layers", (("method.rank_reduction", "sum"),)),
    ("noise of its size, mean", (("method.rank_signal", "noise"),)),
)
ERK = (("method.distribution", "erk"),)
UNCLIPPED = (("clip_norm", None),)
BF16 = ("amp", "bf16")  # such runs are compared only with each other
TRIED = (4, 64)  # λ: 4 is the authors' largest; 64 is large enough to matter beside the task gradient (see `growth`)
AT = (99.0, 99.5)  # sparsities at which a combination must win to become a preset


def lambdas(evidence: Evidence, scale: Scale) -> Table:
    """Build the table of rank and accuracy against λ: mean over layers, their sum, and noise of the same size.

    Args:
        evidence: The runs and their records.
        scale: "cpu" or "full".

    Returns:
        The table.
    """
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
    """Return the runs of the λ table with one λ.

    Args:
        evidence: The runs and their records.
        scale: "cpu" or "full".
        lam: λ.
        settings: Further settings.

    Returns:
        The runs.
    """
    data = numbers()["lambda"]
    own = UNCLIPPED if scale == "cpu" else ()  # the full-scale recipe does not clip
    return evidence.find(data[scale], "rpg", data["sparsity"], (("method.lam", lam), *settings, *own))


def _described(evidence: Evidence, runs: list[Run]) -> tuple[str, ...]:
    return (
        evidence.accuracy(runs),
        evidence.number(runs, lambda r: r.delta_rank_ratio),
        evidence.number(runs, lambda r: r.exact_rank_ratio),
        evidence.number(runs, lambda r: r.dead_filters, 0),
    )


def ranks(evidence: Evidence, scale: Scale) -> Table:
    """Build the table of average rank against sparsity, for every method run without further settings.

    Args:
        evidence: The runs and their records.
        scale: "cpu" or "full".

    Returns:
        The table.
    """
    data = numbers()["rank"]
    table = Table("rank", data["title"], ("net", "method", "sparsity", "rank", "exact", "dead", "accuracy"))
    for run in plain_runs(evidence):
        runs = evidence.find(run.task, run.method, run.percent)
        accuracy, rank, exact, dead = _described(evidence, runs)
        table.rows.append((net(run), named(run), f"{run.percent or 0:g}", rank or "not run", exact, dead, accuracy))
    table.notes = [*data["notes"], _RANK, PROTOCOL]
    return evidence.finish(table)


def flops(evidence: Evidence, scale: Scale) -> Table:
    """Build the table of accuracy against MACs. ERK gives large layers a lower density.

    Args:
        evidence: The runs and their records.
        scale: "cpu" or "full".

    Returns:
        The table.
    """
    data = numbers()["flops"]
    table = Table("flops", data["title"], ("net", "method", "sparsity", "MACs", "accuracy"))
    for run in sorted(plain_runs(evidence, (ERK,)), key=lambda r: (r.task, r.percent or 0, r.method)):
        runs = evidence.find(run.task, run.method, run.percent, run.settings)
        share = evidence.macs(runs)
        text = "not run" if share is None else f"{share:.4f}"
        table.rows.append((net(run), named(run), f"{run.percent or 0:g}", text, evidence.accuracy(runs)))
    own = (
        "ERK: the default distribution of PowerPropagation, RigL and Top-KAST, so PowerPropagation's rows with and "
        "without ERK in their name are the same setting."
    )
    macs = "MACs: as a fraction of the dense network's."
    table.notes = [*(f"paper: {text}" for text in data["paper"]), macs, own, PROTOCOL]
    return evidence.finish(table)


def clipping(evidence: Evidence, scale: Scale) -> Table:
    """Build the table of each method with and without gradient clipping.

    Args:
        evidence: The runs and their records.
        scale: "cpu" or "full".

    Returns:
        The table.
    """
    unclipped = [r for r in evidence.runs if r.settings == UNCLIPPED]
    sparsities = sorted({r.percent for r in unclipped if r.percent is not None})
    head = ("method", *(f"{s:g} %{', not clipped' * free}" for s in sparsities for free in (False, True)))
    title = "Gradients clipped to a norm of 3 and not clipped: small VGG, accuracy by sparsity"
    table = Table("clipping", title, head)
    for method in sorted({r.method for r in unclipped}):
        both = [evidence.find("cifar10-cpu-vgg", method, s, own) for s in sparsities for own in ((), UNCLIPPED)]
        table.rows.append((method, *(evidence.accuracy(runs) for runs in both)))
    table.notes = [
        "The gradient of a filter before BatchNorm is inversely proportional to the filter's norm. With few and small "
        "weights left in a filter, an unclipped step makes them very large, and methods that compare magnitudes across "
        "layers then keep little else.",
        PROTOCOL,
    ]
    return evidence.finish(table)


def combinations(evidence: Evidence, scale: Scale) -> Table:
    """Build the table of extras on top of methods, with the verdict whether one combination is best.

    Args:
        evidence: The runs and their records.
        scale: "cpu" or "full".

    Returns:
        The table.
    """
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
    """Say whether a combination beats every single method by two standard errors.

    Args:
        evidence: The runs and their records.
        runs: The runs to compare.

    Returns:
        One sentence.
    """
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
    # Methods that were far behind with their first seed have no more seeds, so only the leading ones are compared.
    candidates, singles = ({n: f for n, f in by_name.items() if len(f) == len(AT)} for by_name in (candidates, singles))
    rule = f"by more than two standard errors of the difference, on {LEAST} seeds each, at 99 and 99.5 %"
    if not (candidates and singles):
        lacking = "combination" if singles else "single method" if candidates else "method"
        return f"best: not decided; no {lacking} has been run on {LEAST} seeds at 99 and 99.5 % yet."
    won = best(candidates, singles, AT)
    if won is None:
        return f"best: none of {', '.join(candidates)} beats every leading single method ({', '.join(singles)}) {rule}."
    return f"best: {won} beats every leading single method ({', '.join(singles)}) {rule}."


def conditions(evidence: Evidence, scale: Scale) -> Table:
    """Build the table of RPG with and without its rank term under various conditions.

    Args:
        evidence: The runs and their records.
        scale: "cpu" or "full".

    Returns:
        The table.
    """
    head = ("condition", "λ", "accuracy", "at λ 0", "helps", "rank", "at λ 0")
    table = Table("conditions", "When does the rank term help? RPG with and without it", head)
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
    noise = "noise: the control, in which growth uses noise of the rank gradient's size."
    said = f"helps: better by more than two standard errors of the difference, with at least {LEAST} seeds each."
    table.notes = [said, noise, _RANK, PROTOCOL]
    return evidence.finish(table)


def growth(evidence: Evidence, scale: Scale) -> Table:
    """Build the table of what the rank term selects for growth, and how much of it survives.

    Args:
        evidence: The runs and their records.
        scale: Not used; there is one measurement.

    Returns:
        The table.
    """
    head = ("method", "grown", "active after the next update", "same without the rank term", "rank / task gradient")
    table = Table("growth", "How many of the weights that RPG grows survive", head, planned=1)
    record = evidence.records.newest(measurement_key("growth"))
    for case in record["result"]["cases"] if record else ():
        cells = (f"{case['survived']:.1%}", f"{case['alike']:.1%}", f"{case['size']:.3f}")
        table.rows.append((_label(case["method"], tuple(case["settings"].items())), f"{case['grown']:,}", *cells))
    if record:
        about = f"ours: {record['result']['run']}, one seed; all updates of a run together."
        table.notes += [about, *[EMBEDDED_NOTE] * record["result"].get("embedded", False)]
        table.done = 1
    table.notes += [
        "same without the rank term: the part of the grown weights that would have been chosen by the task gradient "
        "alone.",
        "rank / task gradient: ratio of root mean squares outside the mask, including λ; median over layers and "
        "updates.",
    ]
    return table


def helps(ours: list[float], theirs: list[float]) -> str:
    """Compare two lists of accuracies.

    Args:
        ours: One accuracy per run with the rank term.
        theirs: One accuracy per run without it.

    Returns:
        "yes", "no" or "harms"; empty if there are too few runs.
    """
    if min(len(ours), len(theirs)) < LEAST:
        return ""
    return "yes" if beats(ours, theirs) else "harms" if beats(theirs, ours) else "no"


def plain_runs(evidence: Evidence, settings: tuple[tuple[tuple[str, Any], ...], ...] = ()) -> list[Run]:
    """Return one run per method and sparsity of the CIFAR networks and ResNet-50, without extras.

    Args:
        evidence: The runs and their records.
        settings: Also accept runs with one of these settings.

    Returns:
        The runs, by task, method and sparsity.
    """
    chosen = [r for r in evidence.runs if "cifar10" in r.task or "resnet50" in r.task]
    chosen = [r for r in chosen if r.settings in ((), *settings)]
    chosen = [r for r in chosen if "+" not in r.method]
    chosen = [r for r in chosen if not (r.pretrained or "vit" in r.task)]
    return sorted(_first_seeds(chosen), key=lambda r: (r.task, r.method, r.percent or 0))


def _first_seeds(runs: Any) -> list[Run]:
    first: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        first.setdefault((run.task, run.method, run.percent, run.settings), run)
    return list(first.values())


def net(run: Run) -> str:
    """Return the short name of a run's network.

    Args:
        run: The run.

    Returns:
        Such as "resnet20".
    """
    return run.task.removeprefix("cifar10-cpu-")


def _label(method: str, settings: tuple[tuple[str, Any], ...]) -> str:
    options = ", ".join(_word(key, value) for key, value in settings)
    return method + (f" ({options})" if options else "")


def _word(key: str, value: Any) -> str:
    if key in ("model.name", "amp"):
        return str(value)
    return "not clipped" if (key, value) in UNCLIPPED else f"{key.rpartition('.')[2]}={value}"
