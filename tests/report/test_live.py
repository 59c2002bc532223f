"""The server: who may ask, what is answered, what arrives by itself."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from _signals import hear_ctrl_c
from rankprune.cli import main
from rankprune.report.live import ServeError, Server, loopback


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
    with pytest.raises(ServeError, match="on this machine alone"):
        loopback(host)
    assert main(["watch", str(going), "--host", host, "--port", "0"]) == 2
    assert capsys.readouterr().err.startswith(f"rankprune: A run is watched on this machine alone, not on {host!r}:")


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
    source = str(Path(__file__).resolve().parents[2] / "src")
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
