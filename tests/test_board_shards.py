"""Ranks that follow a board, each with its part of the tensors."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import deltawire as dw
from deltawire.digest import combine

Words = dict[str, npt.NDArray[np.uint16]]

RANKS = 4
#: Large enough for the default tiling to cut where four ranks do.
SHAPES = {
    "q_proj.weight": (4096, 1024),
    "down_proj.weight": (1024, 4096),
    "norm.weight": (1024,),
}


def model() -> Words:
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, 2**16, shape, np.uint16) for name, shape in SHAPES.items()}


def step(old: Words, seed: int) -> Words:
    rng = np.random.default_rng(seed)
    return {
        name: array + (rng.random(array.shape) < 0.05).astype(np.uint16)
        for name, array in old.items()
    }


def part(tensors: Words, rank: int) -> dict[str, dw.Shard]:
    """Rows of the one, columns of the other, and the whole of what is small, on every rank."""
    q, down, norm = tensors.values()
    rows = slice(rank * 1024, (rank + 1) * 1024)
    return {
        "q_proj.weight": dw.Shard(q[rows].copy(), q.shape, (rows.start, 0)),
        "down_proj.weight": dw.Shard(down[:, rows].copy(), down.shape, (0, rows.start)),
        "norm.weight": dw.Shard(norm.copy(), norm.shape, (0,)),
    }


def same(found: dict[str, dw.Shard], wanted: dict[str, dw.Shard]) -> bool:
    return all(np.array_equal(found[name].tensor, wanted[name].tensor) for name in wanted)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Words]]:
    """A board with an anchor and three deltas, and all states."""
    url = str(tmp_path_factory.mktemp("board") / "b")
    states = [model()]
    with dw.Board(url, create=True).publisher() as publisher:
        publisher.publish_anchor(0, states[0])
        for version in range(1, 4):
            states.append(step(states[-1], version))
            publisher.publish(version, base=states[-2], new=states[-1])
    return url, states


def test_a_rank_fetches_its_part(published: tuple[str, list[Words]]) -> None:
    url, states = published
    board = dw.Board(url)
    whole = sum(board.manifest(version).bytes for version in (1, 2, 3))
    proofs = []
    for rank in range(RANKS):
        target = part(states[0], rank)
        follower = board.follower(target, version=0)
        done = follower.advance()
        assert same(target, part(states[3], rank))
        fetched = sum(step.bytes for step in done)
        assert fetched < 0.3 * whole, f"{fetched / whole:.3f} of the whole"
        target["norm.weight"] = (
            part(states[3], 0)["norm.weight"]
            if rank == 0
            else dw.Shard(np.zeros(0, np.uint16), (1024,), (0,))
        )
        proofs.append(dw.state_digest(target))
    assert combine(*proofs) == board.manifest(3).result_state


def test_a_new_rank_loads_its_part_of_the_anchor(published: tuple[str, list[Words]]) -> None:
    url, states = published
    target = {
        name: dw.Shard(np.zeros_like(shard.tensor), shard.shape, shard.offset)
        for name, shard in part(states[0], 2).items()
    }
    follower = dw.Board(url).follower(target)
    follower.advance()
    assert follower.version == 3
    assert same(target, part(states[3], 2))
    follower.prove()
    target["q_proj.weight"].tensor[0, 0] ^= 1
    with pytest.raises(dw.WrongBase, match="changed by something else"):
        follower.prove()


def test_a_pipeline_stage_lacks_tensors(published: tuple[str, list[Words]]) -> None:
    url, states = published
    board = dw.Board(url)
    target = {"q_proj.weight": states[0]["q_proj.weight"].copy()}
    with pytest.raises(dw.LayoutMismatch, match="not in the target"):
        board.follower(target, version=0).advance()
    done = board.follower(target, version=0, partial=True).advance()
    assert np.array_equal(target["q_proj.weight"], states[3]["q_proj.weight"])
    assert sum(step.bytes for step in done) < 0.6 * sum(board.manifest(v).bytes for v in (1, 2, 3))


@pytest.mark.parametrize("which", ["chunk", "header", "index", "hashes"])
def test_altered_parts_are_refused(
    published: tuple[str, list[Words]], tmp_path: Path, which: str
) -> None:
    """Nobody looks at the BLAKE3 of the whole, but every record that is used has its own."""
    url, states = published
    board = dw.Board(url)
    manifest = board.manifest(1)
    (delta,) = manifest.objects
    assert delta.records is not None
    copy = tmp_path / "b"
    shutil.copytree(url, copy)
    path = copy / (delta.records.path if which == "hashes" else delta.path)
    raw = bytearray(path.read_bytes())
    place = {"chunk": len(raw) // 8, "header": 40, "index": len(raw) - 20, "hashes": 40}[which]
    raw[place] ^= 1
    path.write_bytes(raw)
    target = part(states[0], 0)
    follower = dw.Board(str(copy)).follower(target, version=0)
    with pytest.raises((dw.UntrustedDelta, dw.CorruptDelta)) as refused:
        follower.advance()
    assert delta.path.split("/")[-1].split(".")[0] in str(refused.value)
    assert same(target, part(states[0], 0))
    assert follower.version == 0


def test_small_models_are_cut_where_ranks_are() -> None:
    """The publisher says how finely."""
    old = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    board = dw.Board("memory://shards-tiling", create=True)
    with board.publisher() as publisher:
        publisher.publish_anchor(0, {"w": old})
        publisher.publish(1, base={"w": old}, new={"w": old + 1}, tiling=dw.Tiling(min_elements=1))
    target = {"w": dw.Shard(old[16:32].copy(), (64, 64), (16, 0))}
    board.follower(target, version=0).advance()
    assert np.array_equal(target["w"].tensor, old[16:32] + 1)


def test_small_deltas_have_no_hashes() -> None:
    board = dw.Board("memory://shards-small", create=True)
    with board.publisher() as publisher:
        publisher.publish_anchor(0, {"w": np.zeros(64, np.uint16)})
        publisher.publish(1, base={"w": np.zeros(64, np.uint16)}, new={"w": np.ones(64, np.uint16)})
    (delta,) = board.manifest(1).objects
    assert delta.records is None
    sink = io.BytesIO()
    assert board.fetch(1, sink) == delta.bytes
