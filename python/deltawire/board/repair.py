"""Rebuilding damaged tiles of a target, from an anchor and the deltas after it.

A tile is damaged where it holds neither what a delta starts from nor what it leads to. What it
should hold is read from the newest anchor at or before the version that the delta starts from, and
brought forward by the deltas in between, restricted to the tile. All of this happens in memory;
nothing is written before the delta is staged over the rebuilt tiles, which proves the whole.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..apply import Tile, damaged_tiles, stage
from ..checkpoint.directory import INDEX_NAME
from ..checkpoint.header import Entry
from ..errors import BrokenChain, LayoutMismatch, UntrustedDelta, WrongBase, WrongVersion
from ..tensors import Bytes, TensorView
from .anchor import weights
from .blocks import BlockFile, Range, Wanted, pieces
from .fetch import FetchedDelta, fetch_deltas
from .plan import Anchor, Path, find_path
from .transfer import Progress, fetch_object, of_version

if TYPE_CHECKING:
    from .board import Board
    from .manifest import AnchorFile

#: Most damaged bytes that are rebuilt; they are held in memory.
MOST_BYTES = 128 << 20
#: Most of a target that is rebuilt, as a fraction: beyond it an anchor is to be loaded.
MOST_SHARE = 1 / 4
_MAX_INDEX = 64 << 20


@dataclass(frozen=True)
class Rebuilt:
    """Tiles as they should be, and what they cost.

    Attributes:
        tiles: the delta applies to each.
        fetched: bytes that were fetched for them.
    """

    tiles: Sequence[Tile]
    fetched: int


def rebuild(
    board: Board,
    delta: FetchedDelta,
    target: Mapping[str, Any],
    *,
    partial: bool,
    threads: int | None,
    spool: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> Rebuilt | None:
    """What the damaged tiles of a target should hold before a delta; the target is only read.

    Args:
        delta: that the target is to be brought forward with.
        partial: the target holds a rank's part.
        spool: directory for deltas on their way.
        progress: called with the number of bytes just fetched.

    Returns:
        None where no tile is damaged, or more of the target than ``MOST_SHARE`` or ``MOST_BYTES``,
        or where no anchor and deltas lead to the version, or the deltas are cut in other tiles.

    Raises:
        UntrustedDelta: something on the board is not what a record vouches for, or does not lead to
            what the delta starts from.
        CorruptDelta, CorruptCheckpoint, UnsupportedDelta, LimitExceeded, StoreError.
    """
    with delta.blamed():
        tiles, held = damaged_tiles(delta.path, target, partial=partial, threads=threads)
    size = sum(tile.view.data.size for tile in tiles)
    if not tiles or size > min(MOST_BYTES, MOST_SHARE * held):
        return None
    base = delta.hop.base
    try:
        path = find_path(board, None, base.version, from_anchor=True)
    except (BrokenChain, WrongVersion):
        return None
    if path.anchor is None:
        return None
    if (path.goal.digest, path.goal.result_state) != (base.digest, base.state):
        raise UntrustedDelta(
            "the manifest changed between two reads; manifests never change on a sound board",
            version=path.goal.version,
            path=board.url,
        )
    rounds = _rounds(tiles)
    try:
        fetched = _read_anchor(board, path.anchor, tiles)
        fetched += _bring_forward(board, path, rounds, threads, spool, progress)
    except LayoutMismatch:
        return None
    with _blaming_the_board(board, base.version):
        for part in rounds:
            stage(delta.path, part, verify=False, partial=True, threads=threads)
    return Rebuilt(tiles, fetched)


def _rounds(tiles: Sequence[Tile]) -> list[dict[str, TensorView]]:
    """The tiles as partial targets, of which each holds at most one of a tensor."""
    rounds: list[dict[str, TensorView]] = []
    seen: dict[str, int] = {}
    for tile in tiles:
        number = seen.get(tile.name, 0)
        seen[tile.name] = number + 1
        if number == len(rounds):
            rounds.append({})
        rounds[number][tile.name] = tile.view
    return rounds


def _bring_forward(
    board: Board,
    path: Path,
    rounds: Sequence[Mapping[str, TensorView]],
    threads: int | None,
    spool: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> int:
    """Apply the deltas of a path to tiles of its anchor; returns the bytes fetched."""
    assert path.anchor is not None
    base = path.anchor.manifest.result_state
    deltas = fetch_deltas(board, path.deltas, base, spool=spool, progress=progress, only_for=rounds)
    try:
        for delta in deltas:
            with delta.blamed(), _blaming_the_board(board, delta.hop.version):
                for part in rounds:
                    stage(delta.path, part, verify=False, partial=True, threads=threads).commit()
        return sum(delta.fetched for delta in deltas)
    finally:
        for delta in deltas:
            delta.close()


@contextlib.contextmanager
def _blaming_the_board(board: Board, version: int) -> Iterator[None]:
    """A base that came from the board is not the target's fault."""
    try:
        yield
    except WrongBase as error:
        raise UntrustedDelta(
            "anchor and deltas of the board do not lead to the bits that this version's tile "
            "should hold; nothing was repaired. Tell the publisher",
            tensor=error.tensor,
            version=version,
            path=board.url,
        ) from error


def _read_anchor(board: Board, anchor: Anchor, tiles: Sequence[Tile]) -> int:
    """Fill tiles with the bits that an anchor has for them; returns the bytes fetched.

    Of a file with hashes of its blocks the blocks that hold the tiles are read, and checked; of
    others, which are small, all is.
    """
    missing: dict[str, list[TensorView]] = {}
    for tile in tiles:
        missing.setdefault(tile.name, []).append(tile.view)
    fetched = 0
    with of_version(anchor.manifest.version):
        for file in _likely_first(board, anchor, missing):
            if not missing:
                break
            fetched += _read_file(board, file, missing)
    if missing:
        name = next(iter(missing))
        raise LayoutMismatch(
            "is not in the anchor; tell the publisher",
            tensor=name,
            version=anchor.manifest.version,
            path=f"{board.url.rstrip('/')}/{anchor.files.path}",
        )
    return fetched


def _read_file(board: Board, file: AnchorFile, missing: dict[str, list[TensorView]]) -> int:
    """Fill what a file holds of the tensors that are missing."""
    place = f"{board.url.rstrip('/')}/{file.path}"
    places: list[tuple[Range, Bytes]] = []
    names: list[str] = []

    def choose(entries: tuple[Entry, ...]) -> list[Range]:
        for entry in entries:
            for view in missing.get(entry.name, ()):
                if (entry.dtype, entry.shape) != (view.dtype, view.shape):
                    raise LayoutMismatch(
                        f"is {entry.dtype} {list(entry.shape)} in the anchor, {view.dtype} "
                        f"{list(view.shape)} in the delta",
                        tensor=entry.name,
                        path=place,
                    )
                names.append(entry.name)
                for part, begin in pieces(view):
                    first = entry.start + begin
                    places.append(((first, first + part.size), part))
        places.sort(key=lambda place: place[0])
        return [item for item, _ in places]

    if file.blocks is None:
        sink = Wanted(file.bytes, place, choose)
        fetch_object(board, file, sink, None)
        found, fetched = sink.found(), file.bytes
    else:
        blocks = BlockFile(board, file)
        found = blocks.read(choose(blocks.header()))
        fetched = blocks.fetched
    for (_, part), raw in zip(places, found, strict=True):
        part[...] = np.frombuffer(raw, np.uint8).reshape(part.shape)
    for name in names:
        missing.pop(name, None)
    return fetched


def _likely_first(board: Board, anchor: Anchor, names: Mapping[str, object]) -> list[AnchorFile]:
    """The weight files, those first that the index names for these tensors.

    The index is read unchecked: it saves looking into files, and decides nothing else.
    """
    files = weights(anchor.files)
    likely: set[str] = set()
    if len(files) > 1:
        raw = board.store.read(f"{anchor.files.path}/{INDEX_NAME}", _MAX_INDEX)
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            weight_map = json.loads(raw or b"{}").get("weight_map", {})
            likely = {
                f"{anchor.files.path}/{weight_map[name]}" for name in names & weight_map.keys()
            }
    return sorted(files, key=lambda file: file.path not in likely)
