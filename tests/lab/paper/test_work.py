"""Working through a queue for real, on embedded data, in seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from _small import QUEUE, write_queue

from rankprune.cli import main
from rankprune.cli.paper import duration
from rankprune.lab.paper.launch import commands
from rankprune.lab.paper.measure import MEASUREMENTS
from rankprune.lab.paper.queue import Queue
from rankprune.lab.paper.records import Records, code_version
from rankprune.lab.paper.work import Places, Worker, claimed
from rankprune.lab.training import Interrupted, Watcher
from rankprune.lab.training.sealed import seal


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(write_queue(tmp_path / "results"), tmp_path / "runs")


def worker(places: Places, **options: object) -> Worker:
    return Worker(places, say=lambda text: None, **options)  # type: ignore[arg-type]


def accuracies(places: Places) -> dict[str, float]:
    return {record["name"]: record["result"]["accuracy_last"] for record in places.records()}


def test_what_is_done_is_not_done_again(places: Places) -> None:
    said: list[str] = []
    first = worker(places)
    first.finished = lambda record: said.append(record["name"])
    assert first.run() == 5
    assert said == ["fashion-dense", "fashion-magnitude-90", "fashion-random-90", "fashion-magnitude-95", "fashion-random-95"]
    assert worker(places).run() == 0
    (record,) = [r for r in places.records() if r["name"] == "fashion-random-95"]
    assert record["data"].startswith("the embedded slice")
    assert len(record["epochs"]) == 1
    assert record["epochs"][-1]["test_top1"] == record["result"]["accuracy_last"]
    assert str(places.out) not in str(record)
    assert not list(places.out.glob("*/*.ckpt"))  # only what is finished and small is kept


@pytest.mark.long
def test_a_run_out_of_time_goes_on_where_it_was(places: Places, tmp_path: Path) -> None:
    whole = Places(places.results.parent / "other", tmp_path / "whole")
    write_queue(whole.results)
    worker(whole).run()
    steps: list[int] = []

    class Count(Watcher):
        def step(self, step: int) -> None:
            steps.append(step)

    assert worker(places, seconds=0.01, watcher=Count()).run() == 0  # up at the first step
    assert steps == [1]
    assert worker(places, watcher=Count()).run() == 5
    assert steps[:6] == [1, 2, 3, 4, 5, 6]
    assert accuracies(places) == accuracies(whole)


@pytest.mark.long
def test_a_signal_saves_and_is_told_on(places: Places) -> None:
    class Plug(Watcher):
        def step(self, step: int) -> None:
            if step == 3:
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted) as caught:
        worker(places, watcher=Plug()).run()
    assert caught.value.exit_code == 143
    assert list(places.out.glob("fashion-dense-*/last.ckpt"))
    assert worker(places).run() == 5


@pytest.mark.long
def test_another_worker_leaves_it_alone(places: Places) -> None:
    records = places.records()
    first = places.queue(records).runs()[0]
    with claimed(places.out, first.key(embedded=True)) as mine:
        assert mine
        assert worker(places).run() == 4
    assert worker(places).run() == 1


def test_what_another_finished_in_the_meantime_is_not_done_again(places: Places) -> None:
    class Slow(Places):
        """Reads records, and is overtaken by another worker before it has read the queue."""

        def queue(self, records: Records) -> Queue:
            found = super().queue(records)
            overtaking.append(worker(places).run())
            return found

    overtaking: list[int] = []
    assert worker(Slow(places.results, places.out)).run() == 0
    assert overtaking[0] == 5
    assert len(list(places.records())) == 5


def test_again_trains_what_only_older_code_has_trained(places: Places) -> None:
    (places.results / "queue.yaml").write_text(QUEUE.replace("[dense, magnitude, random]", "[dense]"))
    assert worker(places).run() == 1
    (path,) = (places.results / "records").glob("*.json")
    (old,) = places.out.glob("*/code.txt")
    record = json.loads(path.read_text())
    path.write_text(json.dumps(seal({**record, "code": "0.0.1-older"})))
    path.rename(path.with_name("older.json"))
    old.write_text("0.0.1-older")
    assert worker(places).run() == 0
    assert worker(places, again=True).run() == 1
    assert {record["code"] for record in places.records()} == {"0.0.1-older", code_version()}
    assert worker(places, again=True).run() == 0


def test_a_start_from_the_dense_net(tmp_path: Path) -> None:
    text = """\
budget: {fashion: [epochs=1, data.limit_train=96, data.limit_test=50, data.batch_size=16]}
stages:
  - {name: a, task: fashion, methods: [magnitude], sparsities: [90], pretrained: true}
"""
    places = Places(write_queue(tmp_path / "results", text), tmp_path / "runs")
    said: list[str] = []
    assert Worker(places, say=said.append).run() == 1
    assert said == ["fashion-dense comes first: its weights are a start"]
    (record,) = places.records()
    assert record["pretrained"] is True
    assert "weights" not in record["recipe"]["model"]


def test_a_run_that_cannot_be_made_is_passed_over(tmp_path: Path) -> None:
    text = """\
budget: {fashion: [epochs=1, data.limit_train=32, data.limit_test=50, data.batch_size=16]}
stages:
  - {name: a, task: nowhere, methods: [gmp], sparsities: [90]}
  - {name: b, task: fashion, methods: [gmp, random], sparsities: [90], vary: [{}]}
"""
    places = Places(write_queue(tmp_path / "results", text), tmp_path / "runs")
    said: list[str] = []
    assert Worker(places, say=said.append).run() == 1
    assert len(said) == 1
    assert said[0].startswith("fashion-gmp-90, seed 0 is passed over: no mask update fits")


def test_what_is_timed_is_done_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_queue(tmp_path / "results").joinpath("queue.yaml").read_text()
    (tmp_path / "results" / "queue.yaml").write_text(text + "  - {name: last, measure: overhead}\n")
    monkeypatch.setitem(MEASUREMENTS, "overhead", lambda data, embedded: {"seconds": 1.0})
    places = Places(tmp_path / "results", tmp_path / "runs")
    assert worker(places, share="measurements").run() == 1
    assert [record["name"] for record in places.records()] == ["overhead"]
    assert worker(places, share="runs").run() == 5
    assert worker(places).run() == 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = write_queue(tmp_path / "results")
    options = ["--results", str(results), "--out", str(tmp_path / "runs")]
    assert main(["paper", "run", *options]) == 0
    out, err = capsys.readouterr()
    assert out == "5 records added.\n"
    assert "CIFAR-10 is not there" in err
    assert (results / "tables" / "cifar10.md").is_file()
    assert main(["paper", "list", *options]) == 0
    assert "5 runs and measurements in the queue" in capsys.readouterr().out
    assert main(["paper", "cifar10", *options]) == 0
    assert "| VGG-19 " in capsys.readouterr().out
    assert main(["paper", "nothing", *options]) == 2


def test_times_are_read() -> None:
    assert [duration(text) for text in ("150m", "2h", "1h30m", "90s", "0.5h")] == [9000, 7200, 5400, 90, 1800]
    for text in ("", "150", "m", "2 h", "1x"):
        with pytest.raises(ValueError, match="is no time"):
            duration(text)


def test_full_scale_prints_its_commands(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    lines = commands(places).splitlines()
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
