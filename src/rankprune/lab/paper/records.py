"""Records of finished runs: JSON files that are written once and never changed."""

from __future__ import annotations

import ast
import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import rankprune
from rankprune._util import write_atomic
from rankprune.core.budget import kept
from rankprune.lab.errors import OffTarget, RunError
from rankprune.lab.runs.result import RunResult
from rankprune.lab.runs.run_folder import writing
from rankprune.lab.runs.sealed_json import NotWhole, read_table, seal, unseal

from .runs import digest

# Packages that cannot change the outcome of a training run.
_OUTSIDE = ("cli", "engine", "formats", "integrations", "lab/bench", "lab/paper", "lab/report")

Record = dict[str, Any]
_ENTRIES: dict[str, type | tuple[type, ...]] = {"run": str, "code": str, "name": str, "seed": int, "finished": str}


@lru_cache
def code_version() -> str:
    """Return the version and a digest of all sources that take part in a training run.

    The digest is of the syntax trees without docstrings and imports, so moving a file or rewording its documentation
    does not change it.
    """
    root = Path(rankprune.__file__).parent
    sources = (p for p in root.rglob("*.py") if not p.relative_to(root).as_posix().startswith(_OUTSIDE))
    codes = (_code_of(path.read_text(encoding="utf-8")) for path in sources)
    digests = sorted(hashlib.sha256(code.encode()).hexdigest() for code in codes)
    return f"{rankprune.__version__}-{hashlib.sha256(''.join(digests).encode()).hexdigest()[:8]}"


class _OnlyCode(ast.NodeTransformer):
    """Drops docstrings and imports."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None


def _code_of(source: str) -> str:
    return ast.dump(_OnlyCode().visit(ast.parse(source)))


def result_of(record: Mapping[str, Any]) -> RunResult | None:
    """Return the result of a training run.

    Args:
        record: A record.

    Returns:
        The result; None for a run that failed and for a measurement.

    Raises:
        NotWhole: The result is incomplete or invalid.
    """
    table = record.get("result")
    return RunResult.from_dict(table) if isinstance(table, Mapping) and "accuracy_last" in table else None


def check(record: Mapping[str, Any]) -> None:
    """Refuse an accuracy that was not measured at exactly the requested sparsity.

    Args:
        record: A record.

    Raises:
        OffTarget: The number of kept weights is not that of the target sparsity.
    """
    result = result_of(record)
    if result is None:
        return
    target, total = result.target_sparsity, result.prunable
    want = kept(total, target) if target else total
    if target and result.kept != want:
        raise OffTarget(
            f"{record['name']} keeps {result.kept:,} of {total:,} weights and not the {want:,} of "
            f"{100 * target:.2f} %: its accuracy is refused."
        )


class Records:
    """All records in a folder, by the key of their run.

    Args:
        folder: Holds one JSON file per record.

    Raises:
        RunError: A file is not a record.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._by_key: dict[str, list[Record]] = {}
        for path in sorted(self.folder.glob("*.json")):
            record = self._read(path)
            self._by_key.setdefault(record["run"], []).append(record)
        for records in self._by_key.values():
            records.sort(key=lambda record: str(record["finished"]))

    def newest(self, run: str) -> Record | None:
        """Return the newest record of a run.

        Args:
            run: Key of the run.

        Returns:
            The record, or None if there is none.
        """
        records = self._by_key.get(run)
        return records[-1] if records else None

    def has(self, run: str, code: str | None = None) -> bool:
        """Whether a run has a record.

        Args:
            run: Key of the run.
            code: Accept only records of this version of the code; None accepts all.

        Returns:
            True if there is one.
        """
        return any(code is None or record["code"] == code for record in self._by_key.get(run, ()))

    def __iter__(self) -> Iterator[Record]:
        for records in self._by_key.values():
            yield from records

    def add(self, record: Record) -> Path:
        """Write a new record, keyed by its run and version of the code. Existing records are never changed.

        Args:
            record: The record, without `key` and `finished`.

        Returns:
            The new file.

        Raises:
            RunError: The file already exists or cannot be written.
            OffTarget: The accuracy was not measured at the target sparsity.
        """
        check(record)
        key = digest([record["run"], record["code"]])
        now = datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds")
        record = {"key": key, **record, "finished": now}
        path = self.folder / f"{record['name']}-s{record['seed']}-{key}.json"
        with writing(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            if path.exists():
                raise RunError(f"{path} already exists and records are never changed: nothing was written.")
            write_atomic(path, (json.dumps(seal(record), indent=1, ensure_ascii=False) + "\n").encode())
        self._by_key.setdefault(record["run"], []).append(record)
        return path

    @staticmethod
    def _read(path: Path) -> Record:
        try:
            record = unseal(read_table(path), _ENTRIES)
            if not isinstance(record.get("result"), (Mapping, type(None))):
                raise NotWhole("its result is not a JSON object")
            check(record)
        except (ValueError, OverflowError) as error:
            way_out = "restore it from version control, or remove it"
            raise RunError(f"{path} is not a record of a run ({error}): {way_out}.") from None
        return record
