"""The commands, their options, and the help that teaches them."""

from __future__ import annotations

import argparse
from importlib import import_module

from rankprune import __version__

from .arguments import Parser

_MAIN = """\
Prune PyTorch networks to 90-99.9 % unstructured sparsity.

  rankprune demo                                    see it work, in minutes, on embedded data
  rankprune recipes 'fashion-*'                     what can be run by name
  rankprune train fashion-feather-98                run one
  rankprune prune w.pth --model torchvision:resnet18 --sparsity 0.9 --out w.safetensors
  rankprune bench w.safetensors                     its latency on the sparse engine, torch and ONNX Runtime
  rankprune models '*resnet18*'                     names for --model; your own file.py:factory works too
"""
_CODES = """\
exit codes: 0 done; 1 a run failed; 2 bad input; 3 the loss became NaN; 4 the target sparsity was not reached;
5 a process of the run was lost; 6 the processes have different masks; 130 or 143 interrupted and saved (--resume
continues). RANKPRUNE_DEBUG=1 prints a traceback.
"""
_TRAIN = """\
Train a recipe into its run folder DIR/NAME-HASH. If the run is already finished, print its result.

  rankprune train fashion-feather-98
  rankprune train cifar10-cpu-resnet20-feather-98 --data ~/data --out runs
  rankprune train fashion-rpg-98 optimizer.lr=0.05 method.lam=2 seed=1
  rankprune train fashion-feather-99 --model net.py:Net     a network of your own
  rankprune train my.yaml --resume              a recipe of your own, which may start with  base: fashion-feather-98
  rankprune train cifar10-vgg19-rpg-99 --smoke  a few steps, on random images unless --data is given
"""
_PRUNE = """\
Prune your own weights in one shot, without training, and save them.

  rankprune prune resnet18.pth --model torchvision:resnet18 --sparsity 0.9 --out pruned.safetensors
  rankprune prune own.pth --model mynet.py:make --sparsity 0.9 --out pruned.safetensors
  rankprune prune net.safetensors --model cifar-resnet20 --sparsity 0.95 --distribution erk --out pruned.safetensors
"""
_SWEEP = """\
Run many recipes, each in its own process, and compare them. You can interrupt the command and start it again: finished
runs are kept and unfinished ones resume.

  rankprune sweep sweep.yaml --out runs
  rankprune sweep sweep.yaml --jobs 4               four at a time
  rankprune sweep sweep.yaml --ray                  on Ray, started here (pip install 'rankprune[ray]')
  rankprune sweep sweep.yaml --ray HOST:6379        on a cluster whose machines share the folder --out

  # sweep.yaml: every method at every sparsity with every seed
  task: fashion
  methods: [dense, gmp, rpg]
  sparsities: [95, 98]
  seeds: [0, 1, 2]
  overrides: [epochs=4]
  vary: {optimizer.lr: [0.05, 0.1]}
"""
_ANALYZE = """\
Ranks, density, MACs and dead filters of each layer.

  rankprune analyze runs/fashion-rpg-98-1a2b3c4d
  rankprune analyze resnet18.pth --model torchvision:resnet18 --delta 0.05
"""
_BENCH = """\
Measure latency and throughput of a network on the sparse engine and on other engines, interleaved.

  rankprune bench runs/fashion-rpg-98-1a2b3c4d
  rankprune bench w.safetensors --model torchvision:resnet50 --batch 16 --against torch,onnxruntime,openvino
  rankprune bench torchvision:resnet18
  rankprune bench mypackage.nets:make --image-size 96
  rankprune bench cifar-vgg19 --against deepsparse --deepsparse ENVIRONMENT
"""
_EXPORT = """\
Export a network to a file, verify it, and print size and latency before and after.

  rankprune export runs/fashion-rpg-98-1a2b3c4d --to engine     a plan for rankprune.engine.runtime, without torch
  rankprune export runs/fashion-rpg-98-1a2b3c4d --to onnx --sparse-initializer
  rankprune export w.pth --model torchvision:resnet50 --to sparse --dtype fp16 --out w.sparse.safetensors

--to sparse       the compact file that rankprune.load reads; holds only the nonzero weights
--to safetensors  all weights, for any reader of the format
--to onnx         for any batch size; verified against torch with ONNX Runtime
--to engine       tuned for this machine and --batch; runs without torch
"""
_COMPARE = """\
Print a table of finished runs; runs that differ only in their seed share a row.

  rankprune compare runs/fashion-dense-* runs/fashion-rpg-98-*
  rankprune compare runs --latency          with the latency of one image on the engine, torch and ONNX Runtime
"""
_REPORT = """\
Write one HTML page about finished or unfinished runs: training, trade-offs, layers, masks, recipe. It works offline.

  rankprune report runs/fashion-rpg-98-1a2b3c4d
  rankprune report runs --out comparison.html
  rankprune report runs/fashion-rpg-98-* --engine         with the latency of each layer on the sparse engine
"""
_WATCH = """\
Serve the report of a run while it trains, on this machine only; the page updates itself.

  rankprune watch runs/fashion-rpg-98-1a2b3c4d
  rankprune watch runs --port 9000
"""
_FIGURES = """\
Draw figures for papers, as PNG, SVG and PDF: training, trade-off, layers.

  rankprune figures runs --out figures
"""
_DEMO = """\
Train a small CNN on embedded data, dense and to 99.5 % sparsity with Feather, RPG and gradual magnitude pruning.
Measure the latency of all four and write a report. You can interrupt the command and start it again.

  rankprune demo --open
"""
_PAPER = """\
The tables and figures of the RPG paper beside our own runs: its numbers, those its authors withdrew, and ours.

  rankprune paper list                              list the tables, and how many of their runs are done
  rankprune paper cifar10                           print one table
  rankprune paper figures                           draw the figures into results/figures/
  rankprune paper run --data DIR --for 150m         run results/queue.yaml for 150 minutes; the next call continues
  rankprune paper run --data DIR --jobs 2           two runs at a time, each with half of the cores
  rankprune paper run --scale full --data DIR       the full-scale recipes, on the GPUs of this machine
"""
_RECIPES = """\
List the recipes that `rankprune train` runs by name; without a pattern, the tasks that have recipes.

  rankprune recipes
  rankprune recipes 'fashion-*'
  rankprune recipes 'cifar10-cpu-*-98'
"""
_MODELS = """\
List the models that --model accepts; use a pattern for those of torchvision and timm.

  rankprune models
  rankprune models '*resnet18*'
  rankprune models 'timm:vit_small*'
"""
_COMPLETION = """\
Print a completion script for your shell.

  rankprune completion bash > ~/.local/share/bash-completion/completions/rankprune
  rankprune completion zsh > ~/.zfunc/_rankprune
"""


def build_parser() -> argparse.ArgumentParser:
    """Create the parser of all commands. It imports nothing heavy, so that --help and completion are fast.

    Returns:
        The parser.
    """
    parser = Parser(
        prog="rankprune", description=_MAIN, epilog=_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"rankprune {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    def command(name: str, summary: str, description: str, module: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=summary,
            description=description,
            epilog=_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        # Imported when the command runs, so that --help and completion do not import torch.
        added.set_defaults(run=lambda args: import_module(f"rankprune.cli.{module}").run(args))
        added.add_argument("--json", action="store_true", help="print JSON instead of text")
        return added

    demo = command("demo", "see it work, in minutes, on embedded data", _DEMO, "demo")
    _out(demo)
    demo.add_argument("--smoke", action="store_true", help="only a few steps of each run")
    demo.add_argument("--open", action="store_true", help="open the report in a browser at the end")

    train = command("train", "train a recipe", _TRAIN, "train")
    train.add_argument("recipe", metavar="RECIPE", help="a name of `rankprune recipes`, or a YAML file")
    _overrides(train)
    _model(train, "train this model instead of the recipe's")
    _data(train)
    _out(train)
    train.add_argument("--resume", action="store_true", help="continue an unfinished run")
    train.add_argument("--smoke", action="store_true", help="only a few steps, to check that it runs")

    sweep = command("sweep", "train many recipes and compare them", _SWEEP, "sweep")
    sweep.add_argument("file", metavar="FILE", help="a YAML file, as above, or fashion-methods")
    _overrides(sweep)
    _data(sweep)
    _out(sweep)
    sweep.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: 1; on Ray as many as fit)")
    cluster = "run on the Ray cluster at this address; without one, start Ray here"
    sweep.add_argument("--ray", nargs="?", const="local", metavar="ADDRESS", help=cluster)

    compare = command("compare", "a table of finished runs", _COMPARE, "inspect")
    compare.add_argument("runs", metavar="RUN", nargs="+", help="a run folder, or a folder of run folders")
    compare.add_argument("--latency", action="store_true", help="measure the latency of runs that have none yet")
    _model(compare, "your own model, if the runs trained one")

    report = command("report", "an HTML page about runs", _REPORT, "report")
    watch = command("watch", "the page while a run trains", _WATCH, "report")
    figures = command("figures", "figures of runs for papers", _FIGURES, "report")
    for reader in (report, watch, figures):
        reader.add_argument("runs", metavar="RUN", nargs="+", help="a run folder, or a folder of run folders")
        _model(reader, "your own model, if the runs trained one")
    report.add_argument("--out", default="report.html", metavar="FILE", help="the page (default: %(default)s)")
    report.add_argument("--engine", action="store_true", help="measure each run and its layers on the engine")
    watch.add_argument("--host", default="127.0.0.1", metavar="H", help="a loopback address (default: %(default)s)")
    watch.add_argument("--port", type=int, default=8765, metavar="N", help="0: any free port (default: %(default)s)")
    figures.add_argument("--out", default="figures", metavar="DIR", help="output folder (default: %(default)s)")

    prune = command("prune", "prune your own weights in one shot", _PRUNE, "prune")
    prune.add_argument("checkpoint", metavar="CHECKPOINT", help="a weights file (.pth, .safetensors, ...)")
    _model(prune, "the model of these weights, needed unless the file names it")
    prune.add_argument("--image-size", type=int, metavar="N", help="pixels; default: the model's own size")
    prune.add_argument("--sparsity", required=True, type=float, metavar="S", help="fraction of weights to prune: 0.9")
    prune.add_argument("--method", default="lamp", metavar="NAME", help="a one-shot method (default: %(default)s)")
    prune.add_argument("--distribution", metavar="D", help="global, lamp, uniform, er or erk (default: the method's)")
    prune.add_argument("--seed", type=int, default=0, metavar="N", help="for methods with random scores")
    prune.add_argument("--out", required=True, metavar="FILE", help="where to save: a .safetensors file")

    analyze = command("analyze", "ranks, density, MACs, dead filters per layer", _ANALYZE, "inspect")
    analyze.add_argument("checkpoint", metavar="CHECKPOINT", help="a run folder or a weights file")
    _model(analyze, "the model of these weights, needed unless the file names it")
    analyze.add_argument("--delta", type=float, default=0.1, metavar="D", help="δ of the δ-rank (default: %(default)s)")
    analyze.add_argument("--image-size", type=int, metavar="N", help="pixels, for the MACs")

    bench = command("bench", "time a network on the sparse engine beside others", _BENCH, "bench")
    bench.add_argument("model_or_file", metavar="MODEL", help="a run folder, a weights file, or a model's name")
    _model(bench, "the model of a file's weights, needed unless the file names it")
    engines = (
        "any of torch, compile, onnxruntime, onnxruntime-int8, openvino, openvino-int8, deepsparse, "
        "separated by commas (default: %(default)s)"
    )
    bench.add_argument("--against", default="torch,onnxruntime", metavar="LIST", help=engines)
    bench.add_argument("--deepsparse", metavar="DIR", help="a virtual environment that has deepsparse==1.8.0")
    bench.add_argument("--batch", type=int, default=1, metavar="N", help="images per batch (default: %(default)s)")
    bench.add_argument("--threads", type=int, metavar="N", help="default: the cores this process may use")
    bench.add_argument("--image-size", type=int, metavar="N", help="pixels; default: as the file says")

    paper = command("paper", "the paper's tables, regenerated", _PAPER, "paper")
    paper.add_argument("what", metavar="NAME", help="list, run, figures, or the name of a table")
    scales = "small networks on a CPU, or the paper's (default: %(default)s)"
    paper.add_argument("--scale", choices=("cpu", "full"), default="cpu", help=scales)
    paper.add_argument("--for", dest="duration", metavar="TIME", help="stop after 150m, 2h or 1h30m and save")
    paper.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    paper.add_argument("--again", action="store_true", help="repeat runs whose records are from older code")
    paper.add_argument(
        "--results", default="results", metavar="DIR", help="folder of queue.yaml (default: %(default)s)"
    )
    paper.add_argument("--ray", nargs="?", const="local", metavar="ADDRESS", help=cluster)
    _data(paper)
    _out(paper)

    export = command("export", "export a network to a file", _EXPORT, "export")
    export.add_argument("run_or_file", metavar="RUN", help="a run folder or a weights file")
    export.add_argument("--to", required=True, choices=("sparse", "safetensors", "onnx", "engine"), help="kind of file")
    export.add_argument("--out", metavar="FILE", help="default: export.* in the run's folder, or beside the weights")
    _model(export, "the model of a file's weights, needed unless the file names it")
    dtype = "values of a sparse file: exact (default), fp16 or bf16"
    export.add_argument("--dtype", choices=("exact", "fp16", "bf16"), default="exact", help=dtype)
    export.add_argument("--sparse-initializer", action="store_true", help="leave the zeros out of an ONNX file")
    export.add_argument("--batch", type=int, default=1, metavar="N", help="images per batch (default: %(default)s)")
    export.add_argument("--threads", type=int, metavar="N", help="default: the cores this process may use")
    export.add_argument("--image-size", type=int, metavar="N", help="pixels; default: as the file says")

    recipes = command("recipes", "list recipes", _RECIPES, "lists")
    recipes.add_argument("pattern", nargs="?", metavar="PATTERN", help="a shell pattern, such as 'fashion-*-98'")
    models = command("models", "list models", _MODELS, "models")
    models.add_argument("pattern", nargs="?", metavar="PATTERN", help="a shell pattern, such as '*resnet18*'")
    methods = command("methods", "list pruning methods", "List the pruning methods, with their papers.", "lists")
    methods.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help="a shell pattern, such as 'r*'")
    command("doctor", "what is installed and what is missing", "Show what is installed and what is missing.", "lists")
    completion = command("completion", "completion for your shell", _COMPLETION, "completion")
    completion.add_argument("shell", choices=("bash", "zsh"))
    return parser


def _overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change the recipe: optimizer.lr=0.05")


def _model(parser: argparse.ArgumentParser, what: str) -> None:
    kinds = "a name of `rankprune models`, torchvision:NAME, timm:NAME, package.module:factory or file.py:factory"
    parser.add_argument("--model", metavar="NAME", help=f"{what}; {kinds}")


def _out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="runs", metavar="DIR", help="where run folders go (default: %(default)s)")


def _data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="the folder that holds the data set")
