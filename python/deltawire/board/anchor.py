"""Anchors: full checkpoints on the board, written and loaded piece by piece."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

import numpy as np

from ..checkpoint import Checkpoint
from ..checkpoint.directory import INDEX_NAME, SINGLE_NAME, extra_files
from ..checkpoint.durable import store_error
from ..checkpoint.header import MAX_HEADER_BYTES, PREFIX_BYTES, Entry, parse_header
from ..checkpoint.write import split_shards, write_stream
from ..digest import state_digest
from ..errors import CorruptCheckpoint, LayoutMismatch, StoreError, UntrustedDelta
from ..tensors import Bytes, TensorView, as_views, require_writable
from .manifest import AnchorFiles, Manifest, ObjectRef, State
from .plan import Anchor
from .transfer import Counting, Progress, fetch_object, of_version

if TYPE_CHECKING:
    from .. import _native
    from .board import Board

#: Bytes in flight while an anchor is read or written.
_PIECE = 8 << 20
#: Pieces that are asked for at once: the store's requests overlap.
_BATCH_BYTES, _BATCH_PIECES = 32 << 20, 1000
#: One segment of a path on a board.
PLAIN_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._+=@-]{1,200}")
_SUFFIX = ".safetensors"


class _Sink(Protocol):
    def write(self, data: Any, /) -> int: ...


@dataclass(frozen=True)
class Source:
    """A checkpoint to be published.

    Attributes:
        tensors: its tensors.
        extras: files to copy beside the weights.
    """

    tensors: Mapping[str, TensorView]
    extras: list[Path]

    @classmethod
    def of(
        cls,
        checkpoint: str | os.PathLike[str] | Mapping[str, Any],
        extras: str | os.PathLike[str] | None,
    ) -> Source:
        """From a path, an open ``Checkpoint`` or a mapping of tensors.

        Args:
            extras: directory with configuration and tokenizer files; by default the
                checkpoint's own.

        Raises:
            StoreError, CorruptCheckpoint, LayoutMismatch: it cannot be read.
        """
        if isinstance(checkpoint, str | os.PathLike):
            checkpoint = Checkpoint.open(checkpoint)
        tensors: Mapping[str, TensorView]
        if isinstance(checkpoint, Checkpoint):
            tensors = checkpoint
            if extras is None and checkpoint.path.is_dir():
                extras = checkpoint.path
        else:
            tensors = as_views(checkpoint)
        files: list[Path] = []
        if extras is not None:
            try:
                files = extra_files(Path(extras))
            except OSError as error:
                raise store_error(error, Path(extras), "cannot be read") from error
        return cls(tensors, files)

    def upload(
        self,
        store: _native.BoardStore,
        directory: str,
        *,
        progress: Progress | None,
        max_shard_bytes: int,
        opened: Callable[[_native.BoardUpload, str], None],
    ) -> AnchorFiles:
        """Upload all files into ``directory`` of the board.

        Args:
            progress: called with the number of bytes just uploaded.
            opened: told of every upload before its first byte.
        """
        done = []
        for name, write in self._files(max_shard_bytes):
            path = f"{directory}/{name}"
            upload = store.upload(path)
            opened(upload, path)
            write(upload if progress is None else Counting(upload, progress))
            done.append(ObjectRef(*upload.finish()))
        return AnchorFiles(directory, tuple(done))

    def _files(self, max_shard_bytes: int) -> Iterator[tuple[str, Callable[[_Sink], None]]]:
        """Names and writers of all files, in the order of their upload."""
        copies = [(file.name, file) for file in self.extras]
        if isinstance(self.tensors, Checkpoint):
            weights = [(file.name, file) for file in self.tensors.files]
            if not self.tensors.path.is_dir():
                weights = [(SINGLE_NAME, self.tensors.path)]
            if self.tensors.index is not None:
                weights.append((self.tensors.index.name, self.tensors.index))
            copies = weights + copies
        for name, file in copies:
            if not PLAIN_NAME.fullmatch(name):
                raise StoreError(
                    "a board takes file names of A-Z a-z 0-9 . _ + = @ - only; rename the file or "
                    "publish from a directory without it",
                    path=str(file),
                )
        if not isinstance(self.tensors, Checkpoint):
            yield from self._shards(max_shard_bytes)
        for name, file in copies:
            yield name, partial(_copy, file)

    def _shards(self, limit: int) -> Iterator[tuple[str, Callable[[_Sink], None]]]:
        shards = split_shards(self.tensors, limit)
        weight_map: dict[str, str] = {}
        for number, names in enumerate(shards, 1):
            file = SINGLE_NAME
            if len(shards) > 1:
                file = f"model-{number:05d}-of-{len(shards):05d}{_SUFFIX}"
            weight_map.update(dict.fromkeys(names, file))
            yield file, partial(_encode, {name: self.tensors[name] for name in names})
        if len(shards) > 1:
            total = sum(view.nbytes for view in self.tensors.values())
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            raw = json.dumps(index, indent=2, ensure_ascii=False).encode() + b"\n"
            yield INDEX_NAME, partial(_put, raw)


def _encode(views: Mapping[str, TensorView], sink: _Sink) -> None:
    # Only write() is used.
    write_stream(cast(BinaryIO, sink), views, {"format": "pt"})


def _put(raw: bytes, sink: _Sink) -> None:
    sink.write(raw)


def _copy(source: Path, sink: _Sink) -> None:
    try:
        with source.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                sink.write(piece)
    except OSError as error:
        raise store_error(error, source, "cannot be read") from error


class AnchorLoader:
    """An anchor on its way into tensors in memory.

    ``check`` reads all of it and compares its tensors with the target's; ``load`` reads it again
    and writes. Neither holds more than a few MiB.
    """

    def __init__(
        self, board: Board, anchor: Anchor, target: Mapping[str, Any], *, partial: bool = False
    ) -> None:
        self._partial = partial
        self.manifest: Manifest = anchor.manifest
        self.check_seconds = 0.0
        self._board = board
        self._files = anchor.files
        self._views = as_views(target)
        self._places: list[tuple[ObjectRef, Entry]] = []

    @property
    def bytes(self) -> int:
        """Bytes of the anchor's weight files."""
        return sum(file.bytes for file in self._weights())

    @property
    def elements(self) -> int:
        """Elements of the target."""
        return sum(view.elements for view in self._views.values())

    def check(self) -> None:
        """Check the files' BLAKE3, and that they hold exactly the target's tensors.

        For a rank's part all of the files are read as well: their BLAKE3 is of the whole.

        Raises:
            UntrustedDelta: other bytes than the manifest's.
            CorruptCheckpoint: no valid safetensors file.
            LayoutMismatch: names, dtypes or shapes disagree.
            TargetError: the target cannot be written.
        """
        started = time.perf_counter()
        require_writable(self._views)
        self._places = []
        for file in self._weights():
            with of_version(self.manifest.version):
                fetch_object(self._board, file, None, None)
                self._places += [(file, entry) for entry in self._read_header(file)]
        self._compare()
        self.check_seconds = time.perf_counter() - started

    def load(self, threads: int | None) -> State:
        """Write all tensors, and check the state of the target.

        Returns:
            The target's state; of a rank's part its share, which is not checked.

        Raises:
            UntrustedDelta: the target does not end in the manifest's state; its contents are
                then unknown.
            StoreError: reading failed half way, with the same effect.
        """
        for path, batch in self._batches():
            ranges = [(start, start + piece.size) for piece, start in batch]
            found = self._board.store.read_ranges(path, ranges)
            for (piece, _), raw in zip(batch, found, strict=True):
                piece[...] = np.frombuffer(raw, np.uint8).reshape(piece.shape)
        state = state_digest(self._views, threads=threads)
        if not self._partial and state != self.manifest.result_state:
            raise UntrustedDelta(
                f"the anchor's state is {state.hex()}, its manifest says "
                f"{self.manifest.result_state.hex()}; the target's contents are unknown now. Tell "
                "the publisher, and follow again once there is another anchor",
                version=self.manifest.version,
                path=self._where(self._files.path),
            )
        return state

    def _batches(self) -> Iterator[tuple[str, list[tuple[Bytes, int]]]]:
        """Pieces of the target and where their bytes begin, a few MiB of one file at a time."""
        for path, places in itertools.groupby(self._places, lambda place: place[0].path):
            batch: list[tuple[Bytes, int]] = []
            size = 0
            for _, entry in places:
                if entry.name not in self._views:
                    continue
                for piece, begin in _pieces(self._views[entry.name]):
                    batch.append((piece, entry.start + begin))
                    size += piece.size
                    if size >= _BATCH_BYTES or len(batch) >= _BATCH_PIECES:
                        yield path, batch
                        batch, size = [], 0
            if batch:
                yield path, batch

    def _weights(self) -> list[ObjectRef]:
        return [file for file in self._files.files if file.path.endswith(_SUFFIX)]

    def _where(self, path: str) -> str:
        return f"{self._board.url.rstrip('/')}/{path}"

    def _read_header(self, file: ObjectRef) -> tuple[Entry, ...]:
        store = self._board.store
        where = self._where(file.path)
        if file.bytes < PREFIX_BYTES:
            raise CorruptCheckpoint("too short for a safetensors file", path=where, offset=0)
        length = int.from_bytes(store.read_range(file.path, 0, PREFIX_BYTES), "little")
        if length > min(MAX_HEADER_BYTES, file.bytes - PREFIX_BYTES):
            raise CorruptCheckpoint(f"a header of {length} bytes is claimed", path=where, offset=0)
        raw = store.read_range(file.path, PREFIX_BYTES, PREFIX_BYTES + length)
        return parse_header(raw, file.bytes, where).entries

    def _compare(self) -> None:
        found: dict[str, Entry] = {}
        for file, entry in self._places:
            if entry.name in found:
                raise CorruptCheckpoint(
                    "two files of the anchor hold this tensor",
                    tensor=entry.name,
                    path=self._where(file.path),
                )
            found[entry.name] = entry
        for name in found.keys() ^ self._views.keys():
            if self._partial and name in found:
                continue
            where = "target" if name in found else "anchor"
            raise self._mismatch(f"the {where} has no tensor of this name", name)
        for name, view in self._views.items():
            entry = found[name]
            if (entry.dtype, entry.shape) != (view.dtype, view.shape):
                raise self._mismatch(
                    f"{entry.dtype} {list(entry.shape)} in the anchor, {view.dtype} "
                    f"{list(view.shape)} in the target",
                    name,
                )

    def _mismatch(self, message: str, name: str) -> LayoutMismatch:
        return LayoutMismatch(
            message, tensor=name, version=self.manifest.version, path=self._where(self._files.path)
        )


def _pieces(view: TensorView) -> Iterator[tuple[Bytes, int]]:
    """The view cut into pieces of at most ``_PIECE`` bytes, and where they begin in the tensor."""
    data = view.data
    if data.size == 0:
        return
    stride = view.cols * view.itemsize
    row, col = view.corner or (0, 0)
    width, first = data.shape[1], row * stride + col * view.itemsize
    if width < stride:
        # A shard of columns: each row by itself.
        for number, line in enumerate(data):
            for begin in range(0, width, _PIECE):
                yield line[begin : begin + _PIECE], first + number * stride + begin
        return
    if data.flags.c_contiguous:
        data = data.reshape(1, -1)
        width = data.shape[1]
    if width >= _PIECE:
        for number, line in enumerate(data):
            for begin in range(0, width, _PIECE):
                yield line[begin : begin + _PIECE], first + number * width + begin
        return
    step = _PIECE // width
    for begin in range(0, len(data), step):
        yield data[begin : begin + step], first + begin * width
