"""What is timed: that it runs, and how its record becomes a table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankprune.lab.paper.index import build
from rankprune.lab.paper.measure import measurement_key, overhead, runtime
from rankprune.lab.paper.records import Records

QUEUE = Path(__file__).resolve().parents[3] / "results" / "queue.yaml"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "queue.yaml").write_text(QUEUE.read_text())
    return tmp_path


def record(results: Path, name: str, result: dict[str, object]) -> None:
    found = {"run": measurement_key(name), "name": name, "seed": 0, "code": "0.1.0-a", "result": result, "environment": {"cpu": "some CPU"}}
    Records(results / "records").add(found)


def test_ratios_of_the_runtime_table_are_of_one_record(results: Path) -> None:
    assert build("runtime", results).rows[1][4] == "not run"
    times = {"0": (0.060, 0.080), "80": (0.030, 0.040), "98": (0.006, 0.010), "torch": (0.090, 0.100)}
    named = {name: {"minimum": least, "median": middle} for name, (least, middle) in times.items()}
    record(results, "runtime", {"model": "net", "size": 224, "threads": 2, "rounds": 15, "times": named})
    table = build("runtime", results)
    rows = {row[0]: row[4:] for row in table.rows}
    assert rows["80"] == ("30.0 / 40.0", "2.00 / 2.00", "3.00 / 2.50", "absent")
    assert rows["98"] == ("6.0 / 10.0", "10.00 / 8.00", "15.00 / 10.00", "absent")
    assert rows["90"][0] == "not run"
    assert (table.done, table.planned) == (1, 1)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler to build the engine with")
def test_the_measurements_run(results: Path) -> None:
    found = runtime(size=32, rounds=1)
    assert {"0", "80", "90", "95", "98", "torch"} <= set(found["times"])
    assert all(0 < t["minimum"] <= t["median"] for t in found["times"].values())
    record(results, "runtime", found)
    assert "not run" not in {row[4] for row in build("runtime", results).rows}
    shares = overhead()
    assert 0 < shares["small"]["share"] < 1
    assert shares["resnet50"]["svd_flops"] == pytest.approx(5.07e15, rel=0.01)  # as the paper counts
    assert shares["resnet50"]["gram_flops"] < shares["resnet50"]["svd_flops"] / 50
    record(results, "overhead", shares)
    assert build("overhead", results).rows[0][2] == "5.07e+15"
