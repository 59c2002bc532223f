"""Working through a queue for real, on embedded data, in seconds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from _small import QUEUE, write_queue

from _runs import HereRunner
from rankprune.cli import main
from rankprune.cli.paper import seconds_of
from rankprune.lab.paper.launch import commands
from rankprune.lab.paper.measure import MEASUREMENTS
from rankprune.lab.paper.queue import Queue
from rankprune.lab.paper.records import Records, code_version
from rankprune.lab.paper.work import Paths, QueueWorker, claimed
from rankprune.lab.runs.sealed_json import seal
from rankprune.lab.sweep.local_runner import LocalRunner
from rankprune.lab.training import Callback, Interrupted


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(write_queue(tmp_path / "results"), tmp_path / "runs")


def work(paths: Paths, jobs: int = 0, seconds: float | None = None, callback: Callback | None = None, **options: object) -> int:
    """The number of records added, by so many processes; 0: by this one."""
    worker = QueueWorker(paths, **{"say": lambda text: None, **options})  # type: ignore[arg-type]
    return worker.run(LocalRunner(callback, jobs) if jobs else HereRunner(), seconds)


def accuracies(paths: Paths) -> dict[str, float]:
    return {record["name"]: record["result"]["accuracy_last"] for record in paths.records()}


def test_what_is_done_is_not_done_again(paths: Paths) -> None:
    said: list[str] = []
    assert work(paths, finished=lambda record: said.append(record["name"])) == 5
    assert said == ["fashion-dense", "fashion-magnitude-90", "fashion-random-90", "fashion-magnitude-95", "fashion-random-95"]
    assert work(paths) == 0
    (record,) = [r for r in paths.records() if r["name"] == "fashion-random-95"]
    assert record["data"].startswith("the embedded subset")
    assert len(record["epochs"]) == 1
    assert record["epochs"][-1]["test_top1"] == record["result"]["accuracy_last"]
    assert str(paths.out) not in str(record)
    assert not list(paths.out.glob("*/*.ckpt"))  # only what is finished and small is kept


@pytest.mark.long
def test_a_run_out_of_time_goes_on_where_it_was(paths: Paths, tmp_path: Path) -> None:
    text = QUEUE.replace("epochs=1, data.limit_train=96", "epochs=3, data.limit_train=2000")
    whole = Paths(write_queue(tmp_path / "other", text), tmp_path / "whole")
    assert work(whole) == 5
    write_queue(paths.results, text)
    pieces = 0
    while len(list(paths.records())) < 5:
        pieces += 1
        work(paths, 1, seconds=12.0)  # a process that has just started needs some of it to import torch
    assert pieces > 1
    assert accuracies(paths) == accuracies(whole)


@pytest.mark.long
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_signal_saves_and_is_told_on(paths: Paths, jobs: int) -> None:
    write_queue(paths.results, QUEUE.replace("epochs=1, data.limit_train=96", "epochs=3, data.limit_train=2000"))

    def kill() -> None:
        while not any(path.stat().st_size for path in paths.out.glob("*/metrics.jsonl")):  # it trains
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(Interrupted) as caught:
        work(paths, jobs)
    killer.join()
    assert caught.value.exit_code == 143
    assert list(paths.out.glob("fashion-*/last.ckpt"))
    assert work(paths, jobs) == 5


@pytest.mark.long
def test_another_worker_leaves_it_alone(paths: Paths) -> None:
    records = paths.records()
    first = paths.queue(records).runs()[0]
    with claimed(paths.out, first.key(embedded=True)) as mine:
        assert mine
        assert work(paths) == 4
    assert work(paths) == 1


def test_what_another_finished_in_the_meantime_is_not_done_again(paths: Paths) -> None:
    class Slow(Paths):
        """Reads records, and is overtaken by another worker before it has read the queue."""

        def queue(self, records: Records) -> Queue:
            found = super().queue(records)
            overtaking.append(work(paths))
            return found

    overtaking: list[int] = []
    assert work(Slow(paths.results, paths.out)) == 0
    assert overtaking[0] == 5
    assert len(list(paths.records())) == 5


def test_again_trains_what_only_older_code_has_trained(paths: Paths) -> None:
    (paths.results / "queue.yaml").write_text(QUEUE.replace("[dense, magnitude, random]", "[dense]"))
    assert work(paths) == 1
    (path,) = (paths.results / "records").glob("*.json")
    (old,) = paths.out.glob("*/code.txt")
    record = json.loads(path.read_text())
    path.write_text(json.dumps(seal({**record, "code": "0.0.1-older"})))
    path.rename(path.with_name("older.json"))
    old.write_text("0.0.1-older")
    assert work(paths) == 0
    assert work(paths, again=True) == 1
    assert {record["code"] for record in paths.records()} == {"0.0.1-older", code_version()}
    assert work(paths, again=True) == 0


def test_a_start_from_the_dense_net(tmp_path: Path) -> None:
    text = """\
budget: {fashion: [epochs=1, data.limit_train=96, data.limit_test=50, data.batch_size=16]}
stages:
  - {name: a, task: fashion, methods: [magnitude], sparsities: [90], pretrained: true}
"""
    paths = Paths(write_queue(tmp_path / "results", text), tmp_path / "runs")
    said: list[str] = []
    assert work(paths, say=said.append) == 1
    assert said == [
        "fashion-dense comes first, because fashion-magnitude-90 needs its weights",
        "1 of 1: fashion-magnitude-90, from pretrained, seed 0",
    ]
    (record,) = paths.records()
    assert record["pretrained"] is True
    assert "weights" not in record["recipe"]["model"]


def test_a_run_that_learns_from_the_dense_net_on_the_same_images(tmp_path: Path) -> None:
    text = """\
budget: {fashion: [epochs=1, data.limit_train=96, data.limit_test=50, data.batch_size=16]}
stages:
  - {name: a, task: fashion, methods: [magnitude], sparsities: [90], vary: [{data.holdout: [20]}], seeds: [0, 1], distilled: true}
  - {name: b, task: fashion, methods: [magnitude], sparsities: [90], vary: [{data.holdout: [20]}]}
"""
    paths = Paths(write_queue(tmp_path / "results", text), tmp_path / "runs")
    said: list[str] = []
    assert work(paths, say=said.append) == 3  # the teacher is trained once
    assert said[0] == "fashion-dense comes first, because fashion-magnitude-90 needs its weights"
    assert said[1] == "1 of 3: fashion-magnitude-90, data.holdout=20, distilled, seed 0"
    records = sorted(paths.records(), key=lambda record: (record["distilled"], record["seed"]))
    assert [record["distilled"] for record in records] == [False, True, True]
    assert records[0]["recipe"]["distill"] is None
    assert records[1]["recipe"]["distill"]["model"] == records[1]["recipe"]["model"]["name"]
    assert "weights" not in records[1]["recipe"]["distill"]
    assert records[0]["epochs"][0]["train_loss"] != records[1]["epochs"][0]["train_loss"]  # of the same seed
    (teacher,) = paths.out.glob("fashion-dense-*/recipe.yaml")
    assert "holdout: 20" in teacher.read_text()  # it has not seen the held-out images either


def test_a_run_that_cannot_be_made_is_skipped_and_counted(tmp_path: Path) -> None:
    text = """\
budget: {fashion: [epochs=1, data.limit_train=32, data.limit_test=50, data.batch_size=16]}
stages:
  - {name: a, task: nowhere, methods: [gmp], sparsities: [90]}
  - {name: b, task: fashion, methods: [gmp, random], sparsities: [90], vary: [{}]}
"""
    paths = Paths(write_queue(tmp_path / "results", text), tmp_path / "runs")
    said: list[str] = []
    assert work(paths, say=said.append) == 1
    assert said[0] == "1 of 2: fashion-gmp-90, seed 0"
    assert said[1].startswith("fashion-gmp-90, seed 0 is skipped: no mask update fits")
    assert re.fullmatch(r"2 of 2: fashion-random-90, seed 0 \(about \d+ s left\)", said[2])
    assert len(said) == 3


def test_what_is_timed_is_done_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = QUEUE.replace("[dense, magnitude, random]", "[dense, magnitude]")  # each run starts a process
    write_queue(tmp_path / "results", text + "  - {name: last, measure: overhead}\n")
    paths = Paths(tmp_path / "results", tmp_path / "runs")
    running: list[int] = []

    def measure(data: str | None, embedded: bool) -> dict[str, float]:
        running.append(len([path for path in paths.out.glob("*/environment.json") if not (path.parent / "result.json").exists()]))
        return {"seconds": 1.0}

    monkeypatch.setitem(MEASUREMENTS, "overhead", measure)
    assert work(paths, jobs=2) == 4  # in processes of their own
    assert running == [0]
    assert work(paths) == 0


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("rankprune.cli.paper.make_runner", lambda *_: HereRunner())  # the test before starts processes
    results = write_queue(tmp_path / "results")
    options = ["--results", str(results), "--out", str(tmp_path / "runs")]
    assert main(["paper", "run", *options]) == 0
    out, err = capsys.readouterr()
    assert out == "5 records added.\n"
    assert "CIFAR-10 is missing" in err
    assert (results / "tables" / "cifar10.md").is_file()
    assert main(["paper", "list", *options]) == 0
    assert "5 runs and measurements are in the queue" in capsys.readouterr().out
    assert main(["paper", "cifar10", *options]) == 0
    assert "| VGG-19 " in capsys.readouterr().out
    assert main(["paper", "nothing", *options]) == 2


def test_times_are_read() -> None:
    assert [seconds_of(text) for text in ("150m", "2h", "1h30m", "90s", "0.5h")] == [9000, 7200, 5400, 90, 1800]
    for text in ("", "150", "m", "2 h", "1x"):
        with pytest.raises(ValueError, match="is not a duration"):
            seconds_of(text)


def test_full_scale_prints_its_commands(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    lines = commands(paths).splitlines()
    want = "torchrun --standalone --nproc-per-node=8 -m rankprune train cifar10-vgg19-rpg-99.9 seed=0 --data DIR"
    assert any(line.startswith(want) for line in lines)


@pytest.mark.long
def test_two_at_a_time_stop_and_go_on(tmp_path: Path) -> None:
    results = write_queue(tmp_path / "results")
    words = [sys.executable, "-m", "rankprune", "paper", "run", "--jobs", "2", "--results", str(results), "--out", str(tmp_path / "runs")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(words, env=environment)
    limit = time.monotonic() + 120
    while not list((tmp_path / "runs").glob("*/environment.json")) and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    done = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "5 records added.\n"
    assert len(list((results / "records").glob("*.json"))) == 5
