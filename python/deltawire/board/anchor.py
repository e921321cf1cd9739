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
from ..checkpoint.header import Entry
from ..checkpoint.write import split_shards, write_stream
from ..digest import state_digest
from ..errors import CorruptCheckpoint, LayoutMismatch, StoreError, UntrustedDelta
from ..tensors import Bytes, TensorView, as_views, require_writable
from .blocks import PIECE_BYTES, BlockFile, Range, pieces, read_header
from .manifest import AnchorFile, AnchorFiles, BlocksRef, Manifest, State
from .plan import Anchor
from .transfer import Counting, Progress, fetch_object, of_version

if TYPE_CHECKING:
    from .. import _native
    from .board import Board

#: Pieces that are asked for at once: the store's requests overlap.
_BATCH_BYTES, _BATCH_PIECES = 32 << 20, 1000
#: One segment of a path on a board.
PLAIN_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._+=@-]{1,200}")
_SUFFIX = ".safetensors"
#: Where the hashes of blocks lie in an anchor's directory.
_HASHES = "block-hashes"
#: Bytes of a block of a weight file, a power of two: readers of parts check them block by block.
BLOCK_BYTES = 256 << 10
#: Files of fewer blocks have no hashes of them: reading all of such a file costs little.
WORTH_BLOCKS = 16


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
        done: list[AnchorFile] = []
        for name, write in self._files(max_shard_bytes):
            path = f"{directory}/{name}"
            # The files that readers may want parts of.
            block_bytes = BLOCK_BYTES if name.endswith(_SUFFIX) else None
            upload = store.upload(path, block_bytes)
            opened(upload, path)
            write(upload if progress is None else Counting(upload, progress))
            path, length, blake3, hashes = upload.finish_with_blocks()
            blocks = None
            if length >= WORTH_BLOCKS * BLOCK_BYTES and hashes:
                path_of_hashes = store.blocks_path(directory, len(done))
                upload = store.upload(path_of_hashes)
                opened(upload, path_of_hashes)
                upload.write(hashes)
                blocks = BlocksRef(*upload.finish(), block_bytes=BLOCK_BYTES)
            done.append(AnchorFile(path, length, blake3, blocks))
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
            if not PLAIN_NAME.fullmatch(name) or name == _HASHES:
                raise StoreError(
                    "a board takes file names of A-Z a-z 0-9 . _ + = @ - only, and not "
                    f"{_HASHES!r}; rename the file or publish from a directory without it",
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
            while piece := file.read(PIECE_BYTES):
                sink.write(piece)
    except OSError as error:
        raise store_error(error, source, "cannot be read") from error


class AnchorLoader:
    """An anchor on its way into tensors in memory.

    ``check`` compares its tensors with the target's and checks all bytes that are needed; ``load``
    reads them again and writes. Neither holds more than some tens of MiB. For a rank's part, and
    of files that have hashes of their blocks, only the blocks that hold the part are read.
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
        self._places: list[tuple[AnchorFile, Entry]] = []
        self._blocks: dict[str, BlockFile] = {}
        #: Bytes that :meth:`check` fetched.
        self.bytes = 0

    @property
    def elements(self) -> int:
        """Elements of the target."""
        return sum(view.elements for view in self._views.values())

    def check(self) -> None:
        """Check the files' BLAKE3, and that they hold exactly the target's tensors.

        For a rank's part of files without hashes of their blocks all of them are read as well:
        their BLAKE3 is of the whole.

        Raises:
            UntrustedDelta: other bytes than the manifest's.
            CorruptCheckpoint: no valid safetensors file.
            LayoutMismatch: names, dtypes or shapes disagree.
            TargetError: the target cannot be written.
        """
        started = time.perf_counter()
        require_writable(self._views)
        self._places, self._blocks, self.bytes = [], {}, 0
        with of_version(self.manifest.version):
            for file in self._weights():
                if self._partial and file.blocks is not None:
                    blocks = self._blocks[file.path] = BlockFile(self._board, file)
                    entries = blocks.header()
                    blocks.forget()
                else:
                    fetch_object(self._board, file, None, None)
                    self.bytes += file.bytes
                    entries = self._read_header(file)
                self._places += [(file, entry) for entry in entries]
            self._compare()
            for path, batch in self._batches():
                if path in self._blocks:
                    self._blocks[path].check(_ranges(batch))
                self._forget(path)
        self._forget(None)
        self.bytes += sum(blocks.fetched for blocks in self._blocks.values())
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
            blocks = self._blocks.get(path)
            if blocks is None:
                found = self._board.store.read_ranges(path, _ranges(batch))
            else:
                with of_version(self.manifest.version):
                    found = blocks.read(_ranges(batch))
            self._forget(path)
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

    def _forget(self, path: str | None) -> None:
        """Drop what is kept of other files than this one."""
        for other, blocks in self._blocks.items():
            if other != path:
                blocks.forget()

    def _batches(self) -> Iterator[tuple[str, list[tuple[Bytes, int]]]]:
        """Pieces of the target and where their bytes begin, a few MiB of one file at a time."""
        for path, places in itertools.groupby(self._places, lambda place: place[0].path):
            batch: list[tuple[Bytes, int]] = []
            size = 0
            for _, entry in places:
                if entry.name not in self._views:
                    continue
                for piece, begin in pieces(self._views[entry.name]):
                    batch.append((piece, entry.start + begin))
                    size += piece.size
                    if size >= _BATCH_BYTES or len(batch) >= _BATCH_PIECES:
                        yield path, batch
                        batch, size = [], 0
            if batch:
                yield path, batch

    def _weights(self) -> list[AnchorFile]:
        return weights(self._files)

    def _where(self, path: str) -> str:
        return f"{self._board.url.rstrip('/')}/{path}"

    def _read_header(self, file: AnchorFile) -> tuple[Entry, ...]:
        store = self._board.store
        return read_header(
            lambda begin, end: store.read_range(file.path, begin, end),
            file.bytes,
            self._where(file.path),
        )

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


def weights(files: AnchorFiles) -> list[AnchorFile]:
    """The weight files of an anchor."""
    return [file for file in files.files if file.path.endswith(_SUFFIX)]


def _ranges(batch: list[tuple[Bytes, int]]) -> list[Range]:
    return [(start, start + piece.size) for piece, start in batch]
