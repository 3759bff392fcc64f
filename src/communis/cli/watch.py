"""The implementation of the command `watch`: a server for one page, on this machine only.

The page is three files of this package and one address that answers with JSON. A request chooses
one of these four by its whole address; nothing in it becomes a path. The header Host must name this
machine, so that no page from elsewhere whose name is made to lead here can read what runs say.
"""

from __future__ import annotations

import errno
import json
import os
import socketserver
import threading
import time
from dataclasses import dataclass
from hashlib import blake2b
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from communis.cli.console import out
from communis.core.errors import CommunisError, plain, readable
from communis.results.live.board import Board
from communis.results.report.html import STYLE

HERE = "127.0.0.1"
NAMES = (HERE, "localhost")
PAGE = Path(__file__).with_name("watch_page")
OFTEN = 0.5  # seconds between two looks at the folder, however many pages ask
PATIENCE = 20  # seconds that a connection may be silent
DIGEST = 12  # bytes of the digest by which an answer is recognised
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Answer:
    """What an address answers with."""

    kind: str
    content: bytes

    @property
    def tag(self) -> str:
        return f'"{blake2b(self.content, digest_size=DIGEST).hexdigest()}"'


class Server(ThreadingHTTPServer):
    """Answers for one folder until it is stopped."""

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # there, another process could take the port over

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__((HERE, port), Handler)
        self._board = Board(folder)
        self._turn = threading.Lock()
        self._state = Answer("application/json", b"{}")
        self._looked = float("-inf")
        style = STYLE.encode() + (PAGE / "page.css").read_bytes()  # as text it would be escaped
        self._fixed = {
            "/": Answer("text/html", (PAGE / "page.html").read_bytes()),
            "/page.js": Answer("text/javascript", (PAGE / "page.js").read_bytes()),
            "/page.css": Answer("text/css", style),
        }

    def server_bind(self) -> None:
        """Binds the port without asking for the machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HERE, self.server_address[1]

    @property
    def address(self) -> str:
        return f"http://{HERE}:{self.server_port}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What the header Host of a request may say."""
        return tuple(f"{name}:{self.server_port}" for name in NAMES)

    def answer(self, path: str) -> Answer | None:
        """Returns what this address has; None if there is no such address."""
        return self.state() if path == "/state.json" else self._fixed.get(path)

    def state(self) -> Answer:
        """Returns what the runs say now."""
        with self._turn:
            now = time.monotonic()
            if now - self._looked >= OFTEN:
                self._state = Answer("application/json", self._look())
                self._looked = time.monotonic()
            return self._state

    def _look(self) -> bytes:
        try:
            shown = self._board.look()
        except Exception as error:  # the page says so, and the next look may succeed
            what = readable(f"{type(error).__name__}: {error}")
            shown = {"problems": [f"{self._board.folder}: cannot be shown ({what})"]}
        return json.dumps(shown, allow_nan=False, default=str).encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is no news: the page asks again."""


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_GET(self) -> None:
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            return self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        answer = self.server.answer(self.path)
        if answer is None:
            return self.send_error(HTTPStatus.NOT_FOUND)
        if self.headers.get("If-None-Match") == answer.tag:
            return self._send(HTTPStatus.NOT_MODIFIED, Answer(answer.kind, b""), answer.tag)
        self._send(HTTPStatus.OK, answer, answer.tag)

    def refuse(self) -> None:
        """Answers any request that is not for reading."""
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = refuse  # noqa: N815

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers in words of this server's own, and closes the connection, because the rest of the
        request was not read."""
        status = HTTPStatus(code)
        self.close_connection = True
        self._send(status, Answer("text/plain", f"{status.phrase}\n".encode()))

    def _send(self, status: HTTPStatus, answer: Answer, tag: str = "") -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if tag:
            self.send_header("ETag", tag)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        if self.close_connection:
            self.send_header("Connection", "close")
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def version_string(self) -> str:
        return "communis"

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed."""


def watch(folder: Path, port: int) -> None:
    with serving(folder, port) as server:
        if server.server_port != port and port:
            out.print(f"port {port} is taken, so another one was chosen")
        out.print(f"watching {folder}: {server.address} (Ctrl-C ends it)", soft_wrap=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            out.print("stopped watching; the runs go on")


def serving(folder: Path, port: int) -> Server:
    """Returns a server at this port, or at a free one if it is taken."""
    try:
        return Server(folder, port)
    except OSError as error:
        if not port or error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise CommunisError(f"no page can be served here ({plain(error)})") from None
        return Server(folder, 0)
