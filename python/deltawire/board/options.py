"""How a board on a remote store is reached."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field

_MIN_PART, _MAX_PART = 5 << 20, 1 << 30
_MAX_PARALLEL = 256
_MAX_SECONDS = 86_400.0

_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Credentials:
    """Who asks; never shown.

    Attributes:
        id: S3 access key id, or Azure storage account.
        secret: S3 secret access key, or Azure account key.
        token: S3 session token (beside id and secret), GCS bearer token, or Azure shared access
            signature.
        file: GCS service account file.
    """

    id: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    file: _Path | None = field(default=None, repr=False)


@dataclass(frozen=True)
class StoreOptions:
    """Settings of a board on S3, GCS, Azure or a web server; others have none.

    Without ``credentials`` they, and the region, come from where the cloud's own tools look: the
    variables ``AWS_*``, ``GOOGLE_APPLICATION_CREDENTIALS`` and ``AZURE_*``, then the machine's
    metadata service. Nothing else is read from the environment but the system's proxy.

    Attributes:
        endpoint: URL of the service, for one that is not the cloud's own.
        region: of an S3 bucket.
        allow_http: accept ``http://`` for the endpoint.
        path_style: S3: the bucket is the first part of the path; False: of the host's name, which
            the endpoint then has to hold.
        credentials: who asks.
        anonymous: ask without credentials, for public buckets.
        ca_file: PEM file with certificates to trust beside the system's.
        connect_timeout: seconds to wait for a connection.
        read_timeout: seconds to wait for an answer to begin or to go on; sending one part must fit
            into it.
        retries: how often a failed request is tried again, and a broken download resumed without
            progress.
        retry_wait: seconds before the first retry; doubled for each further one.
        max_retry_wait: most seconds between two tries.
        retry_time: no retry of a request begins later than this many seconds after its first try.
        part_bytes: of a part of an upload (the first 900; later ones grow, so that 10,000 hold
            any object), and of one request of a download; 5 MiB to 1 GiB.
        parallel: requests of one transfer on their way at once; times ``part_bytes`` they bound
            its memory.
        cache: directory that keeps downloaded objects, also half of one over a restart; may be
            shared by processes. None: nothing is kept.
        max_cache_bytes: of the cache; the oldest objects are removed first.

    Raises:
        ValueError: a value out of range.
    """

    endpoint: str | None = None
    region: str | None = None
    allow_http: bool = False
    path_style: bool = True
    credentials: Credentials | None = None
    anonymous: bool = False
    ca_file: _Path | None = None
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    retries: int = 8
    retry_wait: float = 0.1
    max_retry_wait: float = 10.0
    retry_time: float = 120.0
    part_bytes: int = 8 << 20
    parallel: int = 4
    cache: _Path | None = None
    max_cache_bytes: int = 16 << 30

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("connect_timeout", "read_timeout"):
            _check(name, getattr(self, name), 1e-3, _MAX_SECONDS)
        for name in ("retry_wait", "max_retry_wait", "retry_time"):
            _check(name, getattr(self, name), 0.0, _MAX_SECONDS)
        _check("retries", self.retries, 0, 1000)
        _check("part_bytes", self.part_bytes, _MIN_PART, _MAX_PART)
        _check("parallel", self.parallel, 1, _MAX_PARALLEL)
        _check("max_cache_bytes", self.max_cache_bytes, 0, 1 << 62)
        if self.anonymous and self.credentials is not None:
            raise ValueError("credentials are of no use to anonymous requests")


def _check(name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} is {value}, but must be {least} to {most}")
