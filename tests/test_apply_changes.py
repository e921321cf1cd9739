"""``base_state=``: the target was proven before, and only what changes is proven now."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import deltawire as dw
from deltawire.apply import Staged
from deltawire.types import Profile
from strategies import State, contents, examples, pairs, views, writing

RNG = np.random.default_rng(5)
OLD = RNG.integers(0x3A00, 0x3D00, (700, 96), np.uint16)
TOUCHED = RNG.random(OLD.shape) < 0.02
NEW = OLD + TOUCHED.astype(np.uint16)


def view(data: np.ndarray) -> dw.TensorView:
    return dw.TensorView.from_bytes("BF16", data.shape, bytearray(data.tobytes()))


def delta_of(profile: Profile, **options: Any) -> bytes:
    sink = io.BytesIO()
    dw.diff({"w": view(OLD)}, {"w": view(NEW)}, sink, profile=profile, version=1, **options)
    return sink.getvalue()


BEFORE = dw.state_digest({"w": view(OLD)})
AFTER = dw.state_digest({"w": view(NEW)})


@examples(100)
@given(pairs(most_tensors=3), writing())
def test_it_ends_in_the_same_bits(pair: tuple[State, State], options: dict[str, Any]) -> None:
    base, new = pair
    sink = io.BytesIO()
    stats = dw.diff(views(base), views(new), sink, **options)
    target = views(base)
    staged = dw.stage(sink.getvalue(), target, base_state=dw.state_digest(target))
    assert (staged.base_state, staged.result_state) == (stats.base_state, stats.result_state)
    done = staged.commit()
    assert contents(target) == contents(views(new))
    assert done.changed == stats.changed
    assert dw.state_digest(target) == stats.result_state


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
def test_a_chain_carries_its_proof_along(profile: Profile) -> None:
    target = {"w": view(OLD)}
    state = dw.apply(delta_of(profile), target, base_state=BEFORE).result_state
    assert state == AFTER
    # Once more: it is known to be done, and that is proven.
    again = dw.apply(delta_of(profile), target, base_state=state)
    assert (again.changed, again.skipped, again.result_state) == (0, again.chunks, AFTER)
    assert target["w"].data.tobytes() == NEW.tobytes()


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
def test_another_state_is_refused(profile: Profile) -> None:
    target = {"w": view(OLD)}
    with pytest.raises(dw.WrongBase, match="holds state") as caught:
        dw.apply(delta_of(profile), target, base_state=bytes(16))
    assert caught.value.version == 1
    assert target["w"].data.tobytes() == OLD.tobytes()


def test_an_element_that_stays_is_taken_on_trust() -> None:
    """That is what it saves; with the default nothing is."""
    stray = OLD.copy()
    row, col = np.argwhere(~TOUCHED)[1234]
    stray[row, col] ^= 1
    for profile in ("compact", "fast"):
        delta, target = delta_of(profile), {"w": view(stray)}
        with pytest.raises(dw.WrongBase):
            dw.apply(delta, target)
        dw.apply(delta, target, base_state=BEFORE)
        expected = NEW.copy()
        expected[row, col] = stray[row, col]
        assert target["w"].data.tobytes() == expected.tobytes()


def test_other_exponents_than_the_base_had() -> None:
    """Ranks that no element has are no reason to call the delta corrupt."""
    target = {"w": view(np.zeros_like(OLD))}
    with pytest.raises(dw.WrongBase):
        dw.apply(delta_of("compact"), target, base_state=BEFORE)
    assert not target["w"].data.any()


def test_without_states_tiles_are_proven() -> None:
    """A delta of changes that were found elsewhere names no states; then each tile is digested."""
    where = np.flatnonzero(TOUCHED)
    sink = io.BytesIO()
    with dw.StreamWriter(sink, {"w": ("BF16", OLD.shape)}, version=1) as writer:
        changes = dw.Changes(where.astype(np.int64), NEW.reshape(-1)[where])
        writer.add_changes("w", changes)
    assert dw.inspect(sink.getvalue()).result_state is None
    target = {"w": view(OLD)}
    dw.apply(sink.getvalue(), target, base_state=BEFORE)
    assert target["w"].data.tobytes() == NEW.tobytes()


def test_shards_are_proven_tile_by_tile() -> None:
    delta = delta_of("compact", tiling=dw.Tiling(1 << 12, 2, 1))
    stray = OLD.copy()
    stray[0, np.flatnonzero(~TOUCHED[0])[0]] ^= 1
    half = view(stray[:350])
    shard = dw.Shard(half, (700, 96), (0, 0))
    with pytest.raises(dw.WrongBase):
        dw.apply(delta, {"w": shard}, base_state=BEFORE)
    assert half.data.tobytes() == stray[:350].tobytes()


def test_tied_tensors_change_alike() -> None:
    both = {"a": view(OLD), "b": view(OLD)}
    sink = io.BytesIO()
    dw.diff(both, {"a": view(NEW), "b": view(NEW)}, sink)
    tied = view(OLD)
    dw.apply(sink.getvalue(), {"a": tied, "b": tied}, base_state=dw.state_digest(both))
    assert tied.data.tobytes() == NEW.tobytes()
    other = NEW.copy()
    other[tuple(np.argwhere(TOUCHED)[0])] += 1
    sink = io.BytesIO()
    dw.diff(both, {"a": view(NEW), "b": view(other)}, sink)
    tied = view(OLD)
    with pytest.raises(dw.WrongBase, match="memory"):
        dw.apply(sink.getvalue(), {"a": tied, "b": tied}, base_state=dw.state_digest(both))
    assert tied.data.tobytes() == OLD.tobytes()


@pytest.mark.parametrize("profile", ["compact", "fast", "overwrite"])
def test_a_flipped_bit_is_seen(profile: Profile) -> None:
    delta = delta_of(profile)
    for at in range(0, len(delta), 1 + len(delta) // 150):
        spoiled = bytearray(delta)
        spoiled[at] ^= 1 << at % 8
        target = {"w": view(OLD)}
        with pytest.raises(dw.DeltawireError):
            dw.apply(bytes(spoiled), target, base_state=BEFORE)
        assert target["w"].data.tobytes() == OLD.tobytes()


def test_a_torn_commit_in_a_chain_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that catches up carries its proof along, but not over a commit that failed."""
    states = [OLD]
    for _ in range(3):
        states.append(states[-1] + (RNG.random(OLD.shape) < 0.01).astype(np.uint16))
    board = dw.Board("memory://torn-chain", create=True)
    with board.publisher() as publisher:
        publisher.publish_anchor(0, {"w": view(OLD)})
        for version in (1, 2, 3):
            base, new = ({"w": view(states[v])} for v in (version - 1, version))
            publisher.publish(version, base=base, new=new)
    target = {"w": view(OLD)}
    follower = board.follower(target, version=0)
    real, commits = Staged.commit, 0

    def commit(staged: Staged) -> dw.ApplyStats:
        nonlocal commits
        commits += 1
        done = real(staged)
        if commits == 2:
            # All is written, and nobody has been told.
            raise dw.TargetTorn("the power failed")
        return done

    monkeypatch.setattr(Staged, "commit", commit)
    with pytest.raises(dw.TargetTorn):
        follower.advance()
    follower.advance()
    assert (follower.version, commits) == (3, 4)
    assert target["w"].data.tobytes() == states[3].tobytes()
