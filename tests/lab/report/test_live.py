"""The server: who may ask, what is answered, what arrives by itself."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from _signals import hear_ctrl_c
from rankprune.cli import main
from rankprune.formats import save
from rankprune.lab.models import create_model
from rankprune.lab.report.collect import Collector
from rankprune.lab.report.live import CONNECTIONS, Feed, ServeError, Server, loopback
from rankprune.lab.training import checkpoint


@contextmanager
def serving(path: Path, host: str = "127.0.0.1") -> Iterator[Server]:
    with Server([path], host, every=0.05) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server: Server, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "", "localhost.example.org", "127.0.0.1.nip.io"])
def test_other_machines_are_refused(host: str, going: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ServeError, match="on this machine only"):
        loopback(host)
    assert main(["watch", str(going), "--host", host, "--port", "0"]) == 2
    assert capsys.readouterr().err.startswith(f"rankprune: --host {host!r} is not a loopback address,")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1.2.3", "::1", "[::1]"])
def test_loopback_has_several_names(host: str) -> None:
    assert loopback(host) in ("127.0.0.1", "127.1.2.3", "::1")


def test_a_port_in_use_is_one_sentence(going: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["watch", str(going), "--port", str(port)]) == 2
    expected = f"rankprune: Port {port} of 127.0.0.1 is in use: choose another with --port, or --port 0 for any free one.\n"
    assert capsys.readouterr().err == expected
    assert main(["watch", str(going), "--port", "70000"]) == 2
    assert "There is no port 70000" in capsys.readouterr().err


def test_a_missing_run_is_one_sentence_and_frees_the_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "none"), "--port", "0"]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_answers_to_names_of_this_machine_alone(going: Path) -> None:
    with serving(going) as server:
        port = server.server_address[1]
        status, page = ask(server, "/")
        assert status == 200
        assert b"<title>rankprune report</title>" in page
        for good in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "localhost"):
            assert ask(server, "/", good)[0] == 200
        for bad in (f"evil.example:{port}", "evil.example", "", f"127.0.0.1.nip.io:{port}"):
            status, body = ask(server, "/", bad)
            assert status == 403
            assert b"rankprune report" not in body
        assert ask(server, "/recipe.yaml")[0] == ask(server, "/../recipe.yaml")[0] == 404


@pytest.mark.long
def test_ctrl_c_ends_the_command_quietly(going: Path) -> None:
    command = [sys.executable, "-m", "rankprune", "watch", str(going), "--port", "0", "--json"]
    source = str(Path(__file__).resolve().parents[3] / "src")
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": source},
        preexec_fn=hear_ctrl_c,
    )  # fmt: skip
    assert running.stdout is not None
    text = "".join(running.stdout.readline() for _ in range(3))
    assert json.loads(text)["url"].startswith("http://127.0.0.1:")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (0, "")


def event(stream: http.client.HTTPResponse) -> tuple[str, str]:
    """The next event: its kind and its text."""
    kind, text = "message", ""
    while line := stream.readline().decode().rstrip("\n"):
        key, _, value = line.partition(": ")
        if key == "event":
            kind = value
        elif key == "data":
            text = value
    return (kind, text) if text else event(stream)


def test_news_arrive_by_themselves_and_troubles_are_told(runs: Path, going: Path) -> None:
    second = (next(runs.glob("*-rpg-*")) / "metrics.jsonl").read_text().splitlines()[1]
    with serving(going) as server:
        connection = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
        connection.request("GET", "/events")
        stream = connection.getresponse()
        assert [line["epoch"] for line in json.loads(event(stream)[1])["runs"][0]["metrics"]] == [1]
        with open(going / "metrics.jsonl", "a") as file:
            file.write(second + "\n")
        assert [line["epoch"] for line in json.loads(event(stream)[1])["runs"][0]["metrics"]] == [1, 2]
        (going / "recipe.yaml").rename(going / "away")
        kind, text = event(stream)
        assert (kind, "holds no run" in text) == ("problem", True)
        (going / "away").rename(going / "recipe.yaml")
        assert event(stream)[0] == "message"
        connection.close()


@pytest.mark.parametrize("error", [KeyError("epoch"), RuntimeError(), MemoryError("16 GB"), AttributeError("no get")], ids=repr)
def test_any_trouble_in_a_look_is_told_and_the_next_look_is_taken(error: Exception, going: Path) -> None:
    feed = Feed([going])
    collect, changed = feed._collector.collect, feed._collector.changed
    feed._collector.changed = lambda: True  # type: ignore[method-assign]

    def fail() -> dict[str, Any]:
        raise error

    feed._collector.collect = fail  # type: ignore[assignment, method-assign]
    feed.look()
    assert feed.problem in (str(error), type(error).__name__)
    assert feed.number == 2
    feed._collector.collect, feed._collector.changed = collect, changed  # type: ignore[method-assign]
    feed.look()
    assert (feed.problem, feed.number) == ("", 3)


def test_what_could_not_be_read_is_read_again(going: Path) -> None:
    """A file that was half written when it was looked at: its trouble stays until it is whole."""
    feed, whole = Feed([going]), (going / "environment.json").read_text()
    (going / "environment.json").write_text(whole[:20])
    for _ in range(2):
        feed.look()
        assert "environment.json is damaged" in feed.problem
    (going / "environment.json").write_text(whole)
    feed.look()
    assert feed.problem == ""


def test_weights_of_any_kind_leave_the_page_standing(going: Path) -> None:
    """A checkpoint that is whole but holds something else, and one that is none."""
    checkpoint.write(going / "last.ckpt", {"model": {"weight": [1, 2]}})
    (run,) = Collector([going]).collect()["runs"]
    assert run["layers"] is None
    assert run["problem"]
    assert run["metrics"]


def test_silent_connections_are_closed(going: Path) -> None:
    with Server([going], idle=0.3) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        silent = socket.create_connection(server.server_address[:2], timeout=20)
        slow = socket.create_connection(server.server_address[:2], timeout=20)
        slow.sendall(b"GET / HTTP/1.1\r\nHost: local")
        assert silent.recv(1) == slow.recv(1) == b""
        assert ask(server, "/")[0] == 200
        server.shutdown()
        thread.join()


def watching(folder: Path) -> tuple[subprocess.Popen[str], tuple[str, int]]:
    command = [sys.executable, "-m", "rankprune", "watch", str(folder), "--port", "0", "--json"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src"), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = subprocess.Popen(command, env=env, preexec_fn=hear_ctrl_c, **pipes)  # type: ignore[call-overload]
    url = json.loads("".join(running.stdout.readline() for _ in range(3)))["url"]
    return running, ("127.0.0.1", int(url.rstrip("/").rpartition(":")[2]))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts threads in /proc")
def test_hundreds_of_connections_hold_few_threads_and_no_processor(going: Path) -> None:
    running, address = watching(going)
    status = Path(f"/proc/{running.pid}/status")

    def spent() -> int:
        return sum(map(int, Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    try:
        idle = [socket.create_connection(address, timeout=20) for _ in range(300)]
        refused = idle[-1].recv(200)  # by now all before it have been accepted
        assert refused.startswith(b"HTTP/1.0 503")
        assert b"Too many pages are open" in refused
        assert int(status.read_text().partition("Threads:")[2].split()[0]) <= CONNECTIONS + 8
        before, since = spent(), time.monotonic()
        time.sleep(1)
        share = (spent() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - since)
        assert share < 0.5
        for connection in idle:
            connection.close()
        for _ in range(100):  # a thread sees that its connection has gone
            with contextlib.suppress(OSError, http.client.HTTPException):
                page = http.client.HTTPConnection(*address, timeout=20)
                page.request("GET", "/")
                if page.getresponse().status == 200:
                    break
            time.sleep(0.1)
        else:
            pytest.fail("the page did not come back")
    finally:
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0


def test_ctrl_c_while_weights_are_read_ends_quietly(going: Path) -> None:
    """The thread that reads them is deep in native code when the command ends."""
    recipe = (going / "recipe.yaml").read_text()
    (going / "last.ckpt").unlink(missing_ok=True)
    (going / "previous.ckpt").unlink(missing_ok=True)
    assert "name: vgg-small" in recipe
    (going / "recipe.yaml").write_text(recipe.replace("name: vgg-small", "name: cifar-vgg19"))
    weights = going.parent / "model.sparse.safetensors"
    save(create_model("cifar-vgg19", 10, 1), weights)
    for delay in (0.5, 2.0):
        running, _ = watching(going)
        shutil.copy(weights, going)  # takes seconds to look at
        time.sleep(delay)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
        assert (running.returncode, err) == (0, "")
        (going / weights.name).unlink()
