"""Publishing and following: every version arrives with the publisher's exact bits."""

from __future__ import annotations

import json
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from board_runs import (
    advance,
    copied,
    fresh_memory,
    manifest_path,
    model,
    publish,
    same,
    stored,
    zeros,
)
from kept import reopened
from store_servers import S3


@pytest.fixture(params=["path", "file", "memory", "s3"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> dw.Board:
    """An empty board on each kind of store."""
    if request.param == "s3":
        s3: S3 = request.getfixturevalue("s3")
        return s3.board()
    urls = {
        "path": str(tmp_path / "board"),
        "file": f"file://{tmp_path}/a%20board",
        "memory": fresh_memory(),
    }
    return dw.Board(urls[request.param], create=True)


def test_every_version_arrives_bit_for_bit(board: dw.Board) -> None:
    served = zeros(model())
    follower = board.follower(served)
    assert (follower.version, follower.state) == (None, None)
    arrays = model()
    with board.publisher(run="run") as publisher:
        first = publisher.publish_anchor(0, arrays)
        assert (first.version, first.anchor) == (0, True)
        assert first.bytes > first.dense_bytes == sum(a.nbytes for a in arrays.values())
        (step,) = follower.advance()
        assert (step.version, step.anchor, step.state) == (0, True, first.result_state)
        for version in range(1, 6):
            base = copied(arrays)
            advance(arrays, version)
            done = publisher.publish(
                version, base=base, new=arrays, profile="compact", meta={"step": str(version)}
            )
            assert done.result_state == dw.state_digest(arrays)
            assert done.bytes == board.manifest(version).bytes
            (step,) = follower.advance()
            assert (step.version, step.anchor) == (version, False)
            assert (step.bytes, step.changed) == (done.bytes, done.changed)
            assert same(served, arrays)
            assert follower.prove() == follower.state == done.result_state
    assert follower.advance() == []
    assert board.head() == 5
    late = zeros(arrays)
    assert [step.version for step in board.follower(late).advance(3)] == [0, 1, 2, 3]
    assert same(late, model(3))


def test_profiles_and_sources(board: dw.Board, tmp_path: Path) -> None:
    """From files, open checkpoints and arrays; with every profile."""
    paths = []
    for version in range(4):
        paths.append(tmp_path / f"v{version}")
        dw.checkpoint.write_checkpoint(paths[-1], model(version))
    with board.publisher() as publisher, dw.Checkpoint.open(paths[2]) as two:
        publisher.publish_anchor(None, paths[0])
        publisher.publish(1, base=paths[0], new=paths[1], profile="fast")
        publisher.publish(2, base=paths[1], new=two, profile="overwrite")
        publisher.publish(None, base=two, new=model(3), profile="compact")
    served = zeros(model())
    board.follower(served).advance()
    assert same(served, model(3))


def test_what_manifests_say(board: dw.Board) -> None:
    publish(board, 3)
    newest, *older = board.log()
    assert [item.version for item in [newest, *older]] == [3, 2, 1, 0]
    assert [item.version for item in board.log(2)] == [3, 2]
    assert board.log(0) == []
    for child, parent in zip([newest, *older], older, strict=False):
        assert child.parent_version == parent.version
        assert child.parent_digest == parent.digest
        assert child.base_state == parent.result_state
        assert child.epoch == parent.epoch == 1
        assert child.last_anchor is not None
        assert child.last_anchor.version == 0
    assert newest.run == "test"
    assert newest.objects[0].path == f"objects/3/0-{newest.write_id}.dw"
    assert newest.bits_per_change == 8 * newest.bytes / newest.changed
    assert older[-1].anchor is not None
    assert older[-1].parent is older[-1].base_state is None
    json.dumps([item.as_dict() for item in board.log()])
    assert newest.as_dict()["result_state"] == newest.result_state.hex()


def test_delta_bytes_can_be_fetched(board: dw.Board, tmp_path: Path) -> None:
    publish(board, 1)
    with (tmp_path / "one.dw").open("wb") as file:
        assert board.fetch(1, file) == board.manifest(1).bytes
    arrays = model(0)
    dw.apply(tmp_path / "one.dw", arrays)
    assert same(arrays, model(1))
    info = dw.inspect(tmp_path / "one.dw")
    assert (info.run, info.version, info.base_version) == ("test", 1, 0)
    with pytest.raises(dw.WrongVersion, match="no delta"):
        board.fetch(0, file)


def test_wait_sees_a_version_that_comes(board: dw.Board) -> None:
    assert not board.wait(0, timeout=0)
    thread = threading.Thread(target=publish, args=(board, 2))
    thread.start()
    assert reopened(board).wait(2, timeout=60, poll=0.01)
    thread.join()
    assert board.wait(1, timeout=0)
    assert not board.wait(3, timeout=0.02, poll=0.01)


def test_a_version_that_was_collected_was_there(tmp_path: Path) -> None:
    board = dw.Board(tmp_path, create=True)
    publish(board, 4)
    for version in range(3):
        manifest_path(tmp_path, version).unlink()
    assert board.wait(1, timeout=10, poll=0.001)


def test_a_follower_that_knows_its_version(board: dw.Board) -> None:
    publish(board, 3)
    served = model(1)
    state = board.manifest(1).result_state
    follower = board.follower(served, version=1, state=state)
    assert (follower.version, follower.state) == (1, state)
    assert [step.version for step in follower.advance(2)] == [2]
    assert [step.version for step in follower.advance()] == [3]
    assert same(served, model(3))
    with pytest.raises(dw.WrongBase, match="anchor"):
        board.follower(served, version=1, state=bytes(16))


def test_staging_leaves_the_target_alone(board: dw.Board) -> None:
    publish(board, 3)
    served = model(1)
    follower = board.follower(served, version=1)
    assert follower.stage() == [2, 3]
    assert same(served, model(1))
    assert follower.version == 1
    assert [step.version for step in follower.commit()] == [2, 3]
    assert same(served, model(3))
    assert follower.commit() == []
    # An anchor is staged as well, and what is staged can be dropped.
    empty = zeros(model())
    follower = board.follower(empty)
    assert follower.stage(2) == [0, 1, 2]
    follower.discard()
    assert follower.commit() == []
    assert same(empty, zeros(model()))


def test_torch_tensors(board: dw.Board) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    old = {"w": torch.randn(65, 33, generator=generator).to(torch.bfloat16)}
    new = {"w": old["w"].clone()}
    new["w"].view(torch.int16)[::7, ::5] += 1
    served = {"w": torch.zeros(65, 33, dtype=torch.bfloat16)}
    with board.publisher() as publisher:
        publisher.publish_anchor(0, old)
        publisher.publish(1, base=old, new=new)
    board.follower(served).advance()
    assert torch.equal(served["w"].view(torch.int16), new["w"].view(torch.int16))


def test_targets_with_gaps_between_rows(board: dw.Board) -> None:
    publish(board, 1)
    served = {
        name: np.zeros((array.shape[0], array.shape[1] + 5), array.dtype)[:, :-5]
        if array.ndim == 2
        else np.zeros_like(array)
        for name, array in model().items()
    }
    board.follower(served).advance()
    assert same(served, model(1))


# --- Anchors -----------------------------------------------------------------------------


def test_an_anchor_is_an_ordinary_checkpoint(tmp_path: Path) -> None:
    source = tmp_path / "extras"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "tokenizer.model").write_bytes(b"\0\1")
    board = dw.Board(tmp_path / "board", create=True)
    with board.publisher() as publisher:
        publisher.publish_anchor(7, model(), extra_files=source, max_shard_bytes=9000)
    anchor = tmp_path / "board" / "anchors" / "7"
    names = sorted(path.name for path in anchor.iterdir())
    assert names == [
        "config.json",
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
        "tokenizer.model",
    ]
    with dw.Checkpoint.open(anchor) as checkpoint:
        assert same(checkpoint, model())
    # Its files are copied as they are when it is published from a path.
    other = dw.Board(tmp_path / "other", create=True)
    with other.publisher() as publisher:
        publisher.publish_anchor(0, anchor)
    for name in names:
        copy = tmp_path / "other" / "anchors" / "0" / name
        assert copy.read_bytes() == (anchor / name).read_bytes()
    served = zeros(model())
    other.follower(served).advance()
    assert same(served, model())


def test_a_single_file_becomes_a_directory(board: dw.Board, tmp_path: Path) -> None:
    dw.checkpoint.write_safetensors(tmp_path / "weights.safetensors", model())
    with board.publisher() as publisher:
        publisher.publish_anchor(0, tmp_path / "weights.safetensors")
    assert stored(board) == ["anchors/0/model.safetensors"]


def test_anchor_directories_are_not_used_twice(board: dw.Board) -> None:
    """Another writer may have begun, and may even still be writing, an anchor of this version."""
    publish(board, 1)
    board.store.claim_anchor(1, 1, "ab" * 16, 0)
    board.store.claim_anchor(2, 1, "ab" * 16, 0)
    with board.publisher() as publisher:
        publisher.publish_anchor(1, model(1))
        publisher.publish_anchor(2, model(2))
    assert stored(board)[:3] == [
        "anchors/0/model.safetensors",
        "anchors/1-2/model.safetensors",
        "anchors/2-2/model.safetensors",
    ]
    served = zeros(model())
    assert [step.version for step in board.follower(served).advance()] == [2]
    assert [step.version for step in board.follower(served).advance(1)] == [1]
    assert same(served, model(1))


def test_a_new_follower_takes_the_cheapest_anchor(board: dw.Board) -> None:
    publish(board, 4)
    with board.publisher() as publisher:
        with pytest.raises(dw.WrongBase, match="this version's"):
            publisher.publish_anchor(3, model(2))
        added = publisher.publish_anchor(3, model(3))
        assert (added.version, added.anchor) == (3, True)
        with pytest.raises(dw.VersionConflict, match="already has an anchor"):
            publisher.publish_anchor(3, model(3))
    # Found through the hint, until a version names it.
    served = zeros(model())
    assert [step.version for step in board.follower(served).advance()] == [3, 4]
    assert same(served, model(4))
    board.store.delete("latest.json")
    assert [step.version for step in board.follower(served).advance()] == [0, 1, 2, 3, 4]
    board.store.write_hint(4, 3)
    with board.publisher() as publisher:
        publisher.publish(5, base=model(4), new=model(5))
    board.store.delete("latest.json")
    assert board.manifest(5).last_anchor is not None
    assert [step.version for step in board.follower(served).advance()] == [3, 4, 5]
    # An earlier version than the anchor still has its way.
    assert [step.version for step in board.follower(served).advance(2)] == [0, 1, 2]
    assert same(served, model(2))


def test_a_chain_that_outweighs_an_anchor_is_not_taken(board: dw.Board) -> None:
    rng = np.random.default_rng(3)
    versions = [{"w": rng.integers(0, 2**32, 3000, dtype=np.uint32)} for _ in range(4)]
    with board.publisher() as publisher:
        publisher.publish_anchor(0, versions[0])
        for number in range(1, 4):
            publisher.publish(number, base=versions[number - 1], new=versions[number])
        publisher.publish_anchor(3, versions[3])
    served = copied(versions[0])
    follower = board.follower(served, version=0)
    (step,) = follower.advance()
    assert (step.version, step.anchor) == (3, True)
    assert same(served, versions[3])


def test_an_anchor_may_commit_a_version_with_another_layout(board: dw.Board) -> None:
    publish(board, 1)
    other = {"new": np.arange(100, dtype=np.float32)}
    with board.publisher() as publisher:
        done = publisher.publish_anchor(2, other)
        publisher.publish(3, base=other, new={"new": other["new"] + 1})
    assert board.manifest(2).base_state is None
    assert done.result_state == dw.state_digest(other)
    served = model(1)
    follower = board.follower(served, version=1)
    with pytest.raises(dw.LayoutMismatch, match="no tensor of this name"):
        follower.advance()
    assert same(served, model(1))
    assert follower.version == 1
    fitting = zeros(other)
    assert [step.version for step in board.follower(fitting).advance()] == [2, 3]
    assert same(fitting, {"new": other["new"] + 1})


def test_a_follower_whose_chain_was_collected(tmp_path: Path) -> None:
    board = dw.Board(tmp_path, create=True)
    publish(board, 5)
    with board.publisher() as publisher:
        publisher.publish_anchor(4, model(4))
    sleeper = model(1)
    follower = board.follower(sleeper, version=1)
    assert board.collect(keep=2).until == 4
    assert [step.version for step in follower.advance()] == [4, 5]
    assert same(sleeper, model(5))
    assert [item.version for item in dw.Board(tmp_path).log()] == [5, 4]
    # A version whose manifest is gone is of no use to start from.
    lost = model(1)
    assert [step.version for step in board.follower(lost, version=1).advance()] == [4, 5]


def test_boards_may_begin_anywhere(board: dw.Board) -> None:
    publish(board, 12, first=10)
    assert reopened(board).head() == 12
    board.store.delete("latest.json")
    assert reopened(board).head() == 12
    served = zeros(model())
    assert [step.version for step in board.follower(served).advance()] == [10, 11, 12]


def test_memory_boards_are_shared_by_name() -> None:
    url = fresh_memory()
    with pytest.raises(dw.StoreError, match="no memory board"):
        dw.Board(url)
    publish(dw.Board(url, create=True), 1)
    assert dw.Board(url).head() == 1
    assert dw.Board(url.replace("/run", "/other"), create=True).head() is None


def test_boards_work_after_a_fork(board: dw.Board) -> None:
    """The I/O threads of the parent do not exist in a child, which gets its own."""
    publish(board, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python dislikes forks of threaded processes
        child = os.fork()
    if child == 0:
        os._exit(0 if board.head() == 2 and board.manifest(1).version == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert board.head() == 2
