"""Keys: files, names, secrecy; and the exact bytes that are signed, by an independent verifier."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deltawire as dw
import ed25519
from board_runs import fresh_memory, model, zeros
from conftest import ROOT
from deltawire import _native
from deltawire.board.trust import keygen, load_keys
from signed_runs import key, publish_signed, trainer

VECTORS = json.loads((ROOT / "spec/vectors/signed/vectors.json").read_text())
DOMAINS = {
    "manifest": b"deltawire board v1 manifest\0",
    "anchor": b"deltawire board v1 anchor\0",
    "key": b"deltawire board v1 key\0",
}
# RFC 8032, section 7.1, tests 1 to 3.
RFC = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e3970"
        "1cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613"
        "d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760"
        "984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


def parts(record: bytes) -> tuple[str, bytes, bytes]:
    """Key name, signed record and signature, found as ``spec/commit-v1.md`` says."""
    head, mark, tail = record.rpartition(b',"signature":{"key":"')
    assert mark
    name, mark, tail = tail.partition(b'","ed25519":"')
    assert mark
    assert len(tail) == 131
    assert tail.endswith(b'"}}')
    return name.decode(), head + b"}", bytes.fromhex(tail[:-3].decode())


def verified(kind: str, record: bytes, public: bytes) -> bool:
    """Whether an implementation that shares no code accepts a stored record."""
    _, payload, signature = parts(record)
    return ed25519.verify(public, DOMAINS[kind] + payload, signature)


@pytest.mark.parametrize(("public", "message", "signature"), RFC)
def test_the_independent_verifier(public: str, message: str, signature: str) -> None:
    """It accepts what the RFC signed, and nothing that was altered."""
    key, text, good = map(bytes.fromhex, (public, message, signature))
    assert ed25519.verify(key, text, good)
    assert not ed25519.verify(key, text + b"\0", good)
    for place in (0, 31, 32, 62):
        bad = bytearray(good)
        bad[place] ^= 4
        assert not ed25519.verify(key, text, bytes(bad))


@pytest.mark.parametrize("vector", VECTORS["records"], ids=lambda vector: vector["kind"])
def test_known_answers(vector: dict[str, str]) -> None:
    """The stored bytes are those of the vector, and the independent verifier accepts them."""
    signer = key(VECTORS["name"], bytes.fromhex(VECTORS["seed"]))
    assert signer.public.ed25519.hex() == VECTORS["public"]
    assert signer.fingerprint == VECTORS["fingerprint"]
    store = dw.Board(fresh_memory(), create=True).store
    record = vector["unsigned"].encode()
    value = json.loads(record)
    if vector["kind"] == "manifest":
        store.commit(value["version"], record, signer.native)
        path = f"manifests/{value['version']:020d}.json"
    elif vector["kind"] == "anchor":
        store.commit_anchor(value["version"], record, signer.native)
        path = f"manifests/{value['version']:020d}.anchor.json"
    else:
        signer.native.introduce(
            store, value["run"], value["key"], value["ed25519"], value["from"], value["time_ms"]
        )
        path = f"control/key-{value['key']}.json"
    stored = store.read(path, 1 << 20)
    assert stored == vector["signed"].encode()
    assert stored is not None
    assert parts(stored)[:2] == (VECTORS["name"], record)
    assert verified(vector["kind"], stored, signer.public.ed25519)
    for other in DOMAINS:
        assert verified(other, stored, signer.public.ed25519) == (other == vector["kind"])


def test_every_record_of_a_board() -> None:
    """All manifests and anchor records of a run, and parents that name the signed bytes."""
    board = dw.Board(fresh_memory(), create=True)
    signer = trainer()
    publish_signed(board, signer, 0, 2)
    with board.publisher(key=signer) as publisher:
        publisher.publish_anchor(2, model(2))
    paths = [path for path, _ in board.store.list_all("manifests")]
    assert len(paths) == 4
    for path in paths:
        record = board.store.read(path, 1 << 20)
        assert record is not None
        kind = "anchor" if path.endswith(".anchor.json") else "manifest"
        assert verified(kind, record, signer.public.ed25519), path
    assert [m.signer for m in board.log()] == ["trainer"] * 3
    board = dw.Board(board.url, trust=dw.Trust([signer.public]))
    assert board.follower(zeros(model())).advance()[-1].version == 2


NAMES = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    name=NAMES,
    run=TEXT,
    meta=st.dictionaries(TEXT, TEXT, max_size=4),
    seed=st.binary(min_size=32, max_size=32),
)
def test_any_text_is_signed_as_stored(
    name: str, run: str, meta: dict[str, str], seed: bytes
) -> None:
    """Whatever run and metadata hold: the stored bytes are what is signed and what is read."""
    store = dw.Board(fresh_memory(), create=True).store
    value = json.loads(VECTORS["records"][0]["unsigned"]) | {"run": run, "meta": meta}
    signer = key(name, seed)
    store.commit(value["version"], json.dumps(value).encode(), signer.native)
    stored = store.read(f"manifests/{value['version']:020d}.json", 1 << 20)
    assert stored is not None
    found, payload, signature = parts(stored)
    assert found == name
    assert json.loads(payload) | {"signature": 0} == json.loads(stored) | {"signature": 0}
    assert json.loads(payload) == value
    again = key(name, seed).public.ed25519
    assert _native.Keyring([(name, again.hex(), 0, None, False)], run, False)
    assert len(signature) == 64


def seen_below(error: BaseException) -> str:
    """What a traceback with all variables shows of the package's frames."""
    assert error.__traceback__ is not None
    frames = error.__traceback__.tb_next
    shown = traceback.TracebackException(type(error), error, frames, capture_locals=True)
    return "".join(shown.format())


# --- Files -------------------------------------------------------------------------------


def test_keygen_writes_two_files_once(tmp_path: Path) -> None:
    made, private, public = keygen("night-1", tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["night-1.key", "night-1.pub"]
    assert private.stat().st_mode & 0o777 == 0o600
    assert dw.SigningKey.load(private).public == made.public == dw.PublicKey.load(public)
    assert made.fingerprint in public.read_text()
    before = private.read_bytes(), public.read_bytes()
    with pytest.raises(dw.KeyFileError, match="exists already") as caught:
        keygen("night-1", tmp_path)
    assert caught.value.path == str(private)
    assert (private.read_bytes(), public.read_bytes()) == before
    private.unlink()
    with pytest.raises(dw.KeyFileError, match="exists already"):
        keygen("night-1", tmp_path)
    assert os.listdir(tmp_path) == ["night-1.pub"]


def test_two_keys_differ() -> None:
    assert dw.SigningKey.generate("a").fingerprint != dw.SigningKey.generate("a").fingerprint


def test_private_files_that_are_refused(tmp_path: Path) -> None:
    _, private, public = keygen("a", tmp_path)
    secret = private.read_text().split()[-1]
    for path, mode, message in [
        (private, 0o604, "others"),
        (private, 0o620, "others"),
        (public, 0o600, "public half"),
    ]:
        path.chmod(mode)
        with pytest.raises(dw.KeyFileError, match=message) as caught:
            dw.SigningKey.load(path)
        assert caught.value.path == str(path)
    private.chmod(0o600)
    for text in (secret, f"deltawire-signing-key-v1 a {secret}0", "", "\xff" * 9):
        private.write_text(text, encoding="latin-1")
        with pytest.raises(dw.KeyFileError) as caught:
            dw.SigningKey.load(private)
        assert secret not in seen_below(caught.value)
    with pytest.raises(dw.KeyFileError, match="directory"):
        dw.SigningKey.load(tmp_path)
    with pytest.raises(dw.StoreError):
        dw.SigningKey.load(tmp_path / "none")


def test_keyrings(tmp_path: Path) -> None:
    keys = [keygen(name, tmp_path)[0].public for name in ("b", "a")]
    ring = tmp_path / "ring"
    ring.write_text((tmp_path / "b.pub").read_text() + (tmp_path / "a.pub").read_text())
    assert load_keys(ring) == keys
    assert load_keys(tmp_path) == keys[::-1]
    assert [k.name for k in dw.Trust([tmp_path, keys[0]]).keys] == ["a", "b", "b"]
    ring.write_text(f"deltawire-public-key-v1 a {keys[1].ed25519.hex()} from=3 until=7 revoked\n")
    (found,) = load_keys(ring)
    assert (found.first, found.last, found.revoked) == (3, 7, True)
    with pytest.raises(dw.KeyFileError, match="two entries"):
        dw.Trust([ring, keys[1]])
    with pytest.raises(dw.KeyFileError, match="private key, which readers must not have"):
        dw.Trust([tmp_path / "a.key"])
    with pytest.raises(dw.KeyFileError, match="without keys"):
        dw.Trust([])
    (tmp_path / "empty").mkdir()
    with pytest.raises(dw.KeyFileError, match=r"no \.pub"):
        dw.Trust([tmp_path / "empty"])


@pytest.mark.parametrize("name", ["", ".a", "a/b", "a b", "é", "a" * 65, '"'])
def test_impossible_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(dw.KeyFileError, match="cannot have the name"):
        keygen(name, tmp_path)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("bad", [bytes(32), b"\1" + bytes(31), b"\xff" * 32, b"", bytes(31)])
def test_bytes_that_are_no_key(bad: bytes) -> None:
    """Points that are not on the curve, of small order, or of another length."""
    with pytest.raises(dw.DeltawireError):
        dw.PublicKey("a", bad)


# --- Secrecy -----------------------------------------------------------------------------


def test_nothing_shows_the_secret(tmp_path: Path) -> None:
    made, private, _ = keygen("a", tmp_path)
    secret = private.read_text().split()[-1]
    shown = [repr(made), str(made), f"{made}", repr(made.native), repr(vars(type(made)))]
    assert not [text for text in shown if secret in text]
    assert repr(made) == f"<SigningKey 'a' {made.fingerprint}>"
    for thing in (made, made.native):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            copy.deepcopy(thing)
        for name in dir(thing):
            assert secret not in repr(getattr(thing, name)), name


def test_the_seed_is_erased() -> None:
    seed = bytearray(range(32))
    _native.SigningKey.from_seed("a", seed)
    assert seed == bytes(32)
    for bad in (bytes(32), bytearray(31), bytearray(33)):
        with pytest.raises(ValueError, match="32 bytes"):
            _native.SigningKey.from_seed("a", bad)  # type: ignore[arg-type]


def test_the_secret_is_in_no_record_or_error(tmp_path: Path) -> None:
    """Neither on the board nor in what a failing publish says."""
    made, private, _ = keygen("a", tmp_path)
    secret = private.read_text().split()[-1]
    board = dw.Board(tmp_path / "board", create=True)
    publish_signed(board, made, 0, 1)
    with pytest.raises(dw.DeltawireError) as caught, board.publisher(key=made) as publisher:
        publisher.publish(2, base=model(0), new=model(2))
    assert secret not in seen_below(caught.value)
    for path in (tmp_path / "board").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    sink = io.StringIO()
    print(publisher, vars(publisher), file=sink)
    assert secret not in sink.getvalue()
