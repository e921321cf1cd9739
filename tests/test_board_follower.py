"""Followers refuse what was altered or does not fit, and leave their target exactly as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltawire as dw
from board_runs import (
    Arrays,
    copied,
    fresh_memory,
    manifest_path,
    model,
    places,
    publish,
    same,
    zeros,
)
from kept import Kept, delta_name, flipped, manifest_name, published, reopened
from store_servers import S3


@pytest.fixture(params=["path", "s3"])
def both(request: pytest.FixtureRequest, tmp_path: Path, s3: S3) -> tuple[dw.Board, Kept]:
    """A board with versions 0, an anchor, to 3, and what holds it."""
    return published(request.param, tmp_path, s3, 3)


@pytest.fixture
def board(both: tuple[dw.Board, Kept]) -> dw.Board:
    """The board."""
    return both[0]


@pytest.fixture
def kept(both: tuple[dw.Board, Kept]) -> Kept:
    """What holds it."""
    return both[1]


def refused(
    board: dw.Board, version: int, error: type[dw.DeltawireError], message: str
) -> dw.DeltawireError:
    """A follower at ``version`` is refused, and neither it nor its target changes."""
    served = model(version)
    # Opened on a board of its own: nothing is remembered from before the damage.
    follower = reopened(board).follower(served, version=version)
    with pytest.raises(error, match=message) as caught:
        follower.advance(3)
    assert same(served, model(version))
    assert follower.version == version
    return caught.value


def test_altered_deltas(board: dw.Board, kept: Kept) -> None:
    """Also if it is the last of several: those before it are not applied either."""
    for version in (1, 3):
        name = delta_name(kept, version)
        whole = kept.read(name)
        for place in places(len(whole), 12):
            kept.write(name, flipped(whole, place))
            error = refused(board, 0, dw.UntrustedDelta, "BLAKE3")
            assert error.path == f"{board.url}/{name}"
        for other in (whole[:-1], whole + b"\0", b""):
            kept.write(name, other)
            refused(board, 0, dw.UntrustedDelta, "its manifest says")
        kept.remove(name)
        refused(board, 0, dw.StoreError, "no such object")
        kept.write(name, whole)
    board.follower(model(0), version=0).advance()


def test_altered_manifests(board: dw.Board, kept: Kept) -> None:
    for version in (1, 2, 3):
        name = manifest_name(version)
        whole = kept.read(name)
        for place in places(len(whole), 40):
            kept.write(name, flipped(whole, place))
            served = model(0)
            follower = reopened(board).follower(served, version=0)
            # The last manifest has no child that names its digest, so a change that leaves it
            # a valid manifest shows only where it contradicts something, or names no object.
            try:
                follower.advance(3)
            except (dw.UntrustedDelta, dw.BrokenChain, dw.UnsupportedDelta, dw.StoreError):
                assert same(served, model(0))
            else:
                assert version == 3
                assert same(served, model(3))
        kept.write(name, whole)


def test_a_missing_manifest_breaks_the_chain(board: dw.Board, kept: Kept) -> None:
    kept.remove(manifest_name(2))
    error = refused(board, 0, dw.BrokenChain, "not there")
    assert error.version == 2


def test_altered_anchors(board: dw.Board, kept: Kept) -> None:
    name = "anchors/0/model.safetensors"
    whole = kept.read(name)
    for place in places(len(whole), 12):
        kept.write(name, flipped(whole, place))
        served = zeros(model())
        follower = board.follower(served)
        with pytest.raises(dw.UntrustedDelta, match="BLAKE3"):
            follower.advance()
        assert same(served, zeros(model()))
        assert follower.version is None
    kept.remove(name)
    with pytest.raises(dw.StoreError, match="no such object"):
        board.follower(zeros(model())).advance()


def commit(board: dw.Board, **changes: Any) -> None:
    """Commit version 4 by hand: version 3's manifest with these changes."""
    head = board.manifest(3)
    value = json.loads(head.to_json())
    value.update(
        version=4,
        parent={"version": 3, "digest": head.digest},
        base_state=head.result_state.hex(),
        **changes,
    )
    board.store.commit(4, json.dumps(value).encode())


def test_a_delta_that_is_not_what_its_manifest_says(board: dw.Board) -> None:
    """Each object is intact, but it belongs to another version, or the state is a lie."""
    commit(board, result_state="00" * 16)
    served = model(3)
    follower = board.follower(served, version=3)
    with pytest.raises(dw.UntrustedDelta, match="the delta's version is 3") as caught:
        follower.advance()
    assert caught.value.version == 4
    assert same(served, model(3))
    served = model(2)
    with pytest.raises(dw.UntrustedDelta):
        board.follower(served, version=2).advance()
    assert same(served, model(2))


def test_no_delta_at_all(board: dw.Board) -> None:
    upload = board.store.upload("objects/4/0-junk.dw")
    upload.write(b"junk" * 100)
    path, length, blake3 = upload.finish()
    commit(board, objects=[{"path": path, "bytes": length, "blake3": blake3}])
    served = model(3)
    with pytest.raises(dw.CorruptDelta) as caught:
        board.follower(served, version=3).advance()
    assert caught.value.path == f"{board.url}/{path}"
    assert same(served, model(3))


def test_an_anchor_whose_state_is_a_lie(tmp_path: Path) -> None:
    """Only the full pass over the target can see it: the version is then given up."""
    board = dw.Board(fresh_memory(), create=True)
    publish(board, 0)
    value = json.loads(board.manifest(0).to_json())
    lying = dw.Board(fresh_memory(), create=True)
    for path, length in board.store.list_all("anchors"):
        upload = lying.store.upload(path)
        upload.write(board.store.read(path, length))
        upload.finish()
    lying.store.commit(0, json.dumps({**value, "result_state": "11" * 16}).encode())
    follower = lying.follower(zeros(model()))
    with pytest.raises(dw.UntrustedDelta, match="contents are unknown"):
        follower.advance()
    assert follower.version is None
    with pytest.raises(dw.TargetError, match="advance first"):
        follower.prove()
    with pytest.raises(dw.UntrustedDelta):
        lying.pull(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def altered_target(served: Arrays) -> None:
    served["embed.weight"] += 1


def test_a_target_that_does_not_hold_its_version(board: dw.Board) -> None:
    served = model(1)
    altered_target(served)
    before = copied(served)
    follower = board.follower(served, version=1)
    with pytest.raises(dw.WrongBase) as caught:
        follower.prove()
    assert caught.value.version == 1
    with pytest.raises(dw.WrongBase) as caught:
        follower.advance()
    assert caught.value.tensor == "embed.weight"
    assert same(served, before)
    assert follower.version == 1


def test_targets_that_do_not_fit(board: dw.Board) -> None:
    fitting = zeros(model())
    read_only = zeros(model())
    read_only["layer.weight"].flags.writeable = False
    more = {**fitting, "more": np.zeros(2)}
    fewer = {name: array for name, array in fitting.items() if name != "layer.bias"}
    reshaped = {**fitting, "layer.bias": np.zeros((3, 11))}
    retyped = {**fitting, "layer.bias": np.zeros(33, np.int64)}
    for target, error, tensor in [
        (read_only, dw.TargetError, "layer.weight"),
        (more, dw.LayoutMismatch, "more"),
        (fewer, dw.LayoutMismatch, "layer.bias"),
        (reshaped, dw.LayoutMismatch, "layer.bias"),
        (retyped, dw.LayoutMismatch, "layer.bias"),
    ]:
        before = copied(target)
        with pytest.raises(error) as caught:
            board.follower(target).advance()
        assert caught.value.tensor == tensor
        assert same(target, before)


def test_versions_out_of_reach(board: dw.Board) -> None:
    follower = board.follower(model(2), version=2)
    with pytest.raises(dw.WrongVersion, match="the newest is 3") as caught:
        follower.advance(4)
    assert caught.value.version == 4
    with pytest.raises(dw.WrongVersion, match="held already"):
        follower.advance(1)
    assert follower.advance(2) == []
    assert [step.version for step in follower.advance()] == [3]


def test_a_board_that_was_replaced(tmp_path: Path) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    publish(board, 3)
    served = model(2)
    follower = board.follower(served, version=2)
    other = dw.Board(tmp_path / "other", create=True)
    publish(other, 3)
    (tmp_path / "board").rename(tmp_path / "old")
    (tmp_path / "other").rename(tmp_path / "board")
    with pytest.raises(dw.BrokenChain, match="another board"):
        follower.advance()
    # Shorter than what is held.
    for version in (3, 2):
        manifest_path(tmp_path / "board", version).unlink()
    replaced = dw.Board(tmp_path / "board")
    follower._board = replaced
    with pytest.raises(dw.BrokenChain, match="ends at version 1"):
        follower.advance()
    assert same(served, model(2))


def test_an_anchor_record_of_another_manifest(board: dw.Board, kept: Kept) -> None:
    with board.publisher() as publisher:
        publisher.publish_anchor(3, model(3))
    name = f"manifests/{3:020d}.anchor.json"
    value = json.loads(kept.read(name))
    kept.write(name, json.dumps({**value, "manifest": "00" * 32}).encode())
    with pytest.raises(dw.UntrustedDelta, match="another manifest"):
        board.follower(zeros(model())).advance()


def test_hints_are_never_trusted(board: dw.Board, kept: Kept) -> None:
    for hint in [
        b"",
        b"junk",
        b'{"version":9}',
        b'{"version":1,"anchor":2}',
        b'{"version":3,"anchor":18446744073709551615}',
        b'{"version":0,"anchor":0}',
        b"x" * 10_000,
    ]:
        kept.write("latest.json", hint)
        fresh = reopened(board)
        assert fresh.head() == 3
        served = zeros(model())
        assert len(fresh.follower(served).advance()) == 4
        assert same(served, model(3))
