"""The verbs about keys, and the arguments about trust of the others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import deltawire as dw
from board_runs import delta_path, flip, holds, manifest_path, model
from cli_runs import Cli, spawn
from deltawire.checkpoint import write_checkpoint
from deltawire.tensors import as_view
from signed_runs import unsigned


@pytest.fixture
def signed(cli: Cli, tmp_path: Path) -> Path:
    """A directory with a key, checkpoints 0 to 3, and a signed board of 0 to 2."""
    cli("keygen", "trainer", "-o", tmp_path)
    for version in range(4):
        views = {name: as_view(array) for name, array in model(version).items()}
        write_checkpoint(tmp_path / f"step-{version}", views)
    for version in range(3):
        cli(
            *("publish", tmp_path / "board", tmp_path / f"step-{version}", "--run", "night"),
            *("--key", tmp_path / "trainer.key", "--trusted-keys", tmp_path / "trainer.pub"),
        )
    return tmp_path


def test_keygen(cli: Cli, tmp_path: Path) -> None:
    value = cli("keygen", "night", "-o", tmp_path, "--json").json
    assert sorted(os.listdir(tmp_path)) == ["night.key", "night.pub"]
    public = dw.PublicKey.load(value["public_path"])
    assert (value["name"], value["fingerprint"]) == ("night", public.fingerprint)
    assert value["public_key"] == public.ed25519.hex()
    secret = Path(value["private_path"]).read_text().split()[-1]
    assert secret not in str(value)
    before = Path(value["private_path"]).read_bytes()
    done = cli("keygen", "night", "-o", tmp_path, status=1)
    assert "exists already" in done.err
    assert "hint" in done.err
    assert Path(value["private_path"]).read_bytes() == before
    shown = cli("keygen", "day", "-o", tmp_path)
    assert dw.PublicKey.load(tmp_path / "day.pub").fingerprint in shown.out
    assert (tmp_path / "day.key").read_text().split()[-1] not in shown.out + shown.err
    assert cli("keygen", "a/b", "-o", tmp_path, status=1).err
    assert cli("keygen", "a", "-o", tmp_path / "none", status=5).err


def test_publish_pull_and_log(cli: Cli, signed: Path) -> None:
    board, public = signed / "board", signed / "trainer.pub"
    cli("pull", board, "-o", signed / "pulled", "--trusted-keys", public, "--run", "night")
    assert holds(signed / "pulled", 2)
    out = cli("log", board, "--trusted-keys", public).out
    assert out.count("trainer") == 3
    assert "trainer?" not in out
    assert cli("log", board).out.count("trainer?") == 3
    value = cli("log", board, "--trusted-keys", signed, "--json").json
    assert value["verified"] is True
    assert [entry["signer"] for entry in value["versions"]] == ["trainer"] * 3
    assert cli("log", board, "--json").json["verified"] is False


def test_what_is_refused(cli: Cli, signed: Path) -> None:
    board, public = signed / "board", signed / "trainer.pub"
    cli("keygen", "other", "-o", signed / "..", "--json")
    other = signed / ".." / "other.pub"
    try:
        for words, status, message in [
            (("--trusted-keys", other), 3, "not trusted"),
            (("--trusted-keys", public, "--run", "day"), 3, "only"),
            (("--trusted-keys", signed / "trainer.key"), 1, "private key"),
            (("--trusted-keys", signed / "none"), 5, "none"),
            (("--run", "night"), 2, "--trusted-keys"),
            (("--max-age", "0"), 2, "seconds"),
        ]:
            done = cli("pull", board, "-o", signed / "x", *words, status=status)
            assert message in done.err, words
            assert not (signed / "x").exists()
        assert "not trusted" in cli("log", board, "--trusted-keys", other, status=3).err
    finally:
        other.unlink()
        other.with_suffix(".key").unlink()
    path = manifest_path(board, 2)
    path.write_bytes(unsigned(path.read_bytes()))
    value = cli(
        *("pull", board, "-o", signed / "x", "--trusted-keys", public, "--json"), status=3
    ).json
    error = value["error"]
    assert (error["kind"], error["version"]) == ("untrusted", 2)
    assert error["path"] == str(path)
    assert "trainer" in error["message"]
    # Nor does a publisher go on from there.
    done = cli(
        *("publish", board, signed / "step-3", "--key", signed / "trainer.key"),
        *("--trusted-keys", public),
        status=3,
    )
    assert "not signed" in done.err
    assert not manifest_path(board, 3).exists()


def test_verify_a_delta_file(cli: Cli, signed: Path) -> None:
    """Alone it tells nothing of who made it; with the board and keys it does."""
    board, public, file = signed / "board", signed / "trainer.pub", signed / "1.dw"
    shutil.copy(delta_path(board, 1), file)
    words = ("verify", file, "--base", signed / "step-0")
    trusting = (*words, "--board", board, "--trusted-keys", public)
    assert "signed by trainer" in cli(*trusting).out
    value = cli(*trusting, "--json").json
    assert (value["signer"], value["verified"]) == ("trainer", True)
    assert "signed by" not in cli(*words, "--board", board).out
    assert cli(*words, "--trusted-keys", public, status=2).err
    # As good a delta as any, from and to the same states, but not the publisher's.
    file.unlink()
    cli("diff", signed / "step-0", signed / "step-1", "-o", file, "--base-version", "0")
    cli(*words)
    error = cli(*trusting, "--json", status=3).json["error"]
    assert (error["kind"], error["version"], error["path"]) == ("untrusted", 1, str(file))
    sound = delta_path(board, 1).read_bytes()
    for other in (sound + b"\0", sound[:-1]):
        file.write_bytes(other)
        with pytest.raises(dw.UntrustedDelta, match="not the delta"):
            dw.Board(board).check_delta(file, 1)
    file.write_bytes(sound)
    assert dw.Board(board).check_delta(file, 1).version == 1
    with pytest.raises(dw.WrongVersion, match="only an anchor"):
        dw.Board(board).check_delta(file, 0)
    flip(delta_path(board, 1), 100)
    with pytest.raises(dw.UntrustedDelta):
        dw.Board(board).check_delta(file, 1)


def test_a_bad_key_publishes_nothing(cli: Cli, signed: Path) -> None:
    (signed / "trainer.key").chmod(0o644)
    fresh = signed / "fresh"
    done = cli("publish", fresh, signed / "step-0", "--key", signed / "trainer.key", status=1)
    assert "chmod 600" in done.err
    assert not fresh.exists()


def test_memory_and_age(cli: Cli, signed: Path) -> None:
    board, memory = signed / "board", signed / "memory"
    cli("pull", board, "-o", signed / "a", "--memory", memory, "--max-age", "3600")
    shutil.rmtree(signed / "a")
    manifest_path(board, 2).unlink()
    done = cli("pull", board, "-o", signed / "a", "--memory", memory, status=4)
    assert "version 2 is remembered" in done.err
    assert not (signed / "a").exists()
    done = cli("pull", board, "-o", signed / "a", "--max-age", "0.0001", status=5)
    assert "s old" in done.err
    assert not (signed / "a").exists()


def test_introduce(cli: Cli, signed: Path) -> None:
    board, old = signed / "board", signed / "trainer.pub"
    cli("keygen", "trainer-2", "-o", signed)
    value = cli(
        *("introduce", board, signed / "trainer-2.pub", "--key", signed / "trainer.key"),
        "--json",
    ).json
    assert (value["key"], value["by"], value["version"]) == ("trainer-2", "trainer", 3)
    cli("publish", board, signed / "step-3", "--key", signed / "trainer-2.key")
    cli("pull", board, "-o", signed / "pulled", "--trusted-keys", old)
    assert holds(signed / "pulled", 3)
    out = cli("log", board, "--trusted-keys", old).out
    assert out.count("trainer-2") == 1
    done = cli(
        *("introduce", board, signed / "trainer-2.pub", "--key", signed / "trainer-2.key"),
        status=1,
    )
    assert "not used twice" in done.err


def test_no_secret_in_a_process_of_its_own(signed: Path) -> None:
    """Neither in the output of a publish nor in that of one that fails."""
    secret = (signed / "trainer.key").read_text().split()[-1]
    for board, words in [("board", ()), ("new", ("--base", signed / "step-0"))]:
        done = spawn(
            *("publish", signed / board, signed / "step-3", "--key", signed / "trainer.key"),
            *words,
        )
        assert secret not in done.stdout + done.stderr
    assert done.returncode != 0
