"""The extension module: conversion and error mapping only. Use the package's own names."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "DEBUG_BUILD",
    "DTYPES",
    "ERROR_KINDS",
    "BoardStore",
    "BoardUpload",
    "Chunk",
    "Delta",
    "FaultPlan",
    "Findings",
    "Keyring",
    "Plan",
    "PushReader",
    "SigningKey",
    "Writer",
    "__version__",
    "blake3",
    "board_collect",
    "board_control",
    "board_leases",
    "boundary",
    "check_public_key",
    "compose",
    "differing",
    "join",
    "load_keyring",
    "record_signer",
    "remove_lease",
    "save_public_key",
    "tensor_digests",
    "tile_shape",
    "write_lease",
]

ERROR_KINDS: list[str]
DTYPES: list[tuple[str, int]]
DEBUG_BUILD: bool
__version__: str

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]
_Matrix = _Bytes | tuple[_Bytes, int, int, int, int]
_Limits = tuple[int, int, int]
_Progress = Callable[[int], object]
_Parts = tuple[int, int, bytes, bytes, bytes, bytes]

@final
class Writer:
    def __new__(
        cls,
        sink: Any,
        tensors: list[tuple[str, str, list[int], tuple[int, int] | None]],
        *,
        run: str,
        version: int,
        base_version: int | None,
        base_state: bytes | None,
        profile: str,
        meta: dict[str, str],
        threads: int | None,
        max_tile_elements: int,
        tile_ways: int,
        min_tile_elements: int,
    ) -> Writer: ...
    def add(
        self, pairs: list[tuple[int, _Matrix, _Matrix]], progress: _Progress | None = None
    ) -> None: ...
    def add_found(
        self,
        tensor: int,
        positions: npt.NDArray[np.int64],
        values: _Bytes,
        base: _Matrix | None = None,
    ) -> None: ...
    def begin(self, tensor: int, findings: Findings) -> None: ...
    def add_after(
        self, tensor: int, findings: Findings, items: list[tuple[int, _Matrix, bytes]]
    ) -> list[tuple[str, bytes]]: ...
    def add_proven(
        self,
        tensor: int,
        items: list[tuple[int, tuple[Any, ...] | None, bytes, bytes]],
    ) -> None: ...
    def partition(
        self, tensor: int, tile: int, base: _Matrix, new: _Matrix
    ) -> tuple[_Parts | None, int]: ...
    def tiles(self, tensor: int, held: _Matrix) -> list[int]: ...
    def add_partitions(
        self,
        tensor: int,
        base: bytes,
        result: bytes,
        items: list[tuple[int, tuple[Any, ...], int]],
    ) -> None: ...
    def finish(self) -> tuple[int, int, int, bytes | None, bytes | None, bytes]: ...
    def abandon(self) -> None: ...

@final
class Findings:
    def __new__(
        cls,
        name: str,
        dtype: str,
        shape: list[int],
        tile: tuple[int, int],
        place: tuple[int, int, int, int],
        positions: npt.NDArray[np.int64],
        sure: bytes,
        old: bytes,
        other: bytes,
        blind: bool = False,
    ) -> Findings: ...
    def start(self) -> bytes: ...
    def tiles(self) -> list[tuple[int, int, int, int, int, int]]: ...
    def digests(
        self, items: list[tuple[int, _Matrix]], threads: int | None = None
    ) -> list[bytes]: ...
    def rewind_pieces(
        self, items: list[tuple[int, int, _Matrix, bytes]]
    ) -> list[tuple[str, bytes, bytes]]: ...
    def rewind(
        self, items: list[tuple[int, _Matrix, bytes]], threads: int | None = None
    ) -> list[tuple[str, bytes, bytes, bytes, bytes]]: ...

@final
class Plan:
    @property
    def skipped(self) -> int: ...
    @property
    def changed(self) -> int: ...
    @property
    def states(self) -> tuple[bytes | None, bytes] | None: ...
    @property
    def sums(self) -> tuple[bytes, bytes] | None: ...

@final
class Delta:
    @staticmethod
    def from_path(path: str | PathLike[str], limits: _Limits | None = None) -> Delta: ...
    @staticmethod
    def slices(path: str, places: list[tuple[int, int, str]]) -> list[Delta]: ...
    @staticmethod
    def from_bytes(data: bytes, limits: _Limits | None = None) -> Delta: ...
    def info(self) -> dict[str, Any]: ...
    def needed(self, target: list[_Matrix]) -> list[tuple[int, int, int]]: ...
    def chunk_table(self) -> list[tuple[int, int, int, int, str, int | None]]: ...
    def __len__(self) -> int: ...
    def chunk(self, i: int) -> Chunk: ...
    def plan(
        self,
        target: list[_Matrix],
        aliases: list[int | None],
        full: bool,
        threads: int | None = None,
        progress: _Progress | None = None,
        replaced: list[tuple[int, int, _Matrix]] | None = None,
        trusted: bool = False,
    ) -> Plan: ...
    def damaged(
        self, target: list[_Matrix], threads: int | None = None
    ) -> list[tuple[int, int, int, int, int, int]]: ...
    def commit(self, plan: Plan, target: list[_Matrix], threads: int | None = None) -> int: ...

@final
class Chunk:
    @property
    def tensor(self) -> str: ...
    @property
    def tile(self) -> int: ...
    @property
    def bounds(self) -> list[int]: ...
    @property
    def changes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def codec(self) -> str: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def result(self) -> int | None: ...
    def partition(self) -> _Parts | None: ...
    def positions(self, base: _Matrix | None = None) -> bytes: ...
    def apply(self, target: _Matrix) -> bool: ...

@final
class PushReader:
    def __new__(cls, limits: _Limits | None = None) -> PushReader: ...
    def feed(self, data: bytes) -> list[Chunk]: ...
    def finish(self) -> None: ...
    def header(self) -> dict[str, Any]: ...

def blake3(data: bytes) -> bytes: ...
def boundary(
    w: _Floats,
    m: _Floats,
    v: _Floats,
    *,
    decay: float,
    alpha: float,
    root: float,
    eps: float,
    divide_first: bool,
    contracted: bool,
    margin: int,
    threads: int | None = None,
) -> tuple[bytes, bytes, bytes, bytes] | None: ...
def compose(
    sink: object,
    deltas: list[Delta],
    base: list[_Matrix] | None,
    profile: str,
    threads: int | None = None,
    progress: _Progress | None = None,
) -> tuple[int, int, int, bytes | None, bytes | None, bytes]: ...
def join(
    sink: object | None,
    parts: list[tuple[Delta, list[int] | None, str]],
    *,
    run: str,
    version: int,
    base_version: int | None,
    base_state: bytes,
    result_state: bytes,
    meta: dict[str, str],
) -> tuple[int, int, int, int]: ...
def tensor_digests(
    tensors: list[tuple[str, str, list[int]]],
    data: list[_Matrix],
    threads: int | None = None,
    progress: _Progress | None = None,
) -> list[bytes]: ...
def differing(before: _Matrix, after: _Matrix, width: int) -> bytes: ...
def tile_shape(
    name: str,
    dtype: str,
    shape: list[int],
    tiling: tuple[int, int, int],
    steps: tuple[int | None, int | None],
) -> list[int] | None: ...

@final
class SigningKey:
    @staticmethod
    def from_seed(name: str, seed: bytearray) -> SigningKey: ...
    @staticmethod
    def load(path: str) -> SigningKey: ...
    def save(self, path: str) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def ed25519(self) -> str: ...
    def introduce(
        self, store: BoardStore, run: str, name: str, ed25519: str, first: int, time_ms: int
    ) -> None: ...

@final
class Keyring:
    def __new__(
        cls,
        keys: list[tuple[str, str, int, int | None, bool]],
        run: str | None,
        introductions: bool,
    ) -> Keyring: ...
    def check_manifest(self, store: BoardStore, version: int, record: bytes) -> str: ...
    def check_anchor(
        self,
        store: BoardStore,
        version: int,
        goal: int,
        run: str,
        vouched: bool,
        record: bytes,
    ) -> str: ...
    def check_skip(
        self, store: BoardStore, version: int, base: int, goal: int, run: str, record: bytes
    ) -> str: ...
    def introduced(self) -> list[tuple[str, str, int, str]]: ...
    def remember(self, name: str, ed25519: str, first: int, by: str) -> None: ...

def load_keyring(path: str) -> list[tuple[str, str, int, int | None, bool]]: ...
def check_public_key(name: str, ed25519: str) -> str: ...
def save_public_key(name: str, ed25519: str, path: str) -> None: ...
def record_signer(record: bytes) -> str | None: ...

@final
class BoardStore:
    def __new__(
        cls, url: str, create: bool, options: Any = None, faults: FaultPlan | None = None
    ) -> BoardStore: ...
    @property
    def url(self) -> str: ...
    @property
    def lists(self) -> bool: ...
    def read(self, path: str, limit: int) -> bytes | None: ...
    def read_range(self, path: str, start: int, end: int) -> bytes: ...
    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]: ...
    def delete(self, path: str) -> None: ...
    def list_all(self, directory: str) -> list[tuple[str, int]]: ...
    def fetch(self, path: str, length: int, blake3: str, sink: Any = None) -> None: ...
    def upload(self, path: str, block_bytes: int | None = None) -> BoardUpload: ...
    @staticmethod
    def blocks_path(directory: str, number: int) -> str: ...
    @staticmethod
    def object_path(version: int, part: int, write_id: str) -> str: ...
    @staticmethod
    def records_path(version: int, part: int, write_id: str) -> str: ...
    @staticmethod
    def part_paths(version: int, part: int, write_id: str, upload: str) -> list[str]: ...
    def head(self, known: int | None = None) -> int | None: ...
    def hint(self) -> tuple[int, int | None] | None: ...
    def write_hint(self, version: int, anchor: int | None) -> None: ...
    def has_version(self, version: int) -> bool: ...
    def manifest(self, version: int) -> tuple[bytes, str] | None: ...
    def chain(
        self, first: int, last: int, start: tuple[int, str, str, int, str | None] | None = None
    ) -> list[tuple[bytes, str]]: ...
    def commit(self, version: int, manifest: bytes, key: SigningKey | None = None) -> str: ...
    def discard(self, version: int, write_id: str, objects: list[str]) -> bool: ...
    def acquire_epoch(self, write_id: str, time_ms: int) -> int: ...
    def check_epoch(self, epoch: int) -> None: ...
    def claim_anchor(self, version: int, epoch: int, write_id: str, time_ms: int) -> str: ...
    def anchor_record(self, version: int) -> tuple[bytes, str] | None: ...
    def commit_anchor(self, version: int, record: bytes, key: SigningKey | None = None) -> str: ...
    @staticmethod
    def skip_paths(version: int, base: int, write_id: str) -> list[str]: ...
    def skip_records(self, pairs: list[tuple[int, int]]) -> list[tuple[bytes, str] | None]: ...
    def commit_skip(
        self, version: int, base: int, record: bytes, key: SigningKey | None = None
    ) -> str: ...

@final
class BoardUpload:
    def write(self, data: Any) -> int: ...
    def finish(self) -> tuple[str, int, str]: ...
    def finish_with_blocks(self) -> tuple[str, int, str, bytes]: ...
    def abort(self) -> None: ...

def board_collect(
    board: BoardStore,
    *,
    keep: int,
    older_than_ms: int,
    safety_ms: int,
    grace_ms: int,
    sweep: bool,
    dry_run: bool,
    now_ms: int,
    write_id: str,
    trust: Keyring | None = None,
) -> dict[str, Any] | None: ...
def board_control(board: BoardStore) -> tuple[int | None, list[int], int]: ...
def board_leases(
    board: BoardStore,
) -> list[tuple[str, str, int | None, int | None, int, int, int]]: ...
def write_lease(
    board: BoardStore,
    id: str,
    name: str,
    *,
    version: int | None,
    target: int | None,
    needs: int,
    expires_ms: int,
    time_ms: int,
) -> None: ...
def remove_lease(board: BoardStore, id: str) -> None: ...

@final
class FaultPlan:
    def __new__(cls, seed: int) -> FaultPlan: ...
    def add(
        self,
        fault: str,
        on: Sequence[str],
        path: str,
        skip: int,
        times: int | None,
        probability: float,
        milliseconds: int,
        bytes: int,
        operations: int,
    ) -> None: ...
    def clear(self) -> None: ...
    def crash(self) -> None: ...
    @property
    def crashed(self) -> bool: ...
    def settle(self) -> int: ...
    def counts(self) -> dict[str, int]: ...
    def injected(self) -> dict[str, int]: ...
    def events(self) -> list[tuple[int, str, str, str | None]]: ...
