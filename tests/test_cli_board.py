"""The verbs that work on a board: publish, pull, log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkpoint_files import Spec, fingerprint, random_tensors, write_sharded
from cli_runs import PROFILES, Cli, contents, next_step
from conftest import Recording
from deltawire.checkpoint import write_safetensors
from store_servers import KEY, S3, SECRET


class Run:
    """Consecutive checkpoints of a training run, made when they are asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.board: Path | str = directory / "board"
        self._tensors: list[dict[str, Spec]] = [random_tensors()]

    def checkpoint(self, version: int) -> Path:
        """The directory of a version, with shards, index, config and tokenizer."""
        while len(self._tensors) <= version:
            self._tensors.append(next_step(self._tensors[-1], len(self._tensors)))
        path = self.directory / f"step-{version}"
        if not path.exists():
            write_sharded(path, self._tensors[version])
        return path


@pytest.fixture
def run(
    request: pytest.FixtureRequest, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> Run:
    run = Run(tmp_path)
    if getattr(request, "param", "path") == "s3":
        # Credentials come from the environment, all else from options.
        s3: S3 = request.getfixturevalue("s3")
        run.board = f"s3://{s3.bucket()}/run"
        cli.board_options = ["--endpoint", s3.endpoint, "--allow-http", "--region", "eu-central-1"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return run


ANYWHERE = pytest.mark.parametrize("run", ["path", "s3"], indirect=True)


@pytest.fixture
def published(cli: Cli, run: Run) -> Run:
    """A board with versions 0 (an anchor), 1 and 2 (deltas)."""
    for version in range(3):
        cli("publish", run.board, run.checkpoint(version))
    return run


@ANYWHERE
def test_the_first_version_is_an_anchor_and_says_so(cli: Cli, run: Run) -> None:
    done = cli("publish", run.board, run.checkpoint(0))
    assert "version 0" in done.out
    assert "because it is the first" in done.out
    value = cli("log", run.board, "--json").json
    assert value["head"] == 0
    assert [entry["version"] for entry in value["versions"]] == [0]


@ANYWHERE
@pytest.mark.parametrize("profile", PROFILES)
def test_publish_and_pull(profile: str, cli: Cli, run: Run) -> None:
    cli("publish", run.board, run.checkpoint(0), "--run", "night")
    run.checkpoint(1)
    before = sorted(os.listdir(run.directory))
    value = cli(
        *("publish", run.board, run.checkpoint(1), "--profile", profile, "--json"),
        *("--meta", "reward=0.5"),
    ).json
    assert (value["version"], value["anchor"]) == (1, False)
    assert value["bytes"] > 0
    assert value["changed"] > 0
    # The newest version was pulled for comparison, and is gone again.
    assert sorted(os.listdir(run.directory)) == before
    replica = run.directory / "replica"
    pulled = cli("pull", run.board, "-o", replica, "--json").json
    assert (pulled["version"], pulled["path"]) == (1, str(replica))
    assert contents(replica) == contents(run.checkpoint(1))
    assert (replica / "config.json").read_bytes() == (
        run.checkpoint(1) / "config.json"
    ).read_bytes()
    (newest, first) = cli("log", run.board, "--json").json["versions"]
    assert newest["meta"]["reward"] == "0.5"
    assert newest["parent_version"] == first["version"] == 0
    assert newest["base_state"] == first["result_state"]
    assert newest["result_state"] == value["result_state"] == pulled["state"]


@ANYWHERE
def test_pull_goes_on_from_what_the_directory_holds(cli: Cli, published: Run) -> None:
    replica = published.directory / "replica"
    cli("pull", published.board, "-o", replica, "--version", 1)
    assert contents(replica) == contents(published.checkpoint(1))
    value = cli("pull", published.board, "-o", replica, "--json").json
    assert (value["from_version"], value["version"]) == (1, 2)
    assert contents(replica) == contents(published.checkpoint(2))
    again = cli("pull", published.board, "-o", replica, "--json").json
    assert (again["from_version"], again["version"]) == (2, 2)
    cli("publish", published.board, published.checkpoint(3))
    assert "version 3" in cli("pull", published.board, "-o", replica).out
    assert contents(replica) == contents(published.checkpoint(3))


@ANYWHERE
def test_an_anchor_later_on(cli: Cli, published: Run) -> None:
    done = cli("publish", published.board, published.checkpoint(3), "--anchor")
    assert "version 3, the whole checkpoint" in done.out
    cli("publish", published.board, published.checkpoint(4))
    replica = published.directory / "replica"
    cli("pull", published.board, "-o", replica)
    assert contents(replica) == contents(published.checkpoint(4))


def test_a_given_base_is_used(cli: Cli, published: Run) -> None:
    before = sorted(os.listdir(published.directory))
    published.checkpoint(3)
    value = cli(
        *("publish", published.board, published.checkpoint(3), "--json"),
        *("--base", published.checkpoint(2), "--scratch", published.directory / "absent"),
    ).json
    assert value["version"] == 3
    assert sorted(os.listdir(published.directory)) == sorted([*before, "step-3"])


def test_log_lists_the_newest_first(cli: Cli, published: Run) -> None:
    lines = cli("log", published.board).out.splitlines()
    assert lines[0].split()[0] == "version"
    assert [line.split()[0] for line in lines[1:]] == ["2", "1", "0"]
    newest = cli("log", published.board, "-n", 1).out.splitlines()
    assert newest[1].split()[0] == "2"
    assert newest[2:] == ["", "older versions are not shown (-n COUNT, --all)"]
    value = cli("log", published.board, "-n", 2, "--json").json
    assert value["head"] == 2
    assert [entry["version"] for entry in value["versions"]] == [2, 1]


def refused(cli: Cli, run: Run, words: list[object], *, status: int, kind: str) -> None:
    """The run fails in this way, and board, checkpoints and directories are as before."""
    before = fingerprint(run.directory)
    names = sorted(os.listdir(run.directory))
    assert cli(*words, status=status).err.startswith("deltawire: error: ")
    error = cli(*words, "--json", status=status).json["error"]
    assert error["kind"] == kind
    after = fingerprint(run.directory)
    # A publisher may record that it was there; versions, objects and anchors are untouched.
    control = str(Path(run.directory.name, "board", "control"))
    assert {k: v for k, v in after.items() if not k.startswith(control)} == {
        k: v for k, v in before.items() if not k.startswith(control)
    }
    assert sorted(os.listdir(run.directory)) == names


@ANYWHERE
def test_a_wrong_base(cli: Cli, published: Run) -> None:
    words: list[object] = ["publish", published.board, published.checkpoint(3)]
    words += ["--base", published.checkpoint(1)]
    refused(cli, published, words, status=4, kind="wrong-base")


@ANYWHERE
def test_a_version_that_exists(cli: Cli, published: Run) -> None:
    for option in ([], ["--anchor"]):
        words: list[object] = ["publish", published.board, published.checkpoint(3), *option]
        done = cli(*words, "--version", 1, "--json", status=4).json
        assert done["error"]["version"] == 1
        refused(cli, published, [*words, "--version", 1], status=4, kind=done["error"]["kind"])


@ANYWHERE
def test_a_version_that_does_not_exist(cli: Cli, published: Run) -> None:
    words: list[object] = ["pull", published.board, "-o", published.directory / "replica"]
    refused(cli, published, [*words, "--version", 9], status=4, kind="wrong-version")
    cli(*words)
    refused(cli, published, [*words, "--version", 9], status=4, kind="wrong-version")


def test_a_board_that_does_not_exist(cli: Cli, run: Run) -> None:
    for words in [["log", run.board], ["pull", run.board, "-o", run.directory / "replica"]]:
        refused(cli, run, list(words), status=5, kind="store")


def test_a_bad_checkpoint_leaves_no_board_behind(cli: Cli, run: Run) -> None:
    (run.checkpoint(0) / "model-00002-of-00002.safetensors").unlink()
    words: list[object] = ["publish", run.board, run.checkpoint(0)]
    refused(cli, run, words, status=3, kind="checkpoint")


def test_options_that_contradict(cli: Cli, run: Run) -> None:
    words: list[object] = ["publish", run.board, run.checkpoint(0), "--base", run.checkpoint(1)]
    refused(cli, run, words, status=5, kind="store")
    refused(cli, run, [*words, "--anchor"], status=2, kind="usage")
    Path(run.board).mkdir()
    refused(cli, run, words, status=2, kind="usage")


def test_an_altered_object(cli: Cli, published: Run) -> None:
    (path,) = (Path(published.board) / "objects" / "2").glob("*.dw")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    replica = published.directory / "replica"
    cli("pull", published.board, "-o", replica, "--version", 1)
    refused(cli, published, ["pull", published.board, "-o", replica], status=3, kind="untrusted")
    assert contents(replica) == contents(published.checkpoint(1))


def test_recorded_steps_go_through_a_board(recording: Recording, cli: Cli, tmp_path: Path) -> None:
    board, replica = tmp_path / "board", tmp_path / "replica"
    for version, tensors in enumerate(recording.versions()):
        path = tmp_path / f"{version}.safetensors"
        write_safetensors(path, tensors)
        cli("publish", board, path)
        value = cli("pull", board, "-o", replica, "--json").json
        assert value["version"] == version
        assert contents(replica) == contents(path)
    assert version == 5
