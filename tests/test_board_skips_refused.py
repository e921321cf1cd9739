"""Skip records that cannot be made, or must not be believed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from board_runs import (
    advance,
    fresh_memory,
    model,
    publish,
    same,
    stored,
    zeros,
)
from deltawire.board.manifest import VersionRef
from signed_runs import MALLORY, key, publish_signed, trainer
from skip_runs import publish_by_hand


def test_refusals(tmp_path: Path) -> None:
    board = dw.Board(fresh_memory(), create=True)
    publish(board, 4)
    before = stored(board)
    for base, version, message in [(3, 3, "later"), (4, 2, "later"), (2, 9, "no such version")]:
        with pytest.raises(dw.WrongVersion, match=message):
            board.add_skip(base, version)
    with pytest.raises(dw.WrongBase):
        board.add_skip(1, 3, weights=model(2))
    other = zeros({"another": np.zeros(3)})
    with pytest.raises(dw.LayoutMismatch, match=r"embed\.weight"):
        board.add_skip(1, 3, weights=other)
    assert stored(board) == before
    board.add_skip(1, 3)
    with pytest.raises(dw.VersionConflict, match="from version 1 already"):
        board.add_skip(1, 3)
    arrays = model(4)
    with board.publisher() as publisher:
        advance(arrays, 5)
        publisher.publish_anchor(5, arrays)
    with pytest.raises(dw.BrokenChain, match="version 5 on the way has no delta"):
        board.compose(3, 5, tmp_path / "file.dw")
    assert not (tmp_path / "file.dw").exists()
    for spans in ((1,), (4, 4), tuple(range(2, 19))):
        with pytest.raises(ValueError, match="skip_spans"):
            board.publisher(skip_spans=spans)


@pytest.mark.parametrize("what", ["manifest", "result state", "base", "base state"])
def test_records_of_other_versions(what: str) -> None:
    board = dw.Board(fresh_memory(), create=True)
    publish(board, 3)
    changes: dict[str, object] = {
        "manifest": {"manifest": "0" * 64},
        "result state": {"result_state": bytes(16)},
        "base": {"base": VersionRef(1, "0" * 64)},
        "base state": {"base_state": bytes(16)},
    }[what]
    publish_by_hand(board, 1, 3, model(1), model(3), **changes)
    target = model(1)
    with pytest.raises(dw.UntrustedDelta, match=f"another {what} ") as caught:
        board.follower(target, version=1).advance()
    assert caught.value.version == 3
    assert same(target, model(1))


def test_a_delta_that_is_not_what_its_record_says() -> None:
    board = dw.Board(fresh_memory(), create=True)
    publish(board, 3)
    wrong = model(3)
    wrong["layer.bias"][3] += 1
    publish_by_hand(board, 1, 3, model(1), wrong)
    target = model(1)
    with pytest.raises(dw.UntrustedDelta, match="result state"):
        board.follower(target, version=1).advance()
    assert same(target, model(1))


def test_altered_objects(tmp_path: Path) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    publish(board, 4)
    board.add_skip(1, 4)
    (delta,) = (tmp_path / "board/objects/4").glob("from-1-*.dw")
    whole = delta.read_bytes()
    for altered in (whole[:-1], whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]):
        delta.write_bytes(altered)
        target = model(1)
        with pytest.raises(dw.UntrustedDelta) as caught:
            board.follower(target, version=1).advance()
        assert str(caught.value.path).endswith(delta.name)
        assert same(target, model(1))
    path = tmp_path / "board/objects/4/from-1.json"
    value = json.loads(path.read_text())
    for change in (
        {"format": 2},
        {"requires": ["unknown"]},
        {"objects": []},
        {"version": 3},
        {"base": {"version": 2, "digest": value["base"]["digest"]}},
        {"objects": [value["objects"][0] | {"path": "anchors/0/x"}]},
        {"objects": [value["objects"][0] | {"path": "objects/../x"}]},
    ):
        path.write_text(json.dumps(value | change))
        with pytest.raises((dw.UntrustedDelta, dw.UnsupportedDelta)) as refused:
            board.follower(model(1), version=1).advance()
        assert str(refused.value.path).endswith("objects/4/from-1.json")


class TestSigned:
    @pytest.fixture
    def board(self) -> dw.Board:
        trust = dw.Trust([trainer().public])
        board = dw.Board(fresh_memory(), create=True, trust=trust)
        publish_signed(board, trainer(), 0, 4)
        return board

    def test_signed(self, board: dw.Board) -> None:
        board.add_skip(0, 4, key=trainer())
        target = model(0)
        (step,) = board.follower(target, version=0).advance()
        assert step.version == 4
        assert same(target, model(4))

    def test_without_a_key(self, board: dw.Board) -> None:
        before = stored(board)
        for reader in (board, dw.Board(board.url)):
            with pytest.raises(dw.UntrustedDelta, match="give a key"):
                reader.add_skip(0, 4)
        assert stored(board) == before

    def test_by_another(self, board: dw.Board) -> None:
        mallory = key("mallory", MALLORY)
        with pytest.raises(dw.UntrustedDelta):
            dw.Board(board.url).add_skip(0, 4, key=mallory)
        forger = dw.Board(board.url, trust=dw.Trust([trainer().public]))
        forger.add_skip(0, 4, key=mallory)
        target = model(0)
        with pytest.raises(dw.UntrustedDelta, match="mallory") as caught:
            board.follower(target, version=0).advance()
        assert str(caught.value.path).endswith("objects/4/from-0.json")
        assert same(target, model(0))

    def test_an_anchor_signature_is_no_skip_signature(self, board: dw.Board) -> None:
        """Bytes that were signed as one kind of record never count as another."""
        board.add_skip(0, 4, key=trainer())
        (found,) = board.store.skip_records([(4, 0)])
        assert found is not None
        ring = dw.Trust([trainer().public]).keyring()
        ring.check_skip(board.store, 4, 0, 4, "test", found[0])
        with pytest.raises(dw.UntrustedDelta):
            ring.check_skip(board.store, 4, 1, 4, "test", found[0])
        with pytest.raises(dw.UntrustedDelta):
            ring.check_skip(
                board.store, 4, 0, 4, "test", found[0].replace(b'"changed":', b'"changed":1')
            )
