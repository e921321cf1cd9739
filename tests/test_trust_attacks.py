"""Attacks by somebody who can write to the store: each is refused by name, and nothing changes."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import deltawire as dw
from board_runs import contents, delta_path, manifest_path, model, same, zeros
from conftest import ROOT
from signed_runs import (
    MALLORY,
    TRAINER,
    Readers,
    anchor_path,
    key,
    make_board,
    publish_signed,
    replaced,
    signed_by,
    trainer,
    unsigned,
)

REFUSED = (dw.UntrustedDelta, dw.UnsupportedDelta, dw.LimitExceeded, dw.BrokenChain)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed board that is only copied."""
    return make_board(tmp_path_factory.mktemp("signed") / "board", trainer())


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    """A board to attack."""
    return Path(shutil.copytree(pristine, tmp_path / "board"))


@pytest.fixture
def trust() -> dw.Trust:
    return dw.Trust([trainer().public], run="test")


@pytest.fixture
def readers(root: Path, tmp_path: Path, trust: dw.Trust) -> Readers:
    return Readers.of(root, tmp_path, trust)


def refused(
    readers: Readers,
    tmp_path: Path,
    *errors: type[dw.DeltawireError],
    match: str | None = None,
    version: int | None = None,
    late: bool = True,
    new: bool = True,
) -> list[dw.DeltawireError]:
    """Every reader refuses, says what and where, and has changed nothing.

    Args:
        late: whether readers that hold version 2 notice.
        new: whether readers that begin with an anchor do.
    """
    errors = errors or REFUSED
    caught = []
    before = contents(readers.directory)
    if late:
        for act in (
            readers.follower.advance,
            lambda: dw.Board(readers.root, trust=readers.trust).pull(readers.directory),
        ):
            with pytest.raises(errors, match=match) as refusal:
                act()
            caught.append(refusal.value)
        assert readers.unchanged()
        assert contents(readers.directory) == before
    if new:
        target = zeros(model())
        follower = dw.Board(readers.root, trust=readers.trust).follower(target)
        with pytest.raises(errors, match=match) as refusal:
            follower.advance()
        caught.append(refusal.value)
        assert follower.version is None
        assert same(target, zeros(model()))
        fresh = tmp_path / "fresh"
        with pytest.raises(errors, match=match) as refusal:
            dw.Board(readers.root, trust=readers.trust).pull(fresh)
        caught.append(refusal.value)
        assert not fresh.exists()
    for error in caught:
        assert error.path is not None
        assert str(readers.root) in error.path
        assert error.version is not None
        if version is not None:
            assert error.version == version, error
    return caught


# --- Altered bytes -----------------------------------------------------------------------


def one_bit(data: bytes, rng: random.Random) -> bytes:
    altered = bytearray(data)
    altered[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(altered)


def many_bytes(data: bytes, rng: random.Random) -> bytes:
    altered = bytearray(data)
    begin = rng.randrange(len(data))
    end = rng.randrange(begin + 1, len(data) + 1)
    altered[begin:end] = bytes(byte ^ rng.randrange(1, 256) for byte in altered[begin:end])
    return bytes(altered)


def zeroed(data: bytes, rng: random.Random) -> bytes:
    altered = bytearray(data)
    begin = rng.choice([place for place, byte in enumerate(data) if byte])
    altered[begin : begin + 9] = bytes(len(altered[begin : begin + 9]))
    return bytes(altered)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def longer(data: bytes, rng: random.Random) -> bytes:
    return data + rng.randbytes(rng.randrange(1, 40))


def without_a_part(data: bytes, rng: random.Random) -> bytes:
    begin = rng.randrange(len(data) - 1)
    return data[:begin] + data[rng.randrange(begin + 1, len(data)) :]


ALTERATIONS = [one_bit, many_bytes, zeroed, cut, longer, without_a_part]
Place = Callable[[Path], Path]


def manifest_4(root: Path) -> Path:
    return manifest_path(root, 4)


def manifest_3(root: Path) -> Path:
    return manifest_path(root, 3)


def delta_4(root: Path) -> Path:
    return delta_path(root, 4)


def anchor_record(root: Path) -> Path:
    return anchor_path(root, 3)


def anchor_weights(root: Path) -> Path:
    return root / "anchors" / "3" / "model.safetensors"


@pytest.mark.parametrize("alter", ALTERATIONS)
@pytest.mark.parametrize("place", [manifest_4, manifest_3, delta_4, anchor_record, anchor_weights])
def test_altered_bytes(
    place: Place,
    alter: Callable[[bytes, random.Random], bytes],
    root: Path,
    readers: Readers,
    tmp_path: Path,
) -> None:
    """At random places, in everything that a reader acts on; sound again, all go on."""
    rng = random.Random(f"{place.__name__} {alter.__name__}")
    path = place(root)
    sound = path.read_bytes()
    # The anchor of version 3 is of no use to those who hold version 2.
    late = place not in (anchor_record, anchor_weights)
    for _ in range(5):
        path.write_bytes(alter(sound, rng))
        refused(readers, tmp_path, late=late)
    path.write_bytes(sound)
    readers.go_on()


def test_every_bit_of_a_signed_record(root: Path, trust: dw.Trust) -> None:
    """None of them can change without being noticed, in manifest and anchor record."""
    board = dw.Board(root)
    ring = trust.keyring()
    found = board.store.manifest(4), board.store.anchor_record(3)
    assert found[0] is not None
    assert found[1] is not None
    checks: list[tuple[bytes, Callable[[bytes], str]]] = [
        (found[0][0], lambda raw: ring.check_manifest(board.store, 4, raw)),
        (
            found[1][0],
            lambda raw: ring.check_anchor(board.store, 3, 4, "test", False, raw),
        ),
    ]
    for record, check in checks:
        assert check(record) == "trainer"
        for bit in range(8 * len(record)):
            altered = bytearray(record)
            altered[bit // 8] ^= 1 << bit % 8
            with pytest.raises((dw.UntrustedDelta, dw.UnsupportedDelta, dw.LimitExceeded)):
                check(bytes(altered))


# --- Signatures --------------------------------------------------------------------------


def test_a_signature_removed(root: Path, readers: Readers, tmp_path: Path) -> None:
    path = manifest_path(root, 4)
    path.write_bytes(unsigned(path.read_bytes()))
    errors = refused(readers, tmp_path, dw.UntrustedDelta, match="not signed", version=4)
    assert all("trainer" in error.message for error in errors)


def test_without_trusted_keys_signatures_are_ignored(root: Path, tmp_path: Path) -> None:
    for version in (3, 4):
        path = manifest_path(root, version)
        path.write_bytes(unsigned(path.read_bytes()))
    anchor_path(root, 3).unlink()
    (root / "latest.json").unlink()
    # The parent's digest covers the signature, so taking it away breaks the chain.
    with pytest.raises(dw.BrokenChain, match="digest"):
        dw.Board(root).follower(zeros(model())).advance()
    fresh = make_board(tmp_path / "unsigned", None)
    Readers.of(fresh, tmp_path, None).go_on()


def test_the_signature_of_another_version(root: Path, readers: Readers, tmp_path: Path) -> None:
    signature = json.loads(manifest_path(root, 3).read_bytes())["signature"]
    path = manifest_path(root, 4)
    value = json.loads(path.read_bytes()) | {"signature": signature}
    path.write_bytes(json.dumps(value, separators=(",", ":")).encode())
    errors = refused(readers, tmp_path, dw.UntrustedDelta, match="not that of key", version=4)
    fingerprint = trainer().fingerprint
    assert all("trainer" in e.message and fingerprint in e.message for e in errors)


@pytest.mark.parametrize("name", ["trainer", "mallory"])
def test_another_key(name: str, root: Path, readers: Readers, tmp_path: Path) -> None:
    """A version that is sound but for who signed it, be it under the trusted key's name."""
    attacker = Path(shutil.copytree(root, tmp_path / "attacker"))
    manifest_path(attacker, 4).unlink()
    publish_signed(dw.Board(attacker), key(name, MALLORY), 4, 4, seed=0)
    replaced(root, attacker, 4)
    errors = refused(readers, tmp_path, dw.UntrustedDelta, match=name, version=4)
    assert all(manifest_path(root, 4).name in str(error.path) for error in errors)


@pytest.mark.parametrize("version", [3, 4])
def test_members_added(version: int, root: Path, readers: Readers, tmp_path: Path) -> None:
    """Keys that no reader knows are covered like all others, in every place."""
    path = manifest_path(root, version)
    sound = path.read_bytes()
    for altered in (
        sound.replace(b'{"format":1,', b'{"format":1,"later":2,'),
        sound.replace(b',"signature":', b',"later":2,"signature":'),
        sound[:-1] + b',"later":2}',
        sound.replace(b'"blake3":', b'"later":2,"blake3":', 1),
        sound.replace(b'{"format":1,', b'{ "format":1,'),
        sound + b"\n",
    ):
        assert altered != sound
        path.write_bytes(altered)
        refused(readers, tmp_path, dw.UntrustedDelta, version=version)
    path.write_bytes(sound)
    readers.go_on()


# --- Replays -----------------------------------------------------------------------------


def test_under_another_version(root: Path, readers: Readers, tmp_path: Path) -> None:
    shutil.copy(manifest_path(root, 3), manifest_path(root, 4))
    refused(readers, tmp_path, dw.UntrustedDelta, match="version 4 says that it is", version=4)


def test_of_another_run(root: Path, readers: Readers, tmp_path: Path) -> None:
    other = make_board(tmp_path / "other", trainer(), run="another")
    replaced(root, other, 4)
    refused(readers, tmp_path, dw.UntrustedDelta, match='only "test" is trusted', version=4)


def test_of_another_run_by_the_chain_alone(root: Path, tmp_path: Path) -> None:
    """Without a run that is named, the chain still is of one run."""
    readers = Readers.of(root, tmp_path, dw.Trust([trainer().public]))
    other = make_board(tmp_path / "other", trainer(), run="another")
    replaced(root, other, 4)
    refused(readers, tmp_path, dw.BrokenChain, version=4)


def test_of_another_board_of_the_same_run(root: Path, readers: Readers, tmp_path: Path) -> None:
    """Signed by the right key for the right version and run: parent digests differ."""
    other = make_board(tmp_path / "other", trainer())
    replaced(root, other, 4)
    refused(readers, tmp_path, dw.BrokenChain, match="digest", version=4)


def test_a_whole_other_board(root: Path, readers: Readers, tmp_path: Path) -> None:
    """Those who follow the old one notice; nobody else can."""
    shutil.rmtree(root)
    make_board(root, trainer())
    refused(readers, tmp_path, dw.RolledBack, match="another board", version=2, new=False)


# --- Anchor records ----------------------------------------------------------------------


def test_anchor_records(root: Path, readers: Readers, tmp_path: Path) -> None:
    """Unsigned, of another key, of another version: refused by those who need one."""
    path = anchor_path(root, 3)
    sound = path.read_bytes()
    plain = unsigned(sound)
    for altered, match in [
        (plain, "not signed"),
        (signed_by(plain, key("trainer", MALLORY), "anchor"), "not that of key"),
        (signed_by(plain, key("mallory", MALLORY), "anchor"), "mallory"),
    ]:
        path.write_bytes(altered)
        errors = refused(readers, tmp_path, dw.UntrustedDelta, match=match, version=3, late=False)
        assert all(path.name in str(error.path) for error in errors)
    path.write_bytes(signed_by(plain, key("trainer", TRAINER), "anchor"))
    assert path.read_bytes() == sound
    readers.go_on()


def test_an_anchor_record_is_no_manifest(root: Path, readers: Readers, tmp_path: Path) -> None:
    shutil.copy(anchor_path(root, 3), manifest_path(root, 4))
    refused(readers, tmp_path, dw.UntrustedDelta, version=4)


# --- Keys and versions -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "last", "revoked", "match", "version"),
    [
        (0, 3, False, "up to version 3 only", 4),
        (4, None, False, "from version 4 on only", 3),
        (0, None, True, "revoked", 4),
    ],
)
def test_a_key_that_has_ended(
    first: int,
    last: int | None,
    revoked: bool,
    match: str,
    version: int,
    root: Path,
    readers: Readers,
    tmp_path: Path,
) -> None:
    public = trainer().public
    ended = dw.PublicKey(public.name, public.ed25519, first, last, revoked)
    readers.trust = dw.Trust([ended])
    readers.follower = dw.Board(root, trust=dw.Trust([public])).follower(zeros(model()))
    readers.follower.advance(2)
    # The same follower, whose board has got another keyring.
    readers.follower._board = dw.Board(root, trust=readers.trust)
    readers.follower._watch.board = readers.follower._board
    refused(readers, tmp_path, dw.UntrustedDelta, match=match, version=version)


def test_records_are_read_in_one_place() -> None:
    """Whatever else read them could forget the signatures."""
    readers = re.compile(r"store\.(manifest|chain|anchor_record|skip_records?)\(")
    found = [
        path.name
        for path in (ROOT / "python" / "deltawire").rglob("*.py")
        if readers.search(path.read_text())
    ]
    assert found == ["records.py"]


def test_manifests_are_checked_wherever_they_are_read(root: Path, trust: dw.Trust) -> None:
    path = manifest_path(root, 4)
    path.write_bytes(unsigned(path.read_bytes()))
    board = dw.Board(root, trust=trust)
    actions: list[Callable[[], object]] = [
        lambda: board.manifest(4),
        lambda: board.find_manifest(4),
        board.log,
        lambda: board.follower(model(4), version=4),
        lambda: board.publisher(key=trainer()).publish(5, base=model(4), new=model(5)),
        lambda: board.publisher(key=trainer()).publish_anchor(5, model(5)),
    ]
    for action in actions:
        with pytest.raises(dw.UntrustedDelta, match="not signed") as caught:
            action()
        assert caught.value.version == 4
    assert board.head() == 4


def test_a_signing_publisher_vouches_for_no_strange_anchor(root: Path) -> None:
    """The hint names an anchor record that somebody else made."""
    board = dw.Board(root)
    with board.publisher() as stranger:
        stranger.publish_anchor(4, model(4))
    for opened in (dw.Board(root), dw.Board(root, trust=dw.Trust([trainer().public]))):
        head = opened.head()
        assert head is not None
        with opened.publisher(key=trainer()) as publisher:
            publisher.publish(base=model(head), new=model(head + 1))
        named = opened.manifest(head + 1).last_anchor
        assert named is not None
        assert named.version == 3
