"""``deltawire gc``, and ``deltawire log`` with anchors, readers and terminals of any width."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

import deltawire as dw
from board_runs import contents, model, publish, zeros
from cli_runs import PROGRAM, Cli, open_terminal, received
from deltawire.cli import arguments, text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Versions 0 to 9; anchors at 0, 4 and 8."""
    board = dw.Board(tmp_path / "board", create=True)
    publish(board, 9)
    with board.publisher() as publisher:
        for version in (4, 8):
            publisher.publish_anchor(version, model(version))
    return tmp_path / "board"


def test_gc_says_what_it_does(cli: Cli, root: Path) -> None:
    before = contents(root)
    dry = cli("gc", root, "--keep", 3, "--dry-run").out.splitlines()
    assert dry[0] == f"{root}: 4 versions would be removed (0 to 3)"
    assert contents(root) == before
    done = cli("gc", root, "--keep", 3).out.splitlines()
    assert done[0] == f"{root}: 4 versions removed (0 to 3)"
    assert done[1:3] == dry[1:3]
    assert "kept   4 to 9; no complete anchor is nearer" in done[2]
    value = cli("gc", root, "--keep", 1, "--json").json
    assert (value["first"], value["until"], value["versions"]) == (4, 8, 4)
    assert (value["boundary"], value["limit"], value["dry_run"]) == (8, "anchor", False)
    assert cli("gc", root, "--quiet").out == ""
    assert cli("gc", root).out.splitlines()[0] == f"{root}: 0 versions removed"


def test_gc_and_leases(cli: Cli, root: Path) -> None:
    board = dw.Board(root)
    follower = board.follower(zeros(model()), lease="one", lease_seconds=0.2)
    follower.advance(5)
    done = cli("gc", root, "--keep", 1).out
    assert "a reader's lease needs the others" in done
    assert "1 respected" in done
    time.sleep(0.25)
    value = cli("gc", root, "--keep", 1, "--grace", "0", "--safety-age", "0s", "--json").json
    assert (value["until"], value["leases"], value["expired"]) == (8, 0, 1)


def test_gc_refuses(cli: Cli, root: Path) -> None:
    before = contents(root)
    for words in [
        ["--keep", 0],
        ["--keep", -1],
        ["--older-than", "soon"],
        ["--older-than", "-1s"],
        ["--grace", "nan"],
        ["--safety-age", "1e99d"],
    ]:
        error = cli("gc", root, *words, "--json", status=2).json["error"]
        assert error["kind"] == "usage"
    cli("gc", root.parent / "absent", status=5)
    assert not (root.parent / "absent").exists()
    (root / "readers").mkdir()
    (root / "readers" / "x.json").write_text("?")
    assert cli("gc", root, "--keep", 1, "--json", status=3).json["error"]["kind"] == "untrusted"
    (root / "readers" / "x.json").unlink()
    assert contents(root) == before
    empty = root.parent / "empty"
    empty.mkdir()
    assert "nothing to collect" in cli("gc", empty).out
    assert not any(empty.iterdir())


def test_durations() -> None:
    found = [arguments.seconds(word) for word in ["90", "90s", "1.5m", "12h", "7d"]]
    assert found == [90, 90, 90, 43200, 604800]
    shown = [text.duration(value) for value in [0.02, 2, 125, 7200, 3 * 86400]]
    assert shown == ["20 ms", "2.00 s", "2.1 min", "2.0 h", "3.0 days"]


def test_log_shows_anchors_chains_and_readers(cli: Cli, root: Path) -> None:
    board = dw.Board(root)
    follower = board.follower(zeros(model()), lease="rollout\x1b[31m 1")
    follower.advance(6)
    value = cli("log", root, "--json").json
    assert (value["head"], value["boundary"], value["more"]) == (9, None, False)
    versions = {entry["version"]: entry for entry in value["versions"]}
    assert list(versions) == list(range(9, -1, -1))
    sizes = {version: board.manifest(version).bytes for version in range(10)}
    chains = {version: entry["chain_bytes"] for version, entry in versions.items()}
    assert [chains[version] for version in (0, 4, 8)] == [0, 0, 0]
    assert chains[3] == sizes[1] + sizes[2] + sizes[3]
    assert chains[9] == sizes[9]
    assert versions[8]["anchor"]["path"] == "anchors/8"
    assert versions[8]["anchor_bytes"] > versions[8]["dense_bytes"] > 0
    assert versions[9]["ratio"] == sizes[9] / versions[9]["dense_bytes"]
    assert 0 < versions[9]["changed_share"] < 0.1
    assert versions[0]["ratio"] is None
    (reader,) = value["readers"]
    assert (reader["version"], reader["lag_versions"], reader["expired"]) == (6, 3, False)
    assert 0 < reader["lag_seconds"] < 60
    lines = cli("log", root).out.splitlines()
    assert [line.split()[3] for line in lines[1:11]] == [
        "delta",
        "both",
        *["delta"] * 3,
        "both",
    ] + ["delta"] * 3 + ["anchor"]
    assert lines[12].split() == ["reader", "version", "behind", "by", "lease"]
    assert lines[13].startswith("rollout [31m 1        6  3 versions")


def test_log_reads_no_more_than_it_needs(cli: Cli, root: Path) -> None:
    whole = cli("log", root, "--all", "--json").json["versions"]
    for limit in range(11):
        value = cli("log", root, "-n", limit, "--json").json
        # Chains are those of the whole log, though their anchor may lie beyond the limit.
        assert value["versions"] == whole[:limit]
        assert value["more"] == (limit < 10)
    assert cli("log", root, "-n", 2).out.splitlines()[-1].startswith("older versions are not shown")
    cli("gc", root, "--keep", 3)
    value = cli("log", root, "--json").json
    assert [entry["version"] for entry in value["versions"]] == [9, 8, 7, 6, 5, 4]
    assert (value["boundary"], value["more"]) == (4, False)
    assert [entry["chain_bytes"] for entry in value["versions"]][-1] == 0
    assert cli("log", root).out.splitlines()[-1] == "versions below 4 are collected"
    cli("log", root, "-n", 2, "--all", status=2)


def test_a_long_board_is_logged_in_batches(tmp_path: Path, cli: Cli) -> None:
    board = dw.Board(tmp_path / "board", create=True)
    publish(board, 140)
    value = cli("log", tmp_path / "board", "--all", "--json").json
    assert [entry["version"] for entry in value["versions"]] == list(range(140, -1, -1))
    assert len(cli("log", tmp_path / "board", "--json").json["versions"]) == 50


def on_terminal(width: int, *words: object) -> list[str]:
    """The lines that a terminal of this width received."""
    control, terminal = open_terminal(40, width)
    with subprocess.Popen([*PROGRAM, *map(str, words)], stdout=terminal) as process:
        os.close(terminal)
        shown = received(control)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n").splitlines()


def test_log_fits_the_terminal(root: Path) -> None:
    board = dw.Board(root)
    with board.publisher() as publisher:
        publisher.publish(10, base=model(9), new=model(10), meta={"note": "x" * 60})
    board.follower(zeros(model()), lease="a reader with a long name " * 4).advance(7)
    wide = on_terminal(300, "log", root)
    assert wide[1].endswith(f"note={'x' * 60}")
    for width in (150, 120, 100, 80, 60, 50):
        lines = on_terminal(width, "log", root)
        assert max(map(len, lines)) <= width, lines
        assert lines[1].split()[0] == "10"
        assert len(lines) == len(wide)
    assert lines[1].split()[-1] != "delta"  # the size stays in any case
    assert "meta" in on_terminal(120, "log", root)[0]
    assert "meta" not in on_terminal(80, "log", root)[0]
