"""Bad input on the command line: the right status, a message, and nothing changed."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

import deltawire as dw
from checkpoint_files import (
    file_size_limit,
    fingerprint,
    random_tensors,
    safetensors_bytes,
    tiny_disk,
)
from cli_runs import PROGRAM, Cli, Done, Steps, contents, spawn, write_steps

SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def steps(cli: Cli, tmp_path: Path) -> Steps:
    """Two checkpoints and ``step.dw`` between them."""
    steps = write_steps(tmp_path)
    cli("diff", steps.base, steps.new, "-o", tmp_path / "step.dw")
    return steps


def appliers(steps: Steps, delta: Path, base: Path) -> list[list[object]]:
    """Every way to use a delta."""
    return [
        ["apply", delta, "--base", base, "-o", steps.directory / "out"],
        ["apply", delta, "--base", base, "--in-place"],
        ["verify", delta, "--base", base],
    ]


def refused(
    cli: Cli, steps: Steps, words: list[object], *, status: int, kind: str, says: str = ""
) -> dict[str, object]:
    """The run fails in this way, as text and as JSON, and leaves everything as it was."""
    before = fingerprint(steps.directory)
    names = sorted(os.listdir(steps.directory))
    text = cli(*words, status=status)
    assert text.out == ""
    lines = text.err.splitlines()
    assert lines[0].startswith("deltawire: error: ")
    assert says in lines[0]
    assert lines[-1].startswith("deltawire: hint: ")
    done: Done = cli(*words, "--json", status=status)
    assert done.err == ""
    assert set(done.json) == {"error", "status"}
    assert done.json["status"] == status
    error: dict[str, object] = done.json["error"]
    assert set(error) == {"kind", "message", "tensor", "version", "offset", "path"}
    assert error["kind"] == kind
    assert fingerprint(steps.directory) == before
    assert sorted(os.listdir(steps.directory)) == names
    return error


# --- Wrong usage: 2 ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "required: VERB"),
        (["explode"], "invalid choice"),
        (["diff", "a", "b"], "required: -o"),
        (["diff", "a", "b", "-o", "x.dw", "--profile", "tiny"], "--profile"),
        (["diff", "a", "b", "-o", "x.dw", "--threads", "0"], "--threads"),
        (["diff", "a", "b", "-o", "x.dw", "--version", "-1"], "--version"),
        (["diff", "a", "b", "-o", "x.dw", "--meta", "novalue"], "KEY=VALUE"),
        (["diff", "a", "b", "-o", "x.dw", "--meta", "k=1", "--meta", "k=2"], "given twice"),
        (["diff", "a", "b", "-o", "x.dw", "--base-version", "3", "--version", "3"], "not follow"),
        (["diff", "a", "b", "-o", "x.dw", "--version", "0"], "not follow"),
        (["diff", "a", "b", "-o", "x.dw", "--json", "--quiet"], "not allowed with"),
        (["apply", "x.dw", "--base", "a"], "one of the arguments"),
        (["apply", "x.dw", "--base", "a", "-o", "out", "--in-place"], "not allowed with"),
        (["verify", "x.dw"], "required: --base"),
        (["pull", "board"], "required: -o"),
    ],
)
def test_wrong_usage(words: list[str], says: str, cli: Cli) -> None:
    done = cli(*words, status=2)
    assert done.out == "" or "--json" in words
    message = json.loads(done.out)["error"]["message"] if "--json" in words else done.err
    assert says in message
    if "--json" not in words:
        value = cli(*words, "--json", status=2).json
        assert (value["error"]["kind"], value["status"]) == ("usage", 2)


def test_an_input_is_never_the_output(cli: Cli, steps: Steps) -> None:
    (steps.directory / "link").symlink_to(steps.base / SHARD)
    for output in (steps.base / SHARD, steps.new / SHARD, steps.directory / "link"):
        words: list[object] = ["diff", steps.base, steps.new, "-o", output]
        refused(cli, steps, words, status=2, kind="usage", says="is an input")
    words = ["diff", steps.base, steps.new, "-o", steps.directory]
    refused(cli, steps, words, status=2, kind="usage", says="is a directory")


def test_help_and_version(cli: Cli) -> None:
    assert cli("--version").out == f"deltawire {dw.__version__}\n"
    text = cli("--help").out
    for verb in ("diff", "apply", "verify", "inspect", "publish", "pull", "log", "demo"):
        assert f"\n    {verb} " in text
        assert "usage: deltawire " + verb in cli(verb, "--help").out


# --- Corrupt input: 3 ----------------------------------------------------------------


def test_a_truncated_delta(cli: Cli, steps: Steps) -> None:
    whole = (steps.directory / "step.dw").read_bytes()
    cut = steps.directory / "cut.dw"
    for length in (0, 1, 31, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:length])
        for words in [*appliers(steps, cut, steps.base), ["inspect", cut]]:
            error = refused(cli, steps, words, status=3, kind="corrupt")
            assert error["path"] == str(cut)


def test_an_altered_delta(cli: Cli, steps: Steps) -> None:
    whole = (steps.directory / "step.dw").read_bytes()
    bad = steps.directory / "bad.dw"
    before = contents(steps.base)
    for at in [*range(len(whole) // 10, len(whole), len(whole) // 10), len(whole) - 1]:
        bad.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        for words in appliers(steps, bad, steps.base):
            refused(cli, steps, words, status=3, kind="corrupt")
    assert contents(steps.base) == before


def test_a_delta_that_needs_a_newer_reader(cli: Cli, steps: Steps) -> None:
    whole = bytearray((steps.directory / "step.dw").read_bytes())
    whole[8] = 2  # the major version
    newer = steps.directory / "newer.dw"
    newer.write_bytes(whole)
    for words in appliers(steps, newer, steps.base):
        refused(cli, steps, words, status=3, kind="unsupported")


def test_a_missing_shard(cli: Cli, steps: Steps) -> None:
    delta = steps.directory / "step.dw"
    (steps.base / SHARD).unlink()
    for words in [
        ["diff", steps.base, steps.new, "-o", steps.directory / "x.dw"],
        ["diff", steps.new, steps.base, "-o", steps.directory / "x.dw"],
        *appliers(steps, delta, steps.base),
    ]:
        error = refused(cli, steps, words, status=3, kind="checkpoint", says=SHARD)
        assert error["path"] == str(steps.base / "model.safetensors.index.json")
        assert error["tensor"] is not None
        assert error["offset"] is not None


def test_a_tensor_in_two_shards(cli: Cli, steps: Steps) -> None:
    (steps.base / SHARD).write_bytes(safetensors_bytes(random_tensors()))
    for words in [
        ["diff", steps.base, steps.new, "-o", steps.directory / "x.dw"],
        *appliers(steps, steps.directory / "step.dw", steps.base),
    ]:
        error = refused(cli, steps, words, status=3, kind="checkpoint", says="also in")
        assert error["path"] == str(steps.base / SHARD)


def test_a_checkpoint_that_is_cut_short(cli: Cli, steps: Steps) -> None:
    os.truncate(steps.base / SHARD, (steps.base / SHARD).stat().st_size - 1)
    for words in [
        ["diff", steps.base, steps.new, "-o", steps.directory / "x.dw"],
        *appliers(steps, steps.directory / "step.dw", steps.base),
    ]:
        refused(cli, steps, words, status=3, kind="checkpoint")


# --- The wrong base: 4 ---------------------------------------------------------------


@pytest.mark.parametrize("profile", ["compact", "fast"])
def test_a_wrong_base(profile: str, cli: Cli, steps: Steps) -> None:
    """One element of a changed tile differs."""
    delta = steps.directory / "step.dw"
    cli("diff", steps.base, steps.new, "-o", delta, "--profile", profile)
    with dw.Checkpoint.open(steps.base, writable=True) as base:
        base["layer.bf16"].data[0, 0] ^= 1
    for words in appliers(steps, delta, steps.base):
        refused(cli, steps, words, status=4, kind="wrong-base")


@pytest.mark.parametrize("change", ["name", "shape", "dtype", "missing"])
def test_layouts_that_disagree(change: str, cli: Cli, steps: Steps) -> None:
    tensors = random_tensors()
    dtype, shape, data = tensors.pop("layer.f32")
    if change == "name":
        tensors["layer.other"] = (dtype, shape, data)
    elif change == "shape":
        tensors["layer.f32"] = (dtype, shape[::-1], data)
    elif change == "dtype":
        tensors["layer.f32"] = ("I32", shape, data)
    other = steps.directory / "other.safetensors"
    other.write_bytes(safetensors_bytes(tensors))
    for words in [
        ["diff", steps.base, other, "-o", steps.directory / "x.dw"],
        ["diff", other, steps.base, "-o", steps.directory / "x.dw"],
        *appliers(steps, steps.directory / "step.dw", other),
    ]:
        error = refused(cli, steps, words, status=4, kind="layout")
        assert error["tensor"] in {"layer.f32", "layer.other"}


# --- The surroundings: 5 -------------------------------------------------------------


def test_paths_that_do_not_exist(cli: Cli, steps: Steps) -> None:
    absent = steps.directory / "absent"
    for words in [
        ["diff", absent, steps.new, "-o", steps.directory / "x.dw"],
        ["diff", steps.base, absent, "-o", steps.directory / "x.dw"],
        ["diff", steps.base, steps.new, "-o", absent / "x.dw"],
        *appliers(steps, absent, steps.base),
        *appliers(steps, steps.directory / "step.dw", absent),
        ["apply", steps.directory / "step.dw", "--base", steps.base, "-o", absent / "out"],
        ["inspect", absent],
    ]:
        error = refused(cli, steps, words, status=5, kind="store", says=str(absent))
        assert str(error["path"]).startswith(str(absent))


def test_a_file_size_limit(cli: Cli, steps: Steps) -> None:
    with file_size_limit(100):
        for words in [
            ["diff", steps.base, steps.new, "-o", steps.directory / "x.dw"],
            ["apply", steps.directory / "step.dw", "--base", steps.base, "-o", "out"],
        ]:
            words[-1] = steps.directory / str(words[-1])
            refused(cli, steps, words, status=5, kind="store")


def test_a_full_disk(cli: Cli, steps: Steps, tmp_path_factory: pytest.TempPathFactory) -> None:
    with tiny_disk(tmp_path_factory.mktemp("mount") / "disk", 4096) as disk:
        (disk / "filler").write_bytes(bytes(4096))
        for words in [
            ["diff", steps.base, steps.new, "-o", disk / "x.dw"],
            ["apply", steps.directory / "step.dw", "--base", steps.base, "-o", disk / "out"],
        ]:
            refused(cli, steps, words, status=5, kind="store", says="No space left")
            assert os.listdir(disk) == ["filler"]


def test_a_sink_that_is_full(cli: Cli, steps: Steps) -> None:
    words: list[object] = ["diff", steps.base, steps.new, "-o", "/dev/full"]
    refused(cli, steps, words, status=5, kind="store", says="No space left")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


# --- The target: 1 -------------------------------------------------------------------


def test_a_read_only_target(cli: Cli, steps: Steps) -> None:
    (steps.base / SHARD).chmod(0o444)
    words: list[object] = ["apply", steps.directory / "step.dw", "--base", steps.base]
    error = refused(cli, steps, [*words, "--in-place"], status=1, kind="target")
    assert error["path"] == str(steps.base / SHARD)


def test_an_output_that_exists(cli: Cli, steps: Steps) -> None:
    words: list[object] = ["apply", steps.directory / "step.dw", "--base", steps.base, "-o"]
    for output in (steps.new, steps.base, steps.directory / "step.dw"):
        refused(cli, steps, [*words, output], status=1, kind="target", says="exists")


def test_a_copy_that_is_not_what_was_proven(
    cli: Cli, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage that loses a write between the commit and the proof."""
    real = dw.Checkpoint.flush

    def losing(self: dw.Checkpoint) -> None:
        real(self)
        self["layer.f32"].data[0, 0] ^= 1

    monkeypatch.setattr(dw.Checkpoint, "flush", losing)
    words: list[object] = ["apply", steps.directory / "step.dw", "--base", steps.base, "-o"]
    refused(cli, steps, [*words, steps.directory / "out"], status=1, kind="target")


def test_a_bug_is_reported_in_full(cli: Cli, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> object:
        raise RuntimeError("impossible")

    monkeypatch.setattr(dw, "inspect", broken)
    done = cli("inspect", steps.directory / "step.dw", status=1)
    assert "Traceback" in done.err
    assert "deltawire: error: RuntimeError: impossible" in done.err
    assert "please report" in done.err
    value = cli("inspect", steps.directory / "step.dw", "--json", status=1).json
    assert value["error"]["kind"] == "internal"


# --- Signals and pipes ---------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(number: signal.Signals, steps: Steps) -> None:
    """It waits for the delta on stdin, after it has copied the base, when the signal comes."""
    before = sorted(os.listdir(steps.directory))
    process = subprocess.Popen(
        [*PROGRAM, "apply", "-", "--base", steps.base, "-o", steps.directory / "out"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Under nohup the signal is ignored, in children too, and the command leaves it so.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    try:
        assert process.stdin is not None
        process.stdin.write("\x93")
        for _ in range(3000):
            if list(steps.directory.glob(".out.*.tmp/tokenizer.json")):
                break
            time.sleep(0.02)
        else:
            pytest.fail("no temporary copy appeared")
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number
    assert err == "deltawire: interrupted\n"
    assert sorted(os.listdir(steps.directory)) == before


def test_ctrl_c_during_a_diff(cli: Cli, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised from the progress callback, where a signal handler would run."""

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deltawire.cli.output._ignore", interrupt)
    before = sorted(os.listdir(steps.directory))
    words = ["diff", steps.base, steps.new, "-o", steps.directory / "x.dw"]
    assert cli(*words, status=130).err == "deltawire: interrupted\n"
    value = cli(*words, "--json", status=130).json
    assert value["error"]["kind"] == "interrupted"
    assert sorted(os.listdir(steps.directory)) == before


def test_a_reader_that_leaves_early(steps: Steps) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [*PROGRAM, "inspect", steps.directory / "step.dw", "--tensors"],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_module_runs_as_a_program(steps: Steps) -> None:
    done = spawn("inspect", steps.directory / "step.dw")
    assert (done.returncode, done.stderr) == (0, "")
    done = spawn("inspect", steps.directory / "absent.dw")
    assert done.returncode == 5
    assert done.stderr.startswith("deltawire: error: ")
