"""Servers that boards are tested against: S3 (moto), a web server, and a proxy that misbehaves."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import itertools
import json
import os
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
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
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=10).read()
        return name

    def board(self, **changes: Any) -> dw.Board:
        """An empty board in a bucket of its own."""
        url = f"s3://{self.bucket()}/runs/a"
        return dw.Board(url, create=True, options=self.options(**changes))

    def unfinished_uploads(self, bucket: str) -> int:
        """Multipart uploads that were neither completed nor aborted."""
        with urllib.request.urlopen(f"{self.endpoint}/{bucket}?uploads", timeout=10) as answer:
            return answer.read().count(b"<UploadId>")


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
