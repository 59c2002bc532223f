"""The report while a run trains: served on this machine only, and updated in the browser as the folder changes."""

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

PATIENCE = 10.0  # analyzing the weights takes at most about a tenth of the time
CONNECTIONS = 32  # at a time; each has a thread
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
    """The newest data of the runs, with a way to wait for newer data.

    Args:
        paths: Run folders and folders of run folders.
    """

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self._collector = Collector(paths, PATIENCE)
        self._news = threading.Condition()
        self.closed = False
        self.number, self.data, self.problem = 1, self._collector.collect(), ""

    def look(self) -> None:
        """Collect the data again if something has changed."""
        try:
            data = self._collector.collect() if self._collector.changed() else None
            problem = ""
        except Exception as error:  # for example a folder that was removed; the next attempt may succeed
            data, problem = None, " ".join(str(error).split()) or type(error).__name__
        with self._news:
            if data is not None or problem != self.problem:
                self.data, self.problem, self.number = data or self.data, problem, self.number + 1
                self._news.notify_all()

    def wait(self, seen: int, seconds: float) -> bool:
        """Wait for newer data.

        Args:
            seen: Number of the newest data known to the caller.
            seconds: Maximum time to wait.

        Returns:
            Whether there is newer data.
        """
        with self._news:
            return self._news.wait_for(lambda: self.number > seen or self.closed, seconds) and not self.closed

    def close(self) -> None:
        """Wake all waiting threads, which then end."""
        with self._news:
            self.closed = True
            self._news.notify_all()


class Server(ThreadingHTTPServer):
    """Serves the page with `serve_forever`; a second thread checks the folders.

    At most `CONNECTIONS` are served at a time. A connection that does not send or read for `idle` seconds is closed.

    Args:
        paths: Run folders and folders of run folders.
        host: A loopback address.
        port: The port; 0 for any free one.
        every: Seconds between two checks of the folders.
        idle: Timeout of a connection, in seconds.

    Raises:
        ServeError: The address is not a loopback address, or cannot be served.
    """

    daemon_threads = True
    request_queue_size = 128  # connections that wait to be accepted; browsers open several at once

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
        """Address of the page."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"

    def _look(self) -> None:
        while not self._done.wait(self._every):
            self.feed.look()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a new thread, or answer 503 if there are too many.

        Args:
            request: The socket.
            client_address: Its address.
        """
        if not self._free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.settimeout(0)  # the accepting thread must not block
                request.send(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 10\r\n\r\nToo many pages are open.\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a connection, and free its slot at the end.

        Args:
            request: The socket.
            client_address: Its address.
        """
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: browsers disconnect all the time, and errors in an answer are reported as 500.

        Args:
            request: The socket.
            client_address: Its address.
        """

    def server_close(self) -> None:
        """Close the server and stop the second thread."""
        if hasattr(self, "_done"):
            self._done.set()
            self.feed.close()
        super().server_close()

    def still_looking(self, seconds: float) -> bool:
        """Whether the second thread is still busy some time after `server_close`.

        Args:
            seconds: How long to wait for it.

        Returns:
            True if it is still running.
        """
        self._looking.join(seconds)
        return self._looking.is_alive()


def loopback(host: str) -> str:
    """Return the loopback address of a host name.

    Args:
        host: An address or "localhost".

    Returns:
        The IP address.

    Raises:
        ServeError: Other machines could reach the address.
    """
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise ServeError(
            f"--host {host!r} is not a loopback address, and the page is served on this machine only: leave --host "
            "out, and use a tunnel such as ssh -L 8765:localhost:8765 from another machine."
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
        self.connection.settimeout(self.server.idle)  # for each read and each write

    def do_GET(self) -> None:
        try:
            self._answer()
        except OSError:
            raise  # the client disconnected or does not read
        except Exception as error:
            self._send(500, "text/plain", f"The page could not be rendered: {error}\n".encode())

    def _answer(self) -> None:
        if not _own_name(self.headers.get("Host", "")):
            # DNS rebinding: another site could point its own name at this address to read the runs.
            self._send(403, "text/plain", b"This server only answers to loopback addresses.\n")
        elif self.path == "/":
            self._send(200, "text/html", render(self.server.feed.data, live=True).encode())
        elif self.path == "/events":
            self._events()
        else:
            self._send(404, "text/plain", b"Not found: the report is at /.\n")

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
                    self.wfile.write(b": keep-alive\n\n")  # fails once the browser has disconnected
        except OSError:
            pass

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


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
