"""How a reader gets from what it holds to a version: the cheapest path by bytes.

Everything here reads and validates records only; no delta or weight is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BrokenChain, RolledBack, UntrustedDelta, WrongVersion
from .hop import Held, Hop, cheapest
from .manifest import AnchorFiles, Manifest

if TYPE_CHECKING:
    from .board import Board
    from .records import Start


@dataclass(frozen=True)
class Anchor:
    """A full checkpoint that a path begins with."""

    manifest: Manifest
    files: AnchorFiles


@dataclass(frozen=True)
class Path:
    """Steps in order: an anchor or none, then deltas.

    Attributes:
        goal: manifest of the version that the path leads to.
        anchor: loaded first; None: the path starts from what the reader holds.
        deltas: follow, each starting from the version that the one before leads to.
    """

    goal: Manifest
    anchor: Anchor | None
    deltas: tuple[Hop, ...]

    @property
    def first(self) -> int | None:
        """Oldest version that is fetched; None where there is nothing to do."""
        if self.anchor is not None:
            return self.anchor.manifest.version
        return self.deltas[0].version if self.deltas else None

    @property
    def bytes(self) -> int:
        """Bytes to fetch."""
        anchor = 0 if self.anchor is None else self.anchor.files.bytes
        return anchor + sum(hop.bytes for hop in self.deltas)


def find_path(
    board: Board,
    held: Held | None,
    to: int | None,
    *,
    from_anchor: bool = False,
    seen: Held | None = None,
    oldest: int = 0,
) -> Path:
    """The cheapest validated path to version ``to`` (None: the head).

    Args:
        held: what the reader holds; None: nothing that is known.
        from_anchor: begin with an anchor whatever is held. The chain from ``held`` is
            still validated.
        seen: the newest version that the reader has seen; the board must still hold it, or
            continue it.
        oldest: rely on no version before this one, for it may go at any moment.

    Raises:
        WrongVersion: the board is empty, ``to`` is not there, or was passed already.
        BrokenChain: manifests do not link up, or there is no usable anchor where one is needed.
        RolledBack: the board ends before, or holds another history than, ``held`` or ``seen``.
        UntrustedDelta: a record is not what it should be, or not signed by a trusted key.
    """
    goal = _goal(board, held, to, seen)
    if seen is not None and (held is None or seen.version != held.version):
        _check_seen(board, seen, goal)
    found = None if held is None else _chain_from(board, held, goal)
    start, chain = (None, []) if found is None else found
    if held is not None and held.version + 1 < oldest:
        start, chain = None, []  # checked as far as it is there, but not to be relied on
    paths = []
    if start is not None and not from_anchor:
        hops = cheapest(board.records, start, chain, goal)
        if hops is not None:
            deltas = Path(goal, None, hops)
            # No anchor has fewer bytes than the tensors.
            if deltas.bytes <= goal.dense_bytes:
                return deltas
            paths.append(deltas)
    if held is not None and not from_anchor:
        oldest = max(oldest, held.version + 1)
    anchored = _from_newest_anchor(board, goal, chain, oldest)
    if anchored is not None:
        paths.append(anchored)
    if not paths:
        raise BrokenChain(
            "no path: the deltas from the version held are not all there, and no anchor at or "
            "before the wanted version is; ask the publisher for an anchor",
            version=goal.version,
            path=board.url,
        )
    return min(paths, key=lambda path: path.bytes)


def _goal(board: Board, held: Held | None, to: int | None, seen: Held | None) -> Manifest:
    if to is None:
        head = board.head()
        _check_head(board, head, held, seen)
        if head is None:
            raise WrongVersion("the board has no version yet; publish one first", path=board.url)
        to = head
    if held is not None and to < held.version:
        raise WrongVersion(
            f"version {held.version} is held already, and the board cannot go back; start anew "
            "for an earlier version",
            version=to,
            path=board.url,
        )
    goal = board.find_manifest(to)
    if goal is None:
        head = board.head()
        _check_head(board, head, held, seen)
        state = "the board is empty" if head is None else f"the newest is {head}"
        raise WrongVersion(f"no such version: {state}", version=to, path=board.url)
    return goal


def _check_head(board: Board, head: int | None, held: Held | None, seen: Held | None) -> None:
    for what, known in (("held", held), ("remembered", seen)):
        if known is not None and (head is None or head < known.version):
            ends = "is empty" if head is None else f"ends at version {head}"
            raise RolledBack(
                f"the board {ends}, but version {known.version} is {what}: this is another board, "
                "or it lost versions, or somebody put an older copy in its place; start anew if "
                "you trust it",
                version=known.version,
                path=board.url,
            )


def _check_seen(board: Board, seen: Held, goal: Manifest) -> None:
    """Check that the board still holds, or continues, a version that was seen."""
    if seen.version <= goal.version:
        _chain_from(board, seen, goal)
        return
    own = board.records.manifest(seen.version, seen.digest)
    if own is not None:
        _check_same_history(board, seen, own)
        return
    _check_head(board, board.head(), None, seen)
    if board.store.has_version(goal.version):
        # Versions are collected in ascending order.
        raise _lost(board, seen.version, f"but holds the earlier version {goal.version}")


def _chain_from(board: Board, held: Held, goal: Manifest) -> tuple[Held, list[Manifest]] | None:
    """What is held, as the board has it, and the validated manifests after it up to ``goal``.

    None if some were collected.
    """
    first = held.version + 1
    own = board.records.manifest(held.version, held.digest)
    if own is not None:
        _check_same_history(board, held, own)
    if goal.version == held.version:
        _check_same_history(board, held, goal)
        return Held.of(goal), []
    if not board.store.has_version(first):
        _check_collected(board, held, first)
        return None
    start: Start | None = None
    if own is not None:
        held = Held.of(own)
        start = start_of(own)
    elif held.digest is not None and held.state is not None:
        start = (held.version, held.digest, held.state.hex(), 0, None)
    if start is None:
        # Nothing vouches for the link from what is held to the first manifest.
        return None
    try:
        return held, read_chain(board, first, goal, start)
    except BrokenChain:
        if board.store.has_version(first):
            raise
        # A collection is at work, which takes the oldest first.
        _check_collected(board, held, first)
        return None


def _check_collected(board: Board, held: Held, first: int) -> None:
    """Check that a collection explains why the version after the one held is not there.

    Its boundary was drawn before anything went. Where the store has no listings this is not known.
    """
    if held.digest is None or not board.store.lists:
        return
    boundary = board.boundary()
    if boundary is None or boundary <= first:
        raise _lost(board, held.version, f"nor version {first}, and no collection removed them")


def _lost(board: Board, version: int, what: str) -> RolledBack:
    return RolledBack(
        f"the board does not hold version {version}, which was seen on it, {what}: this is another "
        "board, or it lost versions; start anew if you trust it",
        version=version,
        path=board.url,
    )


def _check_same_history(board: Board, held: Held, own: Manifest) -> None:
    if held.digest is not None and held.digest != own.digest:
        raise RolledBack(
            f"the board's manifest of this version has digest {own.digest}, the one held has "
            f"{held.digest}: this is another board, or it was replaced; start anew if you trust it",
            version=held.version,
            path=board.url,
        )
    if held.state is not None and held.state != own.result_state:
        raise BrokenChain(
            f"the state held is {held.state.hex()}, the board's version ends in "
            f"{own.result_state.hex()}; start anew from an anchor",
            version=held.version,
            path=board.url,
        )


def start_of(manifest: Manifest) -> Start:
    """What a chain after this version must continue."""
    state = manifest.result_state.hex()
    return manifest.version, manifest.digest, state, manifest.epoch, manifest.run


def read_chain(board: Board, first: int, goal: Manifest, start: Start | None) -> list[Manifest]:
    """The validated manifests from ``first`` to ``goal``, which was read before.

    Raises:
        BrokenChain: they do not link up, with each other or with ``start``.
        UntrustedDelta: one is not what it should be, or not signed by a trusted key.
    """
    chain = board.records.chain(first, goal.version, start)
    if chain and chain[-1].digest != goal.digest:
        raise UntrustedDelta(
            "the manifest changed between two reads; manifests never change on a sound board",
            version=goal.version,
            path=board.url,
        )
    return chain


def _from_newest_anchor(
    board: Board, goal: Manifest, chain: Sequence[Manifest], oldest: int
) -> Path | None:
    """The path from the newest usable anchor: an older one costs as much, and more deltas.

    Args:
        chain: manifests read already.
        oldest: version before which no anchor is of use.
    """
    candidates = {goal.version}
    if goal.last_anchor is not None:
        candidates.add(goal.last_anchor.version)
    hint = board.store.hint()
    if hint is not None and hint[1] is not None:
        candidates.add(hint[1])
    candidates.update(item.version for item in chain if item.anchor is not None)
    found = _first_usable(board, goal, candidates, oldest)
    if found is None and not chain and board.store.lists:
        # The anchors that records name were collected, and one was added since: one short listing.
        found = _first_usable(board, goal, set(board.anchor_versions()) - candidates, oldest)
    return found


def _first_usable(board: Board, goal: Manifest, versions: set[int], oldest: int) -> Path | None:
    for version in sorted(versions, reverse=True):
        if oldest <= version <= goal.version:
            path = _anchor_path(board, goal, version)
            if path is not None:
                return path
    return None


def _anchor_path(board: Board, goal: Manifest, version: int) -> Path | None:
    if not board.store.has_version(version):
        return None
    manifests = read_chain(board, version, goal, None)
    files = find_anchor(board, manifests[0], goal)
    deltas = manifests[1:]
    if files is None:
        return None
    named = goal.last_anchor
    if (
        named is not None
        and named.version == version
        and named.digest not in (manifests[0].digest, board.records.anchor_digest(version))
    ):
        raise BrokenChain(
            f"version {goal.version} names an anchor with digest {named.digest}, which is not "
            "the one on the board",
            version=version,
            path=board.url,
        )
    hops = cheapest(board.records, Held.of(manifests[0]), deltas, goal)
    return None if hops is None else Path(goal, Anchor(manifests[0], files), hops)


def find_anchor(board: Board, manifest: Manifest, goal: Manifest) -> AnchorFiles | None:
    """The anchor of a version, committed with it or added later.

    Args:
        goal: of the version that it is to lead to.

    Raises:
        UntrustedDelta: an anchor record that belongs to another manifest, or that no trusted key
            signed.
    """
    if manifest.anchor is not None:
        return manifest.anchor
    record = board.records.anchor(manifest, goal)
    return None if record is None else record.anchor
