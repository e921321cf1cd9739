"""Pulled checkpoint directories: in place, repeatable, and whole again after any crash."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from board_runs import (
    contents,
    delta_path,
    flip,
    holds,
    manifest_path,
    model,
    publish,
    same,
)
from store_servers import S3, Web, quick_options

TESTS = str(Path(__file__).parent)


def publish_five(board: dw.Board, tmp_path: Path) -> None:
    """Versions 0, an anchor in three files with extras, to 4."""
    extras = tmp_path / "extras"
    extras.mkdir()
    (extras / "config.json").write_text("{}")
    with board.publisher(run="test") as publisher:
        publisher.publish_anchor(0, model(), extra_files=extras, max_shard_bytes=9000)
        for version in range(1, 5):
            publisher.publish(version, base=model(version - 1), new=model(version))


@pytest.fixture
def board(tmp_path: Path) -> dw.Board:
    """A local board with versions 0 to 4."""
    board = dw.Board(tmp_path / "board", create=True)
    publish_five(board, tmp_path)
    return board


@pytest.fixture(params=["path", "s3", "web"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path, s3: S3) -> Iterator[dw.Board]:
    """The same board on several kinds of store."""
    if request.param == "s3":
        board = s3.board()
        publish_five(board, tmp_path)
        yield board
        return
    board = dw.Board(tmp_path / "board", create=True)
    publish_five(board, tmp_path)
    if request.param == "path":
        yield board
        return
    with Web(tmp_path) as web:
        yield dw.Board(f"{web.url}/board/", options=quick_options(credentials=None))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The directory to pull into, alone in its parent."""
    (tmp_path / "followers").mkdir()
    return tmp_path / "followers" / "out"


def alone(directory: Path) -> bool:
    """Whether nothing was left beside it."""
    return os.listdir(directory.parent) == [directory.name]


def test_new_then_in_place_then_nothing(anywhere: dw.Board, out: Path) -> None:
    done = anywhere.pull(out, version=1)
    assert (done.version, done.from_version, done.anchor, done.versions) == (1, None, 0, 1)
    assert holds(out, 1)
    assert (out / "config.json").read_text() == "{}"
    inodes = {path.name: path.stat().st_ino for path in out.glob("*.safetensors")}
    done = anywhere.pull(out, version=3)
    assert (done.version, done.from_version, done.anchor, done.versions) == (3, 1, None, 2)
    assert done.bytes == anywhere.manifest(2).bytes + anywhere.manifest(3).bytes
    assert done.state == anywhere.manifest(3).result_state
    assert holds(out, 3)
    assert inodes == {path.name: path.stat().st_ino for path in out.glob("*.safetensors")}
    anywhere.pull(out)
    assert holds(out, 4)
    before = contents(out)
    done = anywhere.pull(out)
    assert (done.version, done.from_version, done.versions, done.bytes) == (4, 4, 0, 0)
    assert contents(out) == before
    assert alone(out)


def test_an_empty_directory_is_used(anywhere: dw.Board, out: Path) -> None:
    out.mkdir()
    anywhere.pull(out)
    assert holds(out, 4)


def test_progress_counts_the_bytes_fetched(anywhere: dw.Board, out: Path) -> None:
    steps: list[int] = []
    done = anywhere.pull(out, progress=steps.append)
    assert sum(steps) == done.bytes
    json.dumps(done.as_dict())


def test_a_far_behind_directory_takes_an_anchor(tmp_path: Path, out: Path) -> None:
    """Fewer bytes, and other files: those of the anchor before do not stay."""
    rng = np.random.default_rng(3)
    versions = [{"w": rng.integers(0, 2**32, (3000, 1), dtype=np.uint32)} for _ in range(4)]
    board = dw.Board(tmp_path / "board", create=True)
    with board.publisher() as publisher:
        halves = {"v": versions[0]["w"], "w": versions[0]["w"]}
        publisher.publish_anchor(0, halves, max_shard_bytes=12_000)
        board.pull(out)
        assert len(list(out.glob("*.safetensors"))) == 2
        publisher.publish_anchor(1, versions[0])
        for number in range(1, 4):
            publisher.publish(number + 1, base=versions[number - 1], new=versions[number])
        publisher.publish_anchor(4, versions[3])
    (out / "notes.txt").write_text("mine")
    done = board.pull(out)
    assert (done.version, done.from_version, done.anchor) == (4, None, 4)
    assert sorted(os.listdir(out)) == ["deltawire.json", "model.safetensors", "notes.txt"]
    with dw.Checkpoint.open(out) as checkpoint:
        assert same(checkpoint, versions[3])


# --- Refusals ----------------------------------------------------------------------------


def test_directories_that_were_not_pulled(board: dw.Board, out: Path) -> None:
    dw.checkpoint.write_checkpoint(out, model())
    before = contents(out)
    with pytest.raises(dw.TargetError, match="not empty"):
        board.pull(out)
    for text in ["", "{}", "[]", '{"format":2}', '{"format":1,"version":"x"}']:
        (out / "deltawire.json").write_text(text)
        with pytest.raises(dw.TargetError, match="another one"):
            board.pull(out)
    (out / "deltawire.json").unlink()
    assert contents(out) == before
    with pytest.raises(dw.StoreError, match="make it first"):
        board.pull(out / "config" / "deeper" / "x")


def test_a_state_file_that_names_files_elsewhere(board: dw.Board, out: Path) -> None:
    board.pull(out, version=1)
    path = out / "deltawire.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "files": ["../victim"]}))
    with pytest.raises(dw.TargetError, match="no plain path"):
        board.pull(out)


def test_weights_that_were_changed_by_something_else(anywhere: dw.Board, out: Path) -> None:
    anywhere.pull(out, version=1)
    with dw.Checkpoint.open(out, writable=True) as checkpoint:
        checkpoint["layer.weight"].data[3, 5] ^= 1
    before = contents(out)
    with pytest.raises(dw.WrongBase, match="changed by something else") as caught:
        anywhere.pull(out)
    assert caught.value.tensor == "layer.weight"
    assert contents(out) == before


def test_going_back_and_beyond(anywhere: dw.Board, out: Path) -> None:
    anywhere.pull(out, version=2)
    with pytest.raises(dw.WrongVersion, match="held already"):
        anywhere.pull(out, version=1)
    with pytest.raises(dw.WrongVersion, match="the newest is 4"):
        anywhere.pull(out, version=5)
    assert holds(out, 2)
    with pytest.raises(dw.WrongVersion):
        anywhere.pull(out.parent / "new", version=5)
    assert alone(out)


def test_another_board(anywhere: dw.Board, out: Path, tmp_path: Path) -> None:
    anywhere.pull(out, version=2)
    other = dw.Board(tmp_path / "other", create=True)
    publish(other, 4)
    before = contents(out)
    for version in (2, None):
        with pytest.raises(dw.BrokenChain, match="another board"):
            other.pull(out, version=version)
    assert contents(out) == before


def test_altered_objects(board: dw.Board, out: Path, tmp_path: Path) -> None:
    """The directory is as before, and a new one does not appear."""
    root = tmp_path / "board"
    board.pull(out, version=1)
    before = contents(out)
    flip(delta_path(root, 4), 100)
    with pytest.raises(dw.UntrustedDelta, match="BLAKE3"):
        board.pull(out)
    assert contents(out) == before
    board.pull(out, version=3)
    assert holds(out, 3)
    flip(root / "anchors" / "0" / "config.json", 0)
    with pytest.raises(dw.UntrustedDelta, match="BLAKE3"):
        board.pull(out.parent / "new")
    assert alone(out)


def test_an_anchor_with_a_state_file(board: dw.Board, out: Path, tmp_path: Path) -> None:
    """A publisher never writes one; it would take over the directory's own."""
    manifest = json.loads(board.manifest(0).to_json())
    upload = board.store.upload("anchors/0/deltawire.json")
    upload.write(b"{}")
    path, length, blake3 = upload.finish()
    manifest["anchor"]["files"].append({"path": path, "bytes": length, "blake3": blake3})
    manifest_path(tmp_path / "board", 0).unlink()
    for version in range(1, 5):
        manifest_path(tmp_path / "board", version).unlink()
    fresh = dw.Board(tmp_path / "board")
    fresh.store.commit(0, json.dumps({**manifest, "epoch": 1}).encode())
    with pytest.raises(dw.UntrustedDelta, match=r"holds a deltawire\.json"):
        fresh.pull(out)
    assert os.listdir(out.parent) == []


def test_two_pulls_at_once(board: dw.Board, out: Path) -> None:
    board.pull(out, version=1)
    fd = os.open(out, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(dw.TargetError, match="another pull"):
        board.pull(out)
    os.close(fd)
    board.pull(out)
    assert holds(out, 4)


def test_leftovers_are_removed_unless_in_use(board: dw.Board, out: Path) -> None:
    dead, alive, foreign = (out.parent / f".out.{letter * 12}.tmp" for letter in ("a", "b", "c"))
    for directory in (dead, alive, foreign):
        directory.mkdir()
    for directory in (dead, alive):
        (directory / "deltawire.json").write_text("{}")
    fd = os.open(alive, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    board.pull(out)
    assert sorted(os.listdir(out.parent)) == [alive.name, foreign.name, "out"]
    os.close(fd)


# --- Crashes -----------------------------------------------------------------------------

#: Kills itself at the N-th thing that Python asks of the system: opening, renaming or removing
#: a file, mapping one, locking; and around every commit of a delta.
PULL = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import deltawire as dw
from deltawire.board import steps

board, out, version, fatal = dw.Board(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
count = 0

def count_one():
    global count
    count += 1
    if count == fatal:
        os.kill(os.getpid(), signal.SIGKILL)

def audit(event, arguments):
    if event.startswith(("open", "os.", "mmap.", "fcntl.flock", "shutil.")):
        count_one()

class Staged(dw.Staged):
    def commit(self):
        count_one()
        done = super().commit()
        count_one()
        return done

real = steps.stage
def stage(*arguments, **options):
    staged = real(*arguments, **options)
    staged.__class__ = Staged
    return staged
steps.stage = stage

sys.addaudithook(audit)
board.pull(out, version=int(version))
fatal = 0
print(count)
"""


def pull_in_child(board: dw.Board, out: Path, version: int, fatal: int) -> int | None:
    """Events of a whole pull; None where it was killed at the ``fatal``-th."""
    command = [sys.executable, "-c", PULL, TESTS, board.url, str(out), str(version), str(fatal)]
    done = subprocess.run(command, capture_output=True, text=True)
    if fatal and done.returncode == -9:
        return None
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def crash_points(total: int, count: int) -> list[int]:
    """``count`` of the events 1 to ``total``, evenly spread."""
    return sorted({1 + round(i * (total - 1) / (count - 1)) for i in range(count)})


def test_killed_while_making_a_new_directory(board: dw.Board, out: Path) -> None:
    total = pull_in_child(board, out.parent / "whole", 3, 0)
    assert total is not None
    for number, fatal in enumerate(crash_points(total, 8)):
        name = out.parent / f"new-{number}"
        assert pull_in_child(board, name, 3, fatal) is None
        # Under its name it is whole, or not there.
        assert not name.exists() or holds(name, 3)
        board.pull(name, version=3)
        assert holds(name, 3)
    # Where the crash fell before the state file was there, nothing else was either.
    for name in os.listdir(out.parent):
        assert not name.startswith(".") or "deltawire.json" not in os.listdir(out.parent / name)


def test_killed_while_changing_a_directory(board: dw.Board, out: Path) -> None:
    board.pull(out.parent / "whole", version=1)
    total = pull_in_child(board, out.parent / "whole", 3, 0)
    assert total is not None
    for number, fatal in enumerate(crash_points(total, 14)):
        name = out.parent / f"old-{number}"
        board.pull(name, version=1)
        assert pull_in_child(board, name, 3, fatal) is None
        # Once more at the same place of the repair, if it is long enough, and then in peace.
        pull_in_child(board, name, 3, fatal)
        board.pull(name)
        assert holds(name, 4)
        assert not [left for left in os.listdir(name) if left.startswith(".")]


def tear(out: Path, version: int) -> None:
    """What a crash in the middle of a tile leaves: every other change is written."""
    with dw.Checkpoint.open(out, writable=True) as checkpoint:
        old, new = model(version - 1), model(version)
        for name, view in checkpoint.items():
            before, after = (dw.tensors.as_view(arrays[name]).data for arrays in (old, new))
            where = np.flatnonzero((before != after).reshape(-1))[::2]
            view.data.reshape(-1)[where] = after.reshape(-1)[where]
    path = out / "deltawire.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "pending": {"version": version, "anchor": False}}))


def test_a_torn_tile_is_repaired_from_an_anchor(anywhere: dw.Board, out: Path) -> None:
    anywhere.pull(out, version=1)
    tear(out, 2)
    done = anywhere.pull(out)
    assert (done.version, done.anchor, done.from_version) == (4, 0, None)
    assert holds(out, 4)


def test_a_torn_directory_can_stay_at_its_version(anywhere: dw.Board, out: Path) -> None:
    anywhere.pull(out, version=1)
    tear(out, 2)
    assert not holds(out, 1)
    done = anywhere.pull(out, version=1)
    assert (done.version, done.anchor) == (1, 0)
    assert holds(out, 1)


def test_killed_while_loading_an_anchor_into_a_directory(board: dw.Board, out: Path) -> None:
    """Half of the files are the anchor's, half still the old ones."""
    board.pull(out.parent / "whole", version=3)
    tear(out.parent / "whole", 4)
    total = pull_in_child(board, out.parent / "whole", 4, 0)
    assert total is not None
    for number, fatal in enumerate(crash_points(total, 8)):
        name = out.parent / f"torn-{number}"
        board.pull(name, version=3)
        tear(name, 4)
        assert pull_in_child(board, name, 4, fatal) is None
        board.pull(name)
        assert holds(name, 4)


def test_a_full_disk(board: dw.Board, out: Path, tmp_path: Path) -> None:
    board.pull(out, version=1)
    before = contents(out)
    delta = delta_path(tmp_path / "board", 2).stat().st_size
    script = """
import resource, sys
import deltawire as dw
board = dw.Board(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    board.pull(sys.argv[2])
except dw.StoreError as error:
    assert "space" in str(error), error
else:
    sys.exit("nothing was refused")
"""
    for target, limit in [(out, delta - 1), (out.parent / "new", 5000)]:
        command = [sys.executable, "-c", script, board.url, str(target), str(limit)]
        assert subprocess.run(command).returncode == 0
    assert contents(out) == before
    assert alone(out)
