"""`rankprune.compile`: runs a torch module on the sparse engine, with the same call."""

from __future__ import annotations

import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankprune.engine.backend.build import NoCompiler
from rankprune.engine.backend.engine import thread_count
from rankprune.engine.backend.selfcheck import best_variant
from rankprune.engine.frontend.call import Call, Signature, bind, of_example, take_apart, unwrap
from rankprune.engine.frontend.capture import LEFT_OUT
from rankprune.engine.frontend.trace import CannotFollow, SelfChanging, trace

from .fallback import best_threads, make_program, without_losers
from .planfile import write
from .program import Maker, Native, Program, torch_threads
from .progress import progress
from .report import Layer, Report, counted, island_layers, native_layers
from .timing import NOISY, ratios, samples
from .verify import need_equal, run_module

MARGIN = 1.02  # torch runs the whole module if the engine takes more than this times as long
PROGRAMS = 16  # number of input sizes kept


def compile(module: nn.Module, example: Any, threads: int | Literal["auto"] = "auto", tune: bool = True) -> Compiled:
    """Compile a module in evaluation mode for any batch size.

    On a terminal the current step is shown on stderr.

    Args:
        module: The module; DataParallel and torch.compile are unwrapped. It must not change afterwards.
        example: A tensor (the only argument), a tuple of all positional arguments, or a dict of keyword arguments. Use
            the batch size that you will run: for a few images or more, kernels for batches are measured too.
        threads: Number of threads. "auto" measures counts up to the cores of this process and keeps the best; without
            `tune` it takes all cores.
        tune: Measure kernels layer by layer (and cache the results), and leave to torch what torch runs faster. Without
            it, kernels are chosen by the layers' shapes and nothing is measured.

    Returns:
        A callable that takes and returns what the module does.

    Raises:
        ValueError: The module is in training mode, changes its own buffers, does not run on the example, or depends on
            the batch size so that the result differs from torch's for the example or for one image of it.
        ImportError: The kernels are not built and there is no C++ compiler.

    Example:
        >>> fast = rankprune.compile(model.eval(), torch.zeros(1, 3, 224, 224))
        >>> logits = fast(images)
        >>> print(fast.report)
    """
    try:
        variant = best_variant()
    except NoCompiler as error:
        raise ImportError(f"the sparse engine is not built: {error}") from None
    module = unwrap(module)
    if not isinstance(module, nn.Module):
        raise ValueError(f"compile needs a torch.nn.Module, not a {type(module).__name__}: put it into one")
    if module.training:
        raise ValueError("compile needs the model in evaluation mode: call model.eval() first")
    call = take_apart(*bind(module, *of_example(example)))
    automatic = threads == "auto"
    count = thread_count(None if threads == "auto" else threads)
    with progress() as say:
        return Compiled(module, call, Maker(variant, count, tune, call.batch, say=say), automatic and tune)


@dataclass(frozen=True)
class Entry:
    """How inputs of one signature run: by a program, or by the module, in which case `torch_only` says why."""

    program: Program | None
    call: Call
    excluded: frozenset[str]
    torch_only: str = ""


class Compiled:
    """A compiled module. It takes and returns what the module does, and may be called from several threads at once.

    Inputs of other sizes than the example's (a longer sequence, a larger image) are compiled at their first call, with
    the kernels that were chosen for the example; the last 16 sizes are kept.

    Args:
        module: The module.
        call: The example, as arguments.
        maker: Turns segments of the graph into engines.
        choose_threads: Measure which number of threads is fastest.
    """

    report: Report

    def __init__(self, module: nn.Module, call: Call, maker: Maker, choose_threads: bool = False) -> None:
        began = time.perf_counter()
        self._module, self._maker = module, maker
        self._versions = self._now()
        self._entries: OrderedDict[Signature, Entry] = OrderedDict()
        self._lock = threading.Lock()
        self.variant, self.threads, self.tuned = maker.variant, maker.threads, maker.tune
        self._first = self._compile(call, maker)
        tried: dict[int, float] = {}
        if choose_threads and maker.threads > 1 and self._first.program is not None and self._first.program.natives:
            maker.say("measuring thread counts")
            tried = best_threads(self._first.program, call, maker.threads)
            self.threads = next(reversed(tried))
        spent = time.perf_counter() - began
        maker.say("comparing with torch")
        with torch_threads(maker.threads):
            self.report = replace(self._measured(call, spent), threads=self.threads, tried=tried)
        self._entries[call.signature] = self._first

    def _compile(self, call: Call, maker: Maker, excluded: frozenset[str] = frozenset()) -> Entry:
        buffers = {name: b.clone() for name, b in self._module.named_buffers()}
        maker.say("torch.export")
        try:
            traced = trace(self._module, call)
        except CannotFollow as error:
            run_module(self._module, call)
            _need_unchanged(self._module, buffers)
            warnings.warn(f"{error}; torch runs the whole module", stacklevel=4)
            return Entry(None, call, excluded, str(error))
        maker.say("lowering")
        program, excluded = make_program(traced, maker, excluded)
        maker.say("verifying")
        need_equal(self._module, program, call)
        _need_unchanged(self._module, buffers)
        if maker.tune and maker.known is None:
            maker.say("comparing segments with torch")
            with torch_threads(self.threads):
                program, excluded = without_losers(traced, maker, program, excluded, call)
        return Entry(program, call, excluded)

    def _measured(self, call: Call, spent: float) -> Report:
        """Compare the whole program with torch; with `tune`, torch runs the module if it is faster."""
        entry, module = self._first, self._module
        args, kwargs = call.arguments(call.tensors)
        dense = sum(p.numel() * p.element_size() for p in module.parameters())
        report = Report(dense, self.weight_bytes(), 0.0, 0.0, spent, self.islands, call.batch, self._left())
        with torch.no_grad():
            calls = [lambda: module(*args, **kwargs), lambda: self._run(entry, call)]
            times = samples(calls)
            if self.tuned and not entry.torch_only and min(times[1]) > MARGIN * min(times[0]):
                times = [a + b for a, b in zip(times, samples(calls))]  # in case the machine was busy
            torch_seconds, engine_seconds = (min(seconds) for seconds in times)
            gain = ratios(*times)
            if self.tuned and not entry.torch_only and engine_seconds > MARGIN * torch_seconds:
                why = f"the engine took {engine_seconds / torch_seconds:.2f} times as long"
                self._first, engine_seconds, gain = replace(entry, torch_only=why), torch_seconds, (1.0, 1.0)
        if self.tuned and gain[1] > NOISY * gain[0]:
            warnings.warn(
                f"the timings are noisy: the speed-up over torch is between {gain[0]:.2f} and {gain[1]:.2f} in "
                "the middle half of the rounds, so measure it again when the machine is idle",
                stacklevel=4,
            )
        why = self._first.torch_only
        return replace(report, torch_seconds=torch_seconds, engine_seconds=engine_seconds, gain=gain, torch_only=why)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = take_apart(*bind(self._module, args, kwargs))
        return self._run(self._entry(call), call)

    def _run(self, entry: Entry, call: Call) -> Any:
        if entry.torch_only or entry.program is None:
            args, kwargs = call.arguments(call.tensors)
            with torch.no_grad():
                return self._module(*args, **kwargs)
        return entry.program.run(call.batch, call.tensors)

    def _entry(self, call: Call) -> Entry:
        with self._lock:
            known = call.signature if call.signature in self._entries else self._fitting(call)
            if known is not None:
                self._entries.move_to_end(known)
                return self._entries[known]
            entry = self._entries[call.signature] = self._specialised(call)
            if len(self._entries) > PROGRAMS:
                self._entries.popitem(last=False)
            return entry

    def _fitting(self, call: Call) -> Signature | None:
        """A known signature that fits although a tensor of fixed shape happens to have as many rows as the batch."""
        return next((known for known in self._entries if known.takes(call)), None)

    def _specialised(self, call: Call) -> Entry:
        """A program for inputs of another size, with the kernels that were chosen for the example."""
        if self._now() != self._versions:
            raise ValueError(
                f"the network was compiled for inputs {self._first.call.signature}, and its module has changed since: "
                f"compile it again for inputs {call.signature}"
            )
        first = self._first
        if first.torch_only or first.program is None:
            return replace(first, call=call)
        known = first.program.kernels() if self.tuned else None
        maker = Maker(self.variant, self.threads, self.tuned, call.batch, known)
        return self._compile(call, maker, first.excluded)

    def _now(self) -> tuple[Any, ...]:
        """The module's tensors and their versions, which change whenever a tensor is written."""
        tensors = [*self._module.parameters(), *self._module.buffers()]
        return tuple((t.data_ptr(), t._version) for t in tensors)

    @property
    def program(self) -> Program | None:
        """The program for inputs of the example's size; None if torch.export cannot trace the module."""
        return self._first.program

    @property
    def islands(self) -> tuple[str, ...]:
        """Operators that torch runs because the engine does not support them."""
        return self._operators(False)

    def _left(self) -> tuple[str, ...]:
        return self._operators(True)

    def _operators(self, faster: bool) -> tuple[str, ...]:
        program = self.program
        listed = [o for island in program.islands for o in island.operators] if program is not None else []
        return tuple(name for name, _, why in listed if (why == LEFT_OUT) == faster)

    def weight_bytes(self) -> int:
        """Return the bytes of all weights of the example's program, including those that torch holds for it."""
        program = self.program
        if program is None or self._first.torch_only:
            return sum(p.numel() * p.element_size() for p in self._module.parameters())
        return sum(native.engine.weight_bytes() for native in program.natives) + _island_bytes(program)

    def save(self, path: str | Path) -> int:
        """Write the network for `rankprune.engine.runtime.load`, which does not need torch.

        Args:
            path: The file.

        Returns:
            Its size in bytes.

        Raises:
            ValueError: torch runs some operators of the network.
        """
        program = self.program
        if program is None:
            raise ValueError(f"a plan cannot be saved, because {self._first.torch_only}: export the module to ONNX")
        if program.islands or len(program.steps) != 1:
            listed = [operator for island in program.islands for operator in island.operators]
            names = counted(tuple(f"{name} of {module}" if module else name for name, module, _ in listed))
            raise ValueError(
                f"a plan runs without torch, so it cannot be saved with operators that torch runs here: {names}; "
                "compile and save the parts around them, or export the module to ONNX"
            )
        engine = program.natives[0].engine
        return write(path, engine.graph, engine.kernels, engine.eight)

    def layers(self, repeats: int = 5) -> Iterator[Layer]:
        """Measure each layer of the example's program for one image.

        Args:
            repeats: Number of runs, of which the minimum counts.

        Yields:
            The layers in order.
        """
        for step in self.program.steps if self.program is not None else ():
            yield from native_layers(step, repeats) if isinstance(step, Native) else island_layers(step)

    def plan(self, repeats: int = 5) -> str:
        """Describe each layer: kernel, nonzeros, latency for one image, and why the kernel was chosen.

        Args:
            repeats: Number of runs, of which the minimum counts.

        Returns:
            One line per layer.
        """
        lines = [f"{'layer':<28} {'kernel':<26} {'non-zeros':>12} {'density':>8} {'ms':>8}  why"]
        lines += [str(layer) for layer in self.layers(repeats)]
        if self._first.torch_only:
            lines.append(f"torch runs the whole module: {self._first.torch_only}")
        if self.tuned and not self._sparse_wins():
            lines.append("no layer runs faster sparse than dense: the network is too dense for the sparse kernels")
        return "\n".join(lines)

    def _sparse_wins(self) -> bool:
        natives = self.program.natives if self.program is not None else []
        return any(not d.choice.dense for native in natives for d in native.decisions.one.values())


def _island_bytes(program: Program) -> int:
    sizes = {t.data_ptr(): t.nbytes for island in program.islands for t in island.call.state_dict().values()}
    return sum(sizes.values())


def _need_unchanged(module: nn.Module, before: dict[str, Tensor]) -> None:
    """Restore buffers that a call of the module has changed, and raise if there are any."""
    changed = [name for name, b in module.named_buffers() if name in before and not _same(b, before[name])]
    for name in changed:
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, before[name])
    if changed:
        raise SelfChanging(type(module).__name__, changed[0])


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
