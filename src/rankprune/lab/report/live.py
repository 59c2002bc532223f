"""The page while a run trains: served to this machine alone, and renewed in the browser as the folder changes."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import socket
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rankprune.lab.errors import RunError

from .collect import Collector
from .page import render

PATIENCE = 10.0  # the weights are looked at for at most a tenth of the time
CONNECTIONS = 32  # at a time, each of which holds a thread
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class ServeError(RunError):
    """The address cannot be served."""

    exit_code = 2


class Feed:
    """The newest data of the runs, and a way to wait for newer."""

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self._collector = Collector(paths, PATIENCE)
        self._news = threading.Condition()
        self.closed = False
        self.number, self.data, self.problem = 1, self._collector.collect(), ""

    def look(self) -> None:
        """Collect again if something has changed."""
        try:
            data = self._collector.collect() if self._collector.changed() else None
            problem = ""
        except Exception as error:  # whatever it is, such as a folder that was removed: the next look may succeed
            data, problem = None, " ".join(str(error).split()) or type(error).__name__
        with self._news:
            if data is not None or problem != self.problem:
                self.data, self.problem, self.number = data or self.data, problem, self.number + 1
                self._news.notify_all()

    def wait(self, seen: int, seconds: float) -> bool:
        """Whether there is something newer than `seen`, after waiting for it at most that long."""
        with self._news:
            return self._news.wait_for(lambda: self.number > seen or self.closed, seconds) and not self.closed

    def close(self) -> None:
        with self._news:
            self.closed = True
            self._news.notify_all()


class Server(ThreadingHTTPServer):
    """`serve_forever` answers; a second thread looks at the folders every `every` seconds.

    At most `CONNECTIONS` are served at a time, and one that is silent, or does not read, for `idle` seconds is closed.
    """

    daemon_threads = True
    request_queue_size = 128  # of connections that wait to be accepted: browsers open several at once

    def __init__(
        self,
        paths: Iterable[str | Path],
        host: str = "127.0.0.1",
        port: int = 0,
        every: float = 1.0,
        idle: float = 10.0,
    ) -> None:
        address = loopback(host)
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            super().__init__((address, port), _Handler)
        except OverflowError:
            raise ServeError(f"There is no port {port}: choose one of 1 to 65535, or 0 for any free one.") from None
        except OSError as error:
            raise ServeError(_refusal(host, port, error)) from None
        try:
            self.feed = Feed(paths)
        except BaseException:
            self.server_close()
            raise
        self.idle = idle
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._done = threading.Event()
        self._every = every
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"

    def _look(self) -> None:
        while not self._done.wait(self._every):
            self.feed.look()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own while there are not too many; others are told to come back."""
        if not self._free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.settimeout(0)  # the thread that accepts must not wait for anyone
                request.send(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 10\r\n\r\nToo many pages are open.\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Quiet: a browser that leaves is no news, and what fails in an answer is answered with 500."""

    def server_close(self) -> None:
        if hasattr(self, "_done"):
            self._done.set()
            self.feed.close()
        super().server_close()

    def still_looking(self, seconds: float) -> bool:
        """After `server_close`: whether a look that was under way goes on for longer than that."""
        self._looking.join(seconds)
        return self._looking.is_alive()


def loopback(host: str) -> str:
    """The address of a name of this machine that no other machine can reach; anything else is refused."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise ServeError(
            f"A run is watched on this machine alone, not on {host!r}: leave --host out, and from elsewhere use a "
            "tunnel such as ssh -L 8765:localhost:8765."
        )
    return str(address)


def _refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} of {host} is in use: choose another with --port, or --port 0 for any free one."
    return f"Port {port} of {host} cannot be opened ({error.strerror}): choose another with --port."


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "rankprune", ""

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.idle)  # of each read and each write

    def do_GET(self) -> None:
        try:
            self._answer()
        except OSError:
            raise  # the other side has left, or does not read
        except Exception as error:
            self._send(500, "text/plain", f"The page could not be made: {error}\n".encode())

    def _answer(self) -> None:
        if not _own_name(self.headers.get("Host", "")):
            # A page elsewhere can make its own name point here; it must not read runs that way.
            self._send(403, "text/plain", b"This server answers to the names of this machine alone.\n")
        elif self.path == "/":
            self._send(200, "text/html", render(self.server.feed.data, live=True).encode())
        elif self.path == "/events":
            self._events()
        else:
            self._send(404, "text/plain", b"There is nothing here: the report is at /.\n")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self._head(status, kind, **{"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _head(self, status: int, kind: str, **more: str) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": f"{kind}; charset=utf-8", **_HEADERS, **more}.items():
            self.send_header(key, value)
        self.end_headers()

    def _events(self) -> None:
        feed, seen = self.server.feed, 0
        self._head(200, "text/event-stream")
        try:
            while not feed.closed:
                if feed.wait(seen, 10.0):
                    seen = feed.number
                    self.wfile.write(_event(feed.problem, feed.data))
                else:
                    self.wfile.write(b": still here\n\n")  # fails once the browser has left
        except OSError:
            pass

    def log_message(self, *_: Any) -> None:
        """Quiet: the terminal belongs to whoever runs the command."""


def _event(problem: str, data: dict[str, Any]) -> bytes:
    if problem:
        return f"event: problem\ndata: {problem}\n\n".encode()
    return f"data: {json.dumps(data, separators=(',', ':'), allow_nan=False)}\n\n".encode()


def _own_name(host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    try:
        loopback(name)
    except ServeError:
        return False
    return True
