"""New keys, introduced by old ones; what a stolen key can do, and what ends it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import deltawire as dw
from board_runs import manifest_path, model, same, zeros
from signed_runs import MALLORY, anchor_path, key, publish_signed, replaced, trainer

NEXT = bytes(range(64, 96))
THIRD = bytes(range(96, 128))


def successor() -> dw.SigningKey:
    return key("trainer-2", NEXT)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Versions 0 to 2 by the first key, 3 and 4 by the one that it introduced."""
    board = dw.Board(tmp_path / "board", create=True)
    publish_signed(board, trainer(), 0, 2)
    assert board.introduce_key(successor().public, by=trainer()) == 3
    publish_signed(board, successor(), 3, 4)
    return tmp_path / "board"


def old_keyring(**options: bool) -> dw.Trust:
    return dw.Trust([trainer().public], **options)


def statement(root: Path, name: str = "trainer-2") -> Path:
    return root / "control" / f"key-{name}.json"


def test_old_keyrings_learn(root: Path, tmp_path: Path) -> None:
    """Late followers, new ones and directories, none of which has heard of the new key."""
    late = dw.Board(root, trust=old_keyring()).follower(zeros(model()), memory=tmp_path / "memory")
    late.advance(1)
    late.advance()
    assert same(late.target, model(4))
    assert json.loads((tmp_path / "memory").read_text())["keys"] == [
        ["trainer-2", successor().public.ed25519.hex(), 3, "trainer"]
    ]
    board = dw.Board(root, trust=old_keyring())
    board.pull(tmp_path / "pulled")
    assert [m.signer for m in board.log()] == ["trainer-2"] * 2 + ["trainer"] * 3
    state = json.loads((tmp_path / "pulled" / "deltawire.json").read_text())
    assert state["keys"][0][0] == "trainer-2"


def test_chains_of_introductions(root: Path) -> None:
    third = key("trainer-3", THIRD)
    dw.Board(root).introduce_key(third.public, by=successor(), first=6)
    publish_signed(dw.Board(root), successor(), 5, 5)
    publish_signed(dw.Board(root), third, 6, 6)
    reader = dw.Board(root, trust=old_keyring()).follower(zeros(model()))
    reader.advance()
    assert same(reader.target, model(6))
    assert dw.Board(root, trust=old_keyring()).manifest(6).signer == "trainer-3"


def test_without_introductions(root: Path) -> None:
    board = dw.Board(root, trust=old_keyring(introductions=False))
    reader = board.follower(zeros(model()))
    reader.advance(2)
    with pytest.raises(dw.UntrustedDelta, match='"trainer-2", which is not trusted') as caught:
        reader.advance()
    assert caught.value.version == 4
    assert "trusted are: trainer" in caught.value.message
    assert same(reader.target, model(2))
    both = dw.Trust([trainer().public, successor().public], introductions=False)
    reader = dw.Board(root, trust=both).follower(zeros(model()))
    reader.advance()
    assert same(reader.target, model(4))


@pytest.mark.parametrize("first", [2, 3])
def test_the_new_key_signs_nothing_before(first: int, root: Path) -> None:
    """And the old one nothing after, for those who know of the new one."""
    shutil.rmtree(root)
    board = dw.Board(root, create=True)
    publish_signed(board, trainer(), 0, 1)
    board.introduce_key(successor().public, by=trainer(), first=3)
    publish_signed(board, successor(), 2, 2) if first == 2 else None
    publish_signed(board, trainer(), board.head() + 1, 2)  # type: ignore[operator]
    publish_signed(board, successor(), 3, 3)
    publish_signed(board, trainer(), 4, 4)
    reader = dw.Board(root, trust=old_keyring()).follower(zeros(model()))
    if first == 2:
        with pytest.raises(dw.UntrustedDelta, match="from version 3 on only"):
            reader.advance(2)
        return
    reader.advance(3)
    with pytest.raises(dw.UntrustedDelta, match="up to version 2 only") as caught:
        reader.advance()
    assert caught.value.version == 4
    assert same(reader.target, model(3))


def test_a_retired_key_stays_retired(root: Path, tmp_path: Path) -> None:
    """A restarted reader remembers, even if the statement is gone from the board."""
    memory = tmp_path / "memory"
    dw.Board(root, trust=old_keyring()).follower(zeros(model()), memory=memory).advance()
    statement(root).unlink()
    publish_signed(dw.Board(root), trainer(), 5, 5)  # whoever has the old key now
    reader = dw.Board(root, trust=old_keyring()).follower(zeros(model()), memory=memory)
    with pytest.raises(dw.UntrustedDelta, match="up to version 2 only"):
        reader.advance()
    assert same(reader.target, zeros(model()))


def test_introductions_that_are_refused(root: Path, tmp_path: Path) -> None:
    board = dw.Board(root)
    with pytest.raises(dw.VersionConflict, match="introduced already"):
        board.introduce_key(successor().public, by=trainer())
    same_name = key("trainer", NEXT).public
    with pytest.raises(dw.KeyFileError, match="not used twice"):
        board.introduce_key(same_name, by=trainer())
    with pytest.raises(dw.WrongVersion, match="versions to come") as caught:
        board.introduce_key(key("new", THIRD).public, by=successor(), first=4)
    assert caught.value.version == 4
    empty = dw.Board(tmp_path / "empty", create=True)
    with pytest.raises(dw.WrongVersion, match="versions to come"):
        empty.introduce_key(key("new", THIRD).public, by=successor())
    assert sorted(p.name for p in (root / "control").glob("key-*")) == ["key-trainer-2.json"]


def forged(root: Path, by: dw.SigningKey, run: str = "test", first: int = 3) -> bytes:
    """A statement about the new key by somebody."""
    path = statement(root)
    sound = path.read_bytes()
    path.unlink()
    public = successor().public
    by.native.introduce(dw.Board(root).store, run, public.name, public.ed25519.hex(), first, 0)
    made = path.read_bytes()
    path.write_bytes(sound)
    return made


def test_statements_that_are_refused(root: Path) -> None:
    """Each byte of one counts, and who signed it for what."""
    path = statement(root)
    sound = path.read_bytes()
    cases = [
        (forged(root, key("trainer", MALLORY)), "not that of key"),
        (forged(root, key("mallory", MALLORY)), "mallory"),
        (forged(root, trainer(), run="another"), "another"),
        (forged(root, trainer(), first=0), "impossible version"),
        (forged(root, trainer(), first=4), "from version 4 on only"),
        (sound.replace(b'"from":3', b'"from":1'), "not that of key"),
        (sound.replace(b'"signature"', b'"signaturf"'), "not signed"),
        (b"{}", "not a key statement"),
        (sound[:-1], "not a key statement"),
    ]
    for record, match in cases:
        path.write_bytes(record)
        reader = dw.Board(root, trust=old_keyring()).follower(zeros(model()))
        with pytest.raises(dw.UntrustedDelta, match=match) as caught:
            reader.advance()
        assert caught.value.version is not None
        assert str(root) in str(caught.value.path)
        assert same(reader.target, zeros(model()))
    for place in range(0, len(sound), 7):
        altered = bytearray(sound)
        altered[place] ^= 2
        path.write_bytes(bytes(altered))
        with pytest.raises((dw.UntrustedDelta, dw.UnsupportedDelta)):
            dw.Board(root, trust=old_keyring()).manifest(4)
    path.write_bytes(sound)
    assert dw.Board(root, trust=old_keyring()).manifest(4).signer == "trainer-2"


def test_keys_that_introduce_each_other(tmp_path: Path) -> None:
    """A ring of strangers ends."""
    board = dw.Board(tmp_path / "board", create=True)
    one, two = key("one", NEXT), key("two", THIRD)
    publish_signed(board, one, 0, 0)
    board.introduce_key(two.public, by=one)
    board.introduce_key(one.public, by=two)
    with pytest.raises(dw.UntrustedDelta, match="too many introductions"):
        dw.Board(board.url, trust=old_keyring()).manifest(0)


# --- A stolen key ------------------------------------------------------------------------


def revoked(public: dw.PublicKey) -> dw.PublicKey:
    return dw.PublicKey(public.name, public.ed25519, revoked=True)


def test_a_revoked_key_introduces_nobody(root: Path, tmp_path: Path) -> None:
    """The thief of the first key may have introduced the second; a memory does not help him."""
    memory = tmp_path / "memory"
    dw.Board(root, trust=old_keyring()).follower(zeros(model()), memory=memory).advance()
    third = key("trainer-3", THIRD)
    new = dw.Trust([revoked(trainer().public), third.public])
    for remembered in (None, memory):
        reader = dw.Board(root, trust=new).follower(zeros(model()), memory=remembered)
        with pytest.raises(dw.UntrustedDelta, match="trainer"):
            reader.advance()
        assert same(reader.target, zeros(model()))


def test_a_revoked_successor(root: Path) -> None:
    """The keyring's word on a key counts more than its introduction."""
    reader = dw.Board(root, trust=dw.Trust([trainer().public, revoked(successor().public)]))
    assert reader.manifest(2).signer == "trainer"
    with pytest.raises(dw.UntrustedDelta, match=r'"trainer-2", which the keyring says is revoked'):
        reader.manifest(4)


def test_a_new_start_after_a_theft(root: Path) -> None:
    """The publisher goes on with a key of the new keyring, and an anchor of its own."""
    third = key("trainer-3", THIRD)
    new = dw.Trust([revoked(trainer().public), revoked(successor().public), third.public])
    with dw.Board(root).publisher(key=third) as publisher:
        publisher.publish_anchor(5, model(5))
        publisher.publish(6, base=model(5), new=model(6))
    reader = dw.Board(root, trust=new).follower(zeros(model()))
    reader.advance()
    assert same(reader.target, model(6))
    # One that was brought to version 4 before the theft was known goes on from there.
    held = dw.Board(root, trust=old_keyring()).follower(zeros(model()))
    held.advance(4)
    held._board = held._watch.board = dw.Board(root, trust=new)
    held.advance()
    assert same(held.target, model(6))


def test_an_ended_key_adds_no_anchor(root: Path, tmp_path: Path) -> None:
    """Its owner, or a thief, could add one to an early version; later goals do not start there."""
    with dw.Board(root).publisher(key=trainer()) as publisher:
        publisher.publish_anchor(2, model(2))
    assert anchor_path(root, 2).exists()
    manifest_path(root, 0).unlink()
    first = trainer().public
    ended = dw.PublicKey(first.name, first.ed25519, last=2)
    board = dw.Board(root, trust=dw.Trust([ended, successor().public]))
    target = zeros(model())
    with pytest.raises(dw.UntrustedDelta, match="up to version 2 only") as caught:
        board.follower(target).advance()
    assert caught.value.version == 2
    assert same(target, zeros(model()))
    # For version 2 itself it is as good as ever.
    reader = board.follower(target)
    reader.advance(2)
    assert same(target, model(2))
    reader.advance()
    assert same(target, model(4))


def test_an_anchor_that_a_trusted_manifest_names(tmp_path: Path) -> None:
    """An honest one of the old key still serves: the new key vouches for it."""
    root = tmp_path / "board"
    board = dw.Board(root, create=True)
    publish_signed(board, trainer(), 0, 2)
    with board.publisher(key=trainer()) as publisher:
        publisher.publish_anchor(2, model(2))
    board.introduce_key(successor().public, by=trainer())
    # The new publisher knows the old key: else it would not vouch for what that signed.
    publish_signed(dw.Board(root, trust=old_keyring()), successor(), 3, 4)
    manifest_path(root, 0).unlink()
    reader = dw.Board(root, trust=old_keyring()).follower(zeros(model()))
    reader.advance()
    assert same(reader.target, model(4))


def test_a_thief_without_the_store(root: Path, tmp_path: Path) -> None:
    """Versions that somebody signs with the introduced key on another board do not link up."""
    other = tmp_path / "other"
    publish_signed(dw.Board(other, create=True), successor(), 0, 5)
    reader = dw.Board(root, trust=old_keyring()).follower(zeros(model()))
    reader.advance()
    replaced(root, other, 5)
    with pytest.raises(dw.BrokenChain, match="digest"):
        reader.advance()
    assert same(reader.target, model(4))
