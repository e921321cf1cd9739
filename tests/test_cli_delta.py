"""The verbs that work on delta files: diff, apply, verify, inspect."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

import deltawire as dw
from checkpoint_files import fingerprint, random_tensors, safetensors_bytes
from cli_runs import PROFILES, PROGRAM, Cli, Steps, contents, next_step, spawn, write_steps
from conftest import Recording
from deltawire.checkpoint import Checkpoint, write_safetensors


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return write_steps(tmp_path)


@pytest.fixture
def delta(cli: Cli, steps: Steps) -> Path:
    """The delta from ``steps.base`` to ``steps.new``."""
    path = steps.directory / "step.dw"
    cli("diff", steps.base, steps.new, "-o", path)
    return path


@pytest.mark.parametrize("profile", PROFILES)
def test_diff_and_apply_give_the_new_checkpoint(profile: str, cli: Cli, steps: Steps) -> None:
    before = fingerprint(steps.base)
    delta, out = steps.directory / "step.dw", steps.directory / "out"
    done = cli("diff", steps.base, steps.new, "-o", delta, "--profile", profile)
    assert "step.dw: version 0 -> 1" in done.out
    done = cli("apply", delta, "--base", steps.base, "-o", out)
    assert contents(out) == contents(steps.new)
    assert sorted(os.listdir(out)) == sorted(os.listdir(steps.base))
    # Not only the tensors: what other programs read is equal to the last byte.
    assert {n: (out / n).read_bytes() for n in os.listdir(out)} == {
        n: (steps.new / n).read_bytes() for n in os.listdir(steps.new)
    }
    with Checkpoint.open(steps.new) as new:
        assert dw.state_digest(new).hex() in done.out
    assert fingerprint(steps.base) == before
    assert sorted(os.listdir(steps.directory)) == ["base", "new", "out", "step.dw"]


def test_apply_in_place_and_again(cli: Cli, steps: Steps, delta: Path) -> None:
    first = cli("apply", delta, "--base", steps.base, "--in-place", "--json").json
    assert contents(steps.base) == contents(steps.new)
    assert first["skipped"] == 0
    again = cli("apply", delta, "--base", steps.base, "--in-place", "--json").json
    assert again["skipped"] == again["chunks"] == first["chunks"] > 0
    assert contents(steps.base) == contents(steps.new)
    assert first["result_state"] == again["result_state"]


@pytest.mark.parametrize("output", ["out", "out.safetensors"])
def test_a_single_file_as_base(output: str, cli: Cli, tmp_path: Path) -> None:
    tensors = random_tensors()
    (tmp_path / "base.safetensors").write_bytes(safetensors_bytes(tensors))
    (tmp_path / "new.safetensors").write_bytes(safetensors_bytes(next_step(tensors)))
    (tmp_path / "notes.txt").write_text("not part of the checkpoint")
    cli(
        "diff", tmp_path / "base.safetensors", tmp_path / "new.safetensors", "-o", tmp_path / "d.dw"
    )
    before = set(os.listdir(tmp_path))
    cli(
        "apply", tmp_path / "d.dw", "--base", tmp_path / "base.safetensors", "-o", tmp_path / output
    )
    result = tmp_path / output
    if result.is_dir():
        assert os.listdir(result) == ["base.safetensors"]
        result /= "base.safetensors"
    assert result.read_bytes() == (tmp_path / "new.safetensors").read_bytes()
    assert set(os.listdir(tmp_path)) == before | {output}


def test_an_empty_output_directory_is_used(cli: Cli, steps: Steps, delta: Path) -> None:
    (steps.directory / "out").mkdir()
    cli("apply", delta, "--base", steps.base, "-o", steps.directory / "out")
    assert contents(steps.directory / "out") == contents(steps.new)


def test_verify_proves_and_writes_nothing(cli: Cli, steps: Steps, delta: Path) -> None:
    before = fingerprint(steps.directory)
    with Checkpoint.open(steps.base) as base, Checkpoint.open(steps.new) as new:
        states = dw.state_digest(base).hex(), dw.state_digest(new).hex()
    value = cli("verify", delta, "--base", steps.base, "--json").json
    assert (value["state"], value["result_state"]) == states
    assert (value["version"], value["base_version"], value["skipped"]) == (1, 0, 0)
    text = cli("verify", delta, "--base", steps.base).out
    assert "the checkpoint is its base" in text
    assert all(state in text for state in states)
    assert "holds the result already" in cli("verify", delta, "--base", steps.new).out
    assert fingerprint(steps.directory) == before


def test_verify_of_a_read_only_base(cli: Cli, steps: Steps, delta: Path) -> None:
    for file in steps.base.iterdir():
        file.chmod(0o444)
    cli("verify", delta, "--base", steps.base)


def test_inspect_says_what_the_delta_holds(cli: Cli, steps: Steps) -> None:
    delta = steps.directory / "step.dw"
    made = cli(
        *("diff", steps.base, steps.new, "-o", delta, "--json"),
        *("--base-version", 41, "--version", 43, "--run", "night", "--profile", "fast"),
        *("--meta", "reward=0.5", "--meta", "note=a=b"),
    ).json
    value = cli("inspect", delta, "--json").json
    assert (value["base_version"], value["version"]) == (41, 43)
    assert (value["run"], value["profile"]) == ("night", "fast")
    assert value["meta"] == {"reward": "0.5", "note": "a=b"}
    assert value["bytes"] == made["bytes"] == delta.stat().st_size
    assert value["path"] == made["path"] == str(delta)
    before, after = contents(steps.base), contents(steps.new)
    assert value["elements"] == made["elements"] > value["changed"] == made["changed"] > 0
    assert value["bits_per_change"] == pytest.approx(8 * value["bytes"] / value["changed"])
    assert sum(value["codecs"].values()) == value["chunks"]
    assert value["result_state"] == made["result_state"]
    assert "tensors" not in value
    tensors = cli("inspect", delta, "--json", "--tensors").json["tensors"]
    assert {t["name"] for t in tensors} == set(before)
    assert {t["name"] for t in tensors if t["changed"]} == {
        name for name in before if before[name] != after[name]
    }
    lines = cli("inspect", delta, "--tensors").out.splitlines()
    assert lines[0] == f"{delta}: version 41 -> 43, fast, format 1.0"
    assert any(line.split() == ["run", "night"] for line in lines)
    assert any("note=a=b" in line for line in lines)
    (row,) = [line.split() for line in lines if line.startswith("layer.bf16 ")]
    assert row[1:3] == ["BF16", "2x8"]


def test_a_delta_without_changes(cli: Cli, steps: Steps) -> None:
    delta = steps.directory / "none.dw"
    value = cli("diff", steps.base, steps.base, "-o", delta, "--json").json
    assert (value["changed"], value["bits_per_change"]) == (0, None)
    assert "0 of" in cli("inspect", delta).out
    cli("apply", delta, "--base", steps.base, "-o", steps.directory / "out")
    assert contents(steps.directory / "out") == contents(steps.base)


def test_versions_default_to_the_next(cli: Cli, steps: Steps) -> None:
    delta = steps.directory / "step.dw"
    for given, expected in [
        (["--base-version", 6], (6, 7)),
        (["--version", 6], (5, 6)),
        ([], (0, 1)),
    ]:
        cli("diff", steps.base, steps.new, "-o", delta, *given)
        value = cli("inspect", delta, "--json").json
        assert (value["base_version"], value["version"]) == expected


def test_the_number_of_threads_does_not_change_the_delta(cli: Cli, steps: Steps) -> None:
    one, many = steps.directory / "1.dw", steps.directory / "8.dw"
    cli("diff", steps.base, steps.new, "-o", one, "--threads", 1)
    cli("diff", steps.base, steps.new, "-o", many, "--threads", 8)
    assert one.read_bytes() == many.read_bytes()


def test_quiet_prints_nothing(cli: Cli, steps: Steps, delta: Path) -> None:
    out = steps.directory / "out"
    for words in (
        ["diff", steps.base, steps.new, "-o", steps.directory / "again.dw"],
        ["verify", delta, "--base", steps.base],
        ["apply", delta, "--base", steps.base, "-o", out],
        ["inspect", delta],
    ):
        done = cli(*words, "--quiet")
        assert (done.out, done.err) == ("", "")


def test_an_existing_delta_is_replaced(cli: Cli, steps: Steps, delta: Path) -> None:
    first = delta.read_bytes()
    cli("diff", steps.new, steps.base, "-o", delta)
    assert delta.read_bytes() != first
    cli("verify", delta, "--base", steps.new)


def test_a_delta_through_a_pipe(steps: Steps) -> None:
    out = steps.directory / "out"
    diff = subprocess.Popen(
        [*PROGRAM, "diff", steps.base, steps.new, "-o", "-", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    applied = spawn("apply", "-", "--base", steps.base, "-o", out, stdin=diff.stdout)
    assert diff.stdout is not None
    diff.stdout.close()
    _, report = diff.communicate()
    assert diff.returncode == 0
    assert report.startswith(b'{"path": "-"')
    assert applied.returncode == 0, applied.stderr
    assert contents(out) == contents(steps.new)


def test_a_device_as_output_stays_a_device(cli: Cli, steps: Steps) -> None:
    cli("diff", steps.base, steps.new, "-o", "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("profile", PROFILES)
def test_recorded_steps_replay_bit_exactly(
    profile: str, recording: Recording, cli: Cli, tmp_path: Path
) -> None:
    """Versions 0 to 5: every delta on its own, and all of them in place one after the other."""
    live = tmp_path / "live.safetensors"
    delta = tmp_path / "step.dw"
    previous = tmp_path / "0.safetensors"
    for version, tensors in enumerate(recording.versions()):
        path = tmp_path / f"{version}.safetensors"
        write_safetensors(path, tensors)
        if version == 0:
            live.write_bytes(path.read_bytes())
            continue
        made = cli(
            *("diff", previous, path, "-o", delta, "--profile", profile, "--json"),
            *("--base-version", version - 1),
        ).json
        assert made["changed"] > 0
        done = cli("apply", delta, "--base", live, "--in-place", "--json").json
        assert done["result_state"] == made["result_state"]
        assert done["version"] == version
        assert live.read_bytes() == path.read_bytes()
        out = tmp_path / f"out-{version}.safetensors"
        cli("apply", delta, "--base", previous, "-o", out)
        assert out.read_bytes() == path.read_bytes()
        out.unlink()
        if previous != tmp_path / "0.safetensors":
            previous.unlink()
        previous = path
    assert version == 5
