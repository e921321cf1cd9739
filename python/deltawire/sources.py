"""Where tensors and deltas come from, and where deltas go."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from . import _native
from .checkpoint import Checkpoint
from .checkpoint.durable import new_file, store_error
from .errors import DeltawireError, StoreError
from .types import Limits

#: Anything that ``open`` takes as a path.
PathLike = str | os.PathLike[str]


class Sink(Protocol):
    """Takes bytes in order."""

    def write(self, data: bytes, /) -> int | None:
        """Takes all of ``data``, or returns how many bytes it took."""


def is_path(value: object) -> bool:
    """Whether a value names a file rather than being its contents."""
    return isinstance(value, str | os.PathLike)


@contextlib.contextmanager
def placed(path: str | None) -> Iterator[None]:
    """Adds the path to errors that do not name one."""
    try:
        yield
    except DeltawireError as error:
        if error.path is None:
            error.path = path
        raise


@contextlib.contextmanager
def opened_tensors(tensors: Any) -> Iterator[Mapping[str, Any]]:
    """Tensors as a mapping; a path is opened as a checkpoint and closed again."""
    if is_path(tensors):
        with Checkpoint.open(tensors) as checkpoint:
            yield checkpoint
    else:
        yield tensors


@contextlib.contextmanager
def opened_sink(sink: PathLike | Sink) -> Iterator[Sink]:
    """A sink to write a delta to.

    A path appears only when all is written and durable, and is then replaced as a whole. Devices
    and pipes are written directly.

    Raises:
        StoreError: with the path, where the file system refuses; nothing is left behind.
    """
    if not is_path(sink):
        yield cast(Sink, sink)
        return
    path = Path(os.fspath(cast(PathLike, sink)))
    if path.is_dir():
        raise StoreError("is a directory; name a file for the delta", path=str(path))
    with placed(str(path)):
        if path.exists() and not path.is_file():
            try:
                with open(path, "wb", buffering=0) as device:
                    yield cast(Sink, device)
            except OSError as error:
                raise store_error(error, path, "cannot be written") from error
        else:
            with new_file(path) as file:
                yield cast(Sink, file)


def open_delta(source: Any, limits: Limits | None = None) -> tuple[_native.Delta, str | None]:
    """A delta by range, and its path if it has one.

    Args:
        source: path, bytes-like object, or binary file object (read to its end).

    Raises:
        CorruptDelta, UnsupportedDelta, LimitExceeded: with path and offset.
        StoreError: the file cannot be read.
    """
    bounds = None if limits is None else limits.as_tuple()
    if is_path(source):
        path = os.fspath(source)
        try:
            with placed(path):
                return _native.Delta.from_path(path, bounds), path
        except OSError as error:
            raise StoreError(error.strerror or str(error), path=path) from error
    name = getattr(source, "name", None)
    path = name if isinstance(name, str) else None
    data = source.read() if hasattr(source, "read") else source
    with placed(path):
        return _native.Delta.from_bytes(
            data if isinstance(data, bytes) else bytes(data), bounds
        ), path
