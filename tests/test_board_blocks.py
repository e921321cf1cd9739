"""Anchors that are read in parts: each block of a weight file has its BLAKE3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltawire as dw
from board_runs import fresh_memory, model, publish, stored, zeros
from deltawire import _native
from deltawire.board.blocks import PIECE_BYTES, BlockFile, Wanted, pieces
from kept import Kept, flipped, reopened
from repair_runs import (
    BLOCK,
    DENSE,
    counted,
    equal,
    fill,
    made,
    part,
    small_blocks,
    words,
)
from store_servers import S3

__all__ = ["small_blocks"]


@pytest.fixture(params=["memory", "path", "s3"])
def both(request: pytest.FixtureRequest, tmp_path: Path, s3: S3) -> tuple[dw.Board, Kept | None]:
    """A board with version 0, an anchor, and 1, and what holds it."""
    board, kept = made(request.param, tmp_path, s3)
    fill(board, 1)
    return board, kept


def blank(target: dict[str, dw.Shard]) -> dict[str, dw.Shard]:
    return {
        name: dw.Shard(np.zeros_like(shard.tensor), shard.shape, shard.offset)
        for name, shard in target.items()
    }


def weight_file(board: dw.Board, version: int = 0) -> Any:
    anchor = board.manifest(version).anchor
    assert anchor is not None
    (file,) = [file for file in anchor.files if file.path.endswith(".safetensors")]
    return file


def test_the_hashes_are_those_of_the_blocks(both: tuple[dw.Board, Kept | None]) -> None:
    board, _ = both
    file = weight_file(board)
    assert file.blocks is not None
    assert file.blocks.block_bytes == BLOCK
    assert file.blocks.path == "anchors/0/block-hashes/0"
    raw = board.store.read(file.path, file.bytes)
    hashes = board.store.read(file.blocks.path, file.blocks.bytes)
    assert raw is not None
    expected = [_native.blake3(raw[at : at + BLOCK]) for at in range(0, len(raw), BLOCK)]
    assert hashes == b"".join(expected)


def test_a_rank_reads_the_blocks_of_its_rows(tmp_path: Path) -> None:
    """A quarter of the rows is a quarter of the bytes, and some blocks at the edges."""
    board = dw.Board(tmp_path / "board", create=True)
    tensors = {"q_proj.weight": words()["q_proj.weight"], "k_proj.weight": words()["q_proj.weight"]}
    with board.publisher() as publisher:
        publisher.publish_anchor(0, tensors)
    whole = weight_file(board).bytes
    for rank in range(4):
        rows = slice(rank * 256, (rank + 1) * 256)
        target = {
            name: dw.Shard(np.zeros_like(array[rows]), array.shape, (rows.start, 0))
            for name, array in tensors.items()
        }
        counting, store = counted(reopened(board))
        follower = counting.follower(target)
        follower.stage()
        checked = store.bytes["anchors"]
        assert 0.25 * whole < checked < 0.3 * whole
        (done,) = follower.commit()
        assert done.bytes == checked
        # Once to check all of it before anything is written, and once to write it.
        assert store.bytes["anchors"] < 0.6 * whole
        assert all(np.array_equal(target[n].tensor, a[rows]) for n, a in tensors.items())


def test_ranks_with_columns_too(both: tuple[dw.Board, Kept | None]) -> None:
    board, _ = both
    for rank in (0, 3):
        counting, store = counted(reopened(board))
        target = blank(part(words(), rank))
        follower = counting.follower(target)
        follower.stage(0)
        # Rows of columns lie in every block: a quarter of the one tensor, all of the other.
        assert store.bytes["anchors"] < 0.7 * DENSE
        follower.commit()
        assert equal(target, part(words(), rank))
        follower.advance()
        assert equal(target, part(words(1), rank))


def test_stages_of_a_pipeline_read_their_tensors(both: tuple[dw.Board, Kept | None]) -> None:
    board, store = counted(both[0])
    target = {"norm.weight": np.zeros_like(words()["norm.weight"])}
    follower = board.follower(target, partial=True)
    follower.advance(0)
    assert np.array_equal(target["norm.weight"], words()["norm.weight"])
    assert store.bytes["anchors"] < 0.1 * DENSE


def test_whole_targets_are_checked_before_they_are_written(
    both: tuple[dw.Board, Kept | None],
) -> None:
    """All of it is read twice, as without blocks."""
    board, store = counted(both[0])
    target = {name: np.zeros_like(array) for name, array in words().items()}
    follower = board.follower(target)
    follower.stage(0)
    assert not any(array.any() for array in target.values())
    (done,) = follower.commit()
    assert equal(target, words())
    assert done.bytes == weight_file(board).bytes
    assert store.bytes["anchors"] < 2.1 * DENSE


@pytest.mark.parametrize("which", ["block", "first", "last", "hashes", "short", "gone"])
def test_what_was_altered_is_refused_by_name(
    both: tuple[dw.Board, Kept | None], which: str
) -> None:
    board, kept = both
    if kept is None:
        pytest.skip("no access past the board")
    file = weight_file(board)
    name = file.blocks.path if which in ("hashes", "short", "gone") else file.path
    raw = kept.read(name)
    # The rank's own rows are the last of `q_proj.weight`.
    place = {"block": len(raw) - 100, "first": 3, "last": len(raw) - 1, "hashes": 7}.get(which)
    if which == "gone":
        kept.remove(name)
    else:
        kept.write(name, raw[:-32] if place is None else flipped(raw, place))
    target = blank(part(words(), 3))
    follower = reopened(board).follower(target)
    error: type[dw.DeltawireError] = dw.StoreError if which == "gone" else dw.UntrustedDelta
    with pytest.raises(error) as caught:
        follower.advance()
    assert equal(target, blank(target))
    assert follower.version is None
    assert name in str(caught.value)
    assert caught.value.version == 0
    kept.write(name, raw)
    follower.advance(0)
    assert equal(target, part(words(), 3))


def test_blocks_that_change_after_they_were_checked(tmp_path: Path) -> None:
    """What is written was checked when it was read for that."""
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 0)
    target = blank(part(words(), 3))
    follower = board.follower(target)
    follower.stage()
    path = tmp_path / "board" / weight_file(board).path
    path.write_bytes(flipped(path.read_bytes(), -1))
    with pytest.raises(dw.UntrustedDelta, match="block"):
        follower.commit()
    assert follower.version is None


def test_layouts_are_compared_first(both: tuple[dw.Board, Kept | None]) -> None:
    board, store = counted(both[0])
    target = blank(part(words(), 0))
    target["norm.weight"] = dw.Shard(np.zeros(512, np.int16), (512,), (0,))
    with pytest.raises(dw.LayoutMismatch, match="I16"):
        board.follower(target).advance(0)
    assert store.bytes["anchors"] < 3 * BLOCK
    assert not target["q_proj.weight"].tensor.any()


def test_small_files_have_no_hashes(tmp_path: Path) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    publish(board, 1)
    assert weight_file(board).blocks is None
    assert not any("block-hashes" in path for path in stored(board))
    target = {"layer.bias": zeros(model())["layer.bias"]}
    follower = board.follower(target, partial=True)
    follower.advance(0)
    assert np.array_equal(target["layer.bias"], model()["layer.bias"])


def test_loaders_see_an_ordinary_checkpoint(tmp_path: Path) -> None:
    """The directory on the board, and the one that is pulled."""
    safetensors = pytest.importorskip("safetensors.numpy")
    board = dw.Board(tmp_path / "board", create=True)
    extras = tmp_path / "extras"
    extras.mkdir()
    (extras / "config.json").write_text("{}")
    with board.publisher() as publisher:
        publisher.publish_anchor(0, words(), extra_files=extras)
    directory = tmp_path / "board" / "anchors" / "0"
    names = {path.name for path in directory.iterdir()}
    assert names == {"model.safetensors", "config.json", "block-hashes"}
    assert not list(directory.rglob("block-hashes/*.*"))
    found = safetensors.load_file(directory / "model.safetensors")
    assert equal(found, words())
    with dw.Checkpoint.open(directory) as checkpoint:
        assert dw.state_digest(checkpoint) == board.manifest(0).result_state
    board.pull(tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"model.safetensors", "config.json", "deltawire.json"}
    # A board's directory may be published elsewhere: hashes are made anew, not copied.
    other = dw.Board(tmp_path / "other", create=True)
    with other.publisher() as publisher:
        publisher.publish_anchor(0, directory)
    assert [path for path in stored(other) if "hashes" in path] == ["anchors/0/block-hashes/0"]


def test_transformers_loads_the_directory(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=2048,
    )
    saved = transformers.LlamaForCausalLM(config)
    saved.save_pretrained(tmp_path / "saved")
    board = dw.Board(tmp_path / "board", create=True)
    with board.publisher() as publisher:
        publisher.publish_anchor(0, tmp_path / "saved")
    assert weight_file(board).blocks is not None
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "board/anchors/0")
    for name, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_a_file_in_the_place_of_the_hashes_is_refused(tmp_path: Path) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    extras = tmp_path / "extras"
    extras.mkdir()
    (extras / "block-hashes").write_text("x")
    with board.publisher() as publisher, pytest.raises(dw.StoreError, match="block-hashes"):
        publisher.publish_anchor(0, words(), extra_files=extras)
    assert board.head() is None


def test_a_failed_anchor_leaves_no_hashes(tmp_path: Path) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 1)
    before, uploaded = stored(board), []
    with board.publisher() as publisher:
        real = board.store

        class Failing:
            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

            def upload(self, path: str, *rest: int | None) -> Any:
                uploaded.append(path)
                if "hashes" in path:
                    raise dw.StoreError("full")
                return real.upload(path, *rest)

        publisher._store = Failing()  # type: ignore[assignment]
        with pytest.raises(dw.StoreError, match="full"):
            publisher.publish_anchor(1, words(1))
    assert uploaded[-1] == "anchors/1/block-hashes/0"
    assert stored(board) == before


def test_collection_and_sweeps(both: tuple[dw.Board, Kept | None]) -> None:
    """Hashes stay as long as their anchor does, also one that was added later, and go with it."""
    board, kept = both
    with board.publisher() as publisher:
        publisher.publish_anchor(1, words(1))
        publisher.publish(2, base=words(1), new=words(2))
        publisher.publish_anchor(2, words(2))
    everything = stored(board)
    hashes = [f"anchors/{version}/block-hashes/0" for version in (0, 1, 2)]
    assert set(hashes) <= set(everything)
    # Nothing of it is a leftover, however old.
    result = board.collect(keep=9, sweep=True, safety_age=0)
    assert result is not None
    assert stored(board) == everything
    # An anchor without its hashes is not whole, and no boundary.
    if kept is not None:
        raw = kept.read(hashes[1])
        kept.remove(hashes[1])
        board.collect(keep=2)
        assert board.boundary() is None
        kept.write(hashes[1], raw)
    board.collect(keep=2, sweep=True, safety_age=0)
    assert board.boundary() == 1
    assert [path for path in stored(board) if "hashes" in path] == hashes[1:]
    assert not [path for path in stored(board) if path.startswith(("anchors/0", "objects/0"))]
    if kept is not None and hasattr(kept, "root"):
        assert not (kept.root / "anchors" / "0").exists()
    target = blank(part(words(), 1))
    reopened(board).follower(target).advance()
    assert equal(target, part(words(2), 1))


def test_records_whose_blocks_cannot_be(tmp_path: Path) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 0)
    path = tmp_path / "board" / "manifests" / f"{0:020d}.json"
    record = json.loads(path.read_text())
    (file,) = [file for file in record["anchor"]["files"] if "blocks" in file]
    good = dict(file["blocks"])
    for change, says in [
        ({"block_bytes": 1000}, "power of two"),
        ({"block_bytes": 1 << 40}, "power of two"),
        ({"block_bytes": 2 * BLOCK}, "bytes of hashes"),
        ({"bytes": good["bytes"] + 1}, "bytes of hashes"),
        ({"path": "objects/0/x"}, "not a plain path"),
        ({"path": file["path"]}, "listed twice"),
    ]:
        file["blocks"] = {**good, **change}
        path.write_text(json.dumps(record))
        with pytest.raises(dw.UntrustedDelta, match=says):
            reopened(board).follower(blank(part(words(), 0))).advance()
    # Readers of before the hashes ignore them.
    file["blocks"] = good
    del file["blocks"]
    path.write_text(json.dumps(record))
    target = blank(part(words(), 0))
    reopened(board).follower(target).advance()
    assert equal(target, part(words(), 0))


def test_ranges_of_any_kind(tmp_path: Path) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 0)
    file = weight_file(board)
    raw = board.store.read(file.path, file.bytes)
    assert raw is not None
    rng = np.random.default_rng(3)
    blocks = BlockFile(board, file)
    for _ in range(50):
        ends = np.sort(rng.integers(0, len(raw) + 1, (rng.integers(1, 9), 2)), axis=1)
        ranges = [(int(a), int(b)) for a, b in ends]
        assert blocks.read(ranges) == [raw[a:b] for a, b in ranges]
    assert blocks.read([]) == []
    assert blocks.read([(5, 5), (0, len(raw))]) == [b"", raw]


def test_a_sink_for_a_whole_file_keeps_what_is_wanted(tmp_path: Path) -> None:
    """Whatever pieces it comes in."""
    board = dw.Board(tmp_path / "board", create=True)
    fill(board, 0)
    file = weight_file(board)
    raw = board.store.read(file.path, file.bytes)
    assert raw is not None
    for size in (1, 7, 100, 5000, len(raw)):
        sink = Wanted(
            len(raw), "x", lambda entries: [(e.start, e.start + min(e.nbytes, 99)) for e in entries]
        )
        stop = len(raw) if size > 100 else 3000
        for at in range(0, stop, size):
            sink.write(raw[at : min(at + size, stop)])
        if stop < len(raw):
            sink.write(raw[stop:])
        with dw.Checkpoint.open(tmp_path / "board" / file.path) as checkpoint:
            found = {view.data.tobytes()[:99] for view in checkpoint.values()}
        assert set(sink.found()) == found
    for bad in (b"", b"abc", b"\xff" * 8 + b"{}", (9).to_bytes(8, "little") + b"{garbage}"):
        sink = Wanted(len(bad), "x", lambda entries: [])
        sink.write(bad)
        with pytest.raises(dw.CorruptCheckpoint):
            sink.found()


def test_pieces_cover_a_view() -> None:
    """Of any shape; seen through the offsets in the tensor."""
    rows, cols = 300, 40_000
    whole = np.arange(rows * cols, dtype=np.uint32)
    flat = whole.view(np.uint8)
    for box in [(0, 300, 0, 40_000), (7, 290, 0, 40_000), (5, 200, 100, 3000), (9, 10, 0, 40_000)]:
        top, bottom, left, right = box
        shard = whole.reshape(rows, cols)[top:bottom, left:right].copy()
        view = dw.Shard(shard, (rows, cols), (top, left)).view()
        total = 0
        for piece, begin in pieces(view):
            assert piece.size <= PIECE_BYTES
            assert np.array_equal(piece.reshape(-1), flat[begin : begin + piece.size])
            total += piece.size
        assert total == shard.nbytes


def test_what_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hash for 256 KiB, of files of four MiB and more."""
    monkeypatch.undo()
    board = dw.Board(fresh_memory(), create=True)
    tensors = {"a": np.zeros(5 << 20, np.uint8), "b": np.ones(3 << 20, np.uint8)}
    with board.publisher() as publisher:
        publisher.publish_anchor(0, tensors, max_shard_bytes=5 << 20)
    anchor = board.manifest(0).anchor
    assert anchor is not None
    sizes = [
        None if file.blocks is None else (file.blocks.block_bytes, file.blocks.bytes)
        for file in anchor.files
    ]
    assert sizes == [(256 << 10, 21 * 32), None, None]
