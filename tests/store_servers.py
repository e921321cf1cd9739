"""Servers that boards are tested against: S3 (moto), a web server, and a proxy that misbehaves."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import itertools
import os
import re
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltawire as dw

#: Answers as S3 does, in memory; ends when its standard input does, that is, with the tests.
MOTO = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""

KEY, SECRET = "AKIDTEST", "not-to-be-shown"
#: Tells the S3 server who asks; it does not check signatures.
SIGNED = {
    "Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request",
    "Content-Type": "application/octet-stream",
}


def quick_options(**changes: Any) -> dw.StoreOptions:
    """Options for a server on this machine: short waits."""
    values: dict[str, Any] = {
        "allow_http": True,
        "credentials": dw.Credentials(id=KEY, secret=SECRET),
        "connect_timeout": 5.0,
        "read_timeout": 20.0,
        "retries": 4,
        "retry_wait": 0.01,
        "max_retry_wait": 0.05,
    }
    return dw.StoreOptions(**{**values, **changes})


@dataclass
class S3:
    """A running S3 server."""

    port: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def options(self, **changes: Any) -> dw.StoreOptions:
        """Options that lead to it."""
        return quick_options(**{"endpoint": self.endpoint, **changes})

    def bucket(self) -> str:
        """The name of a new bucket."""
        name = f"bucket-{next(self._numbers)}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", headers=SIGNED, method="PUT")
        urllib.request.urlopen(request, timeout=10).read()
        return name

    def board(self, **changes: Any) -> dw.Board:
        """An empty board in a bucket of its own."""
        url = f"s3://{self.bucket()}/runs/a"
        return dw.Board(url, create=True, options=self.options(**changes))

    def unfinished_uploads(self, bucket: str) -> int:
        """Multipart uploads that were neither completed nor aborted."""
        request = urllib.request.Request(f"{self.endpoint}/{bucket}?uploads", headers=SIGNED)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.read().count(b"<UploadId>"))


@contextlib.contextmanager
def s3_server() -> Iterator[S3]:
    """Run an S3 server in a process of its own."""
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    with subprocess.Popen(
        [sys.executable, "-c", MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            yield S3(int(process.stdout.readline()))
        finally:
            process.kill()


Headers = dict[str, str]
Match = Callable[[str, str, Headers], bool]


@dataclass
class Request:
    """What a client asked."""

    method: str
    path: str
    headers: Headers
    body: bytes


@dataclass
class Answer:
    """What it is told."""

    status: int
    headers: Headers
    body: bytes = b""


@dataclass
class Fault:
    """What to do to the next requests that ``match``: one of the kinds of :class:`Server`."""

    kind: str
    match: Match = lambda method, path, headers: True
    times: int = 1
    number: int = 0


class Server:
    """A web server in a thread that does what it is told to some requests.

    Kinds of faults: ``status`` (``number``, nothing is done), ``no-reply`` (done, and the
    connection closed), ``cut`` (after ``number`` bytes of the body), ``hang``, ``alter`` (a bit of
    the body), ``shift`` (the range that is claimed), ``grow`` (the length that is claimed),
    ``unconditional`` (the condition of a put is left out).
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._scheme = "http" if tls is None else "https"
        self.faults: list[Fault] = []
        #: Most requests that were being served at the same time.
        self.most_at_once = 0
        self._now = 0
        self.requests: list[Request] = []
        self._closing = threading.Event()
        self._lock = threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Small answers in one packet, and no waiting for acknowledgements.
            wbufsize = 1 << 16
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                with contextlib.suppress(OSError):
                    super().handle_one_request()
                    return
                self.close_connection = True

            def _serve(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(length)
                with outer._counted():
                    outer._serve(self, Request(self.command, self.path, headers, body))

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

            def log_message(self, *arguments: object) -> None:
                pass

        class Listener(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

        self._listener = Listener(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._listener.socket = tls.wrap_socket(self._listener.socket, server_side=True)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{self._scheme}://127.0.0.1:{self._listener.server_address[1]}"

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *arguments: object) -> None:
        self._closing.set()
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            yield
        finally:
            with self._lock:
                self._now -= 1

    def fault(self, kind: str, part: str = "", method: str = "", **values: Any) -> None:
        """Do this to the next requests with this method, and ``part`` in their path."""

        def match(asked: str, path: str, headers: Headers) -> bool:
            return part in path and method in ("", asked)

        self.faults.append(Fault(kind, match, **values))

    def asked(self, part: str = "", method: str = "") -> list[Request]:
        """Requests so far with this method, and ``part`` in their path."""
        return [r for r in self.requests if part in r.path and method in ("", r.method)]

    def answer(self, request: Request) -> Answer:
        """What a sound server says."""
        raise NotImplementedError

    def _next_fault(self, request: Request) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.times and fault.match(request.method, request.path, request.headers):
                    fault.times -= 1
                    return fault
        return None

    def _serve(self, handler: http.server.BaseHTTPRequestHandler, request: Request) -> None:
        fault = self._next_fault(request)
        kind = "" if fault is None else fault.kind
        number = 0 if fault is None else fault.number
        if kind == "hang":
            self._closing.wait(60)
        if kind == "unconditional":
            request.headers.pop("if-none-match", None)
        if kind == "status":
            answer = Answer(number, {}, b"<Error><Code>Told</Code><Message>so</Message></Error>")
        else:
            answer = self.answer(request)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if kind in ("no-reply", "hang"):
            handler.close_connection = True
            return
        if "content-range" in headers and kind in ("shift", "grow"):
            first, last, total = map(int, re.findall(r"\d+", headers["content-range"]))
            by = (1, 1, 0) if kind == "shift" else (0, 0, 1)
            headers["content-range"] = f"bytes {first + by[0]}-{last + by[1]}/{total + by[2]}"
        body = answer.body
        if kind == "alter":
            body = bytes([body[0] ^ 1]) + body[1:]
        headers.setdefault("content-length", str(len(body)))
        handler.send_response_only(answer.status)
        for name, value in headers.items():
            if name not in ("connection", "transfer-encoding", "date", "server"):
                handler.send_header(name, value)
        handler.end_headers()
        if request.method != "HEAD":
            handler.wfile.write(body[:number] if kind == "cut" else body)
        handler.wfile.flush()
        if kind == "cut":
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)


class Proxy(Server):
    """Between a client and another server."""

    def __init__(self, port: int) -> None:
        self._port = port
        super().__init__()

    def answer(self, request: Request) -> Answer:
        """What the other server says."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        with contextlib.closing(connection):
            headers = {k: v for k, v in request.headers.items() if k != "connection"}
            connection.request(request.method, request.path, request.body, headers)
            found = connection.getresponse()
            return Answer(found.status, dict(found.getheaders()), found.read())


class Web(Server):
    """A static web server over a directory."""

    def __init__(
        self,
        root: Path,
        *,
        ranges: bool = True,
        tags: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._root, self._ranges, self._tags = root, ranges, tags
        super().__init__(tls)

    def answer(self, request: Request) -> Answer:
        """A file, or a range of it."""
        path = self._root / request.path.lstrip("/")
        if request.method not in ("GET", "HEAD"):
            return Answer(405, {})
        if not path.is_file():
            return Answer(404, {}, b"not here")
        body = path.read_bytes()
        headers = {"content-length": str(len(body))}
        if self._tags:
            headers["etag"] = f'"{path.stat().st_mtime_ns}"'
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if asked and self._ranges:
            first, last = int(asked[1]), min(int(asked[2]), len(body) - 1)
            if first > last:
                return Answer(416, {"content-range": f"bytes */{len(body)}"})
            headers["content-range"] = f"bytes {first}-{last}/{len(body)}"
            headers["content-length"] = str(last + 1 - first)
            return Answer(206, headers, body[first : last + 1])
        return Answer(200, headers, body)
