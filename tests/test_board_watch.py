"""Boards that go back, change what was seen, or stand still are refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import deltawire as dw
from board_runs import contents, holds, manifest_path, model, same, zeros
from deltawire.board import watch
from signed_runs import make_board, publish_signed, replaced, trainer


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unsigned board that is only copied: none of this needs signatures."""
    return make_board(tmp_path_factory.mktemp("plain") / "board", None)


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    """Versions 0 to 4."""
    return Path(shutil.copytree(pristine, tmp_path / "board"))


def roll_back(root: Path, version: int, latest: bytes | None = None) -> None:
    """An older copy of the board: as it was when ``version`` was the newest."""
    for path in (root / "manifests").iterdir():
        if int(path.name[:20]) > version:
            path.unlink()
    (root / "latest.json").write_text(json.dumps({"version": version, "anchor": 0}))


def fork(root: Path, scratch: Path, version: int) -> None:
    """Version 4 and, from ``version`` on, others in their place: another history."""
    other = Path(shutil.copytree(root, scratch / "fork"))
    roll_back(other, version - 1)
    publish_signed(dw.Board(other), None, version, 4, seed=0)
    for number in range(version, 5):
        replaced(root, other, number)


def follower(root: Path, memory: Path | None = None) -> dw.Follower:
    return dw.Board(root).follower(zeros(model()), memory=memory)


# --- Going back --------------------------------------------------------------------------


def test_an_old_hint_changes_nothing(root: Path, tmp_path: Path) -> None:
    """``latest.json`` is only a hint: replayed, it hides nothing."""
    late = follower(root)
    late.advance(2)
    for hint in ({"version": 1, "anchor": 0}, {"version": 99, "anchor": 98}, {}):
        (root / "latest.json").write_text(json.dumps(hint))
        new = follower(root)
        new.advance()
        assert new.version == 4
        assert same(new.target, model(4))
    late.advance()
    assert late.version == 4


def test_a_follower_in_one_process(root: Path, pristine: Path) -> None:
    reader = follower(root)
    reader.advance(3)
    for version in (2, 0):
        roll_back(root, version)
        for to in (None, 4):
            with pytest.raises(dw.RolledBack, match=f"ends at version {version}") as caught:
                reader.advance(to)
            assert (caught.value.version, caught.value.path) == (3, str(root))
        assert reader.version == 3
        assert same(reader.target, model(3))
    shutil.copytree(pristine, root, dirs_exist_ok=True)
    reader.advance()
    assert same(reader.target, model(4))


def test_staged_counts_as_seen(root: Path) -> None:
    """Also what was checked and then not applied."""
    reader = follower(root)
    reader.advance(2)
    reader.stage()
    reader.discard()
    assert (reader.version, reader.seen) == (2, 4)
    roll_back(root, 2)
    with pytest.raises(dw.RolledBack, match="version 4 is remembered"):
        reader.advance()
    assert same(reader.target, model(2))


def test_a_restart_remembers(root: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    first = follower(root, memory)
    first.advance()
    kept = memory.read_bytes()
    roll_back(root, 2)
    again = follower(root, memory)
    assert (again.version, again.seen) == (None, 4)
    for to in (None, 4):
        with pytest.raises(dw.RolledBack, match="ends at version 2") as caught:
            again.advance(to)
        assert caught.value.version == 4
    assert same(again.target, zeros(model()))
    assert memory.read_bytes() == kept
    with pytest.raises(dw.RolledBack):
        dw.Board(root).pull(tmp_path / "fresh", memory=memory)
    assert not (tmp_path / "fresh").exists()
    # Without a memory nobody can know.
    forgetful = follower(root)
    forgetful.advance()
    assert forgetful.version == 2


def test_an_empty_board_is_a_rollback(root: Path, tmp_path: Path) -> None:
    follower(root, tmp_path / "memory").advance(0)
    shutil.rmtree(root / "manifests")
    with pytest.raises(dw.RolledBack, match="is empty"):
        follower(root, tmp_path / "memory").advance()


@pytest.mark.parametrize("version", [3, 4])
def test_a_version_that_changed(version: int, root: Path, tmp_path: Path) -> None:
    """The head is where it was, but a version that was seen is another."""
    memory = tmp_path / "memory.json"
    live = follower(root, memory)
    live.advance()
    fork(root, tmp_path, version)
    publish_signed(dw.Board(root), None, 5, 5)
    for reader in (live, follower(root, memory)):
        before = reader.version
        with pytest.raises(dw.RolledBack, match="digest") as caught:
            reader.advance()
        assert caught.value.version == 4
        # An earlier version of that board is no better.
        if reader is not live:
            with pytest.raises(dw.RolledBack, match="digest"):
                reader.advance(1)
        assert reader.version == before
        assert same(reader.target, model(4) if before == 4 else zeros(model()))
    with pytest.raises(dw.RolledBack, match="two manifests"):
        dw.Board(root).follower(model(4), version=4, memory=memory)


def test_continued_without_the_version_that_was_seen(root: Path, tmp_path: Path) -> None:
    """The manifest remembered was collected; the next one must still name it."""
    memory = tmp_path / "memory.json"
    follower(root, memory).advance(3)
    for version in (0, 1, 2, 3):
        manifest_path(root, version).unlink()
    with dw.Board(root).publisher() as publisher:
        publisher.publish_anchor(4, model(4))
    reader = follower(root, memory)
    reader.advance()
    assert same(reader.target, model(4))
    remembered = json.loads(memory.read_text())
    remembered["seen"] |= {"version": 3, "manifest": "ab" * 32}
    memory.write_text(json.dumps(remembered))
    with pytest.raises(dw.BrokenChain, match="parent's digest"):
        follower(root, memory).advance()


def test_earlier_versions_of_a_sound_board(root: Path, tmp_path: Path) -> None:
    """Who asks for one gets it; the memory stays."""
    memory = tmp_path / "memory.json"
    follower(root, memory).advance()
    kept = memory.read_bytes()
    reader = follower(root, memory)
    reader.advance(1)
    assert same(reader.target, model(1))
    assert memory.read_bytes() == kept
    roll_back(root, 1)
    with pytest.raises(dw.RolledBack):
        reader.advance()
    assert reader.version == 1


def test_a_publisher_starts_no_second_history(root: Path, tmp_path: Path) -> None:
    board = dw.Board(root)
    with board.publisher() as publisher:
        publisher.publish(5, base=model(4), new=model(5))
        sound = Path(shutil.copytree(root, tmp_path / "sound"))
        for version in (4, 2):
            roll_back(root, version)
            with pytest.raises(dw.RolledBack, match="this publisher committed 5") as caught:
                publisher.publish(base=model(version), new=model(version + 1))
            assert (caught.value.version, board.head()) == (5, version)
        with pytest.raises(dw.RolledBack):
            publisher.publish_anchor(None, model(3))
        shutil.copytree(sound, root, dirs_exist_ok=True)
        # Another publisher's version 5 is no better than none.
        roll_back(sound, 4)
        publish_signed(dw.Board(sound), None, 5, 5)
        replaced(root, sound, 5)
        with pytest.raises(dw.RolledBack, match="this publisher committed 5"):
            publisher.publish(6, base=model(5), new=model(6))
        assert board.head() == 5


# --- Pulled directories ------------------------------------------------------------------


def test_a_pulled_directory_remembers(root: Path, tmp_path: Path) -> None:
    directory = tmp_path / "pulled"
    dw.Board(root).pull(directory)
    before = contents(directory)
    roll_back(root, 3)
    for version in (None, 4):
        with pytest.raises(dw.RolledBack, match="ends at version 3"):
            dw.Board(root).pull(directory, version=version)
    assert contents(directory) == before
    with pytest.raises(dw.WrongVersion, match="cannot go back"):
        dw.Board(root).pull(directory, version=3)
    publish_signed(dw.Board(root), None, 4, 4)
    with pytest.raises(dw.RolledBack, match="digest"):
        dw.Board(root).pull(directory)
    assert contents(directory) == before
    assert holds(directory, 4)


def test_more_was_seen_than_is_held(root: Path, tmp_path: Path) -> None:
    """As after a crash on the way to a version that was seen."""
    directory = tmp_path / "pulled"
    dw.Board(root).pull(directory, version=2)
    path = directory / "deltawire.json"
    state = json.loads(path.read_text())
    head = dw.Board(root).manifest(4)
    state["seen"] = {"version": 4, "manifest": head.digest, "state": head.result_state.hex()}
    path.write_text(json.dumps(state))
    roll_back(root, 3)
    before = contents(directory)
    with pytest.raises(dw.RolledBack, match="version 4 is remembered"):
        dw.Board(root).pull(directory)
    assert contents(directory) == before


def test_directories_of_before_go_on(root: Path, tmp_path: Path) -> None:
    """Without what is remembered now."""
    directory = tmp_path / "pulled"
    dw.Board(root).pull(directory, version=2)
    path = directory / "deltawire.json"
    state = json.loads(path.read_text())
    assert state["seen"]["version"] == 2
    del state["seen"], state["keys"]
    path.write_text(json.dumps(state))
    dw.Board(root).pull(directory)
    assert holds(directory, 4)
    assert json.loads(path.read_text())["seen"]["version"] == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"format":2,"seen":null,"keys":[]}',
        '{"format":1,"seen":{"version":-1,"manifest":"00","state":null},"keys":[]}',
        '{"format":1,"seen":null,"keys":[["a"]]}',
    ],
)
def test_memories_that_are_none(text: str, root: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    memory.write_text(text)
    with pytest.raises(dw.TargetError, match="not a memory") as caught:
        follower(root, memory)
    assert caught.value.path == str(memory)
    with pytest.raises(dw.TargetError, match="not a memory"):
        dw.Board(root).pull(tmp_path / "fresh", memory=memory)
    assert memory.read_text() == text


def test_memory_and_directory_of_different_boards(root: Path, tmp_path: Path) -> None:
    directory, memory = tmp_path / "pulled", tmp_path / "memory.json"
    dw.Board(root).pull(directory)
    other = make_board(tmp_path / "other", None)
    follower(other, memory).advance()
    before = contents(directory)
    with pytest.raises(dw.RolledBack, match="two manifests"):
        dw.Board(root).pull(directory, memory=memory)
    assert contents(directory) == before


# --- Standing still ----------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that readers are ahead of the board's newest version."""
    ahead = [0.0]
    real = watch.time.time
    monkeypatch.setattr(watch.time, "time", lambda: real() + ahead[0])
    return ahead


def test_an_old_head_is_refused(root: Path, tmp_path: Path, clock: list[float]) -> None:
    board = dw.Board(root)
    reader = board.follower(zeros(model()), max_age=3600)
    directory = tmp_path / "pulled"
    reader.advance(2)
    board.pull(directory, version=2, max_age=3600)
    clock[0] = 7200
    before = contents(directory)
    with pytest.raises(dw.StaleBoard, match=r"7\d\d\d s old, more than the 3600 s") as caught:
        reader.advance()
    assert (caught.value.version, caught.value.path) == (4, str(root))
    assert same(reader.target, model(2))
    with pytest.raises(dw.StaleBoard):
        board.pull(directory, max_age=3600)
    assert contents(directory) == before
    with pytest.raises(dw.StaleBoard):
        board.pull(tmp_path / "fresh", max_age=3600)
    assert not (tmp_path / "fresh").exists()
    # Who names a version has decided about its age.
    reader.advance(3)
    assert reader.version == 3
    clock[0] = 0
    reader.advance()
    assert reader.version == 4


def test_polls_that_find_nothing_new(root: Path, clock: list[float]) -> None:
    """A frozen board looks like a trainer that pauses: each look says so."""
    reader = dw.Board(root).follower(zeros(model()), max_age=60)
    reader.advance()
    assert reader.advance() == []
    clock[0] = 100
    for _ in range(2):
        with pytest.raises(dw.StaleBoard):
            reader.advance()
    assert same(reader.target, model(4))
    known = dw.Board(root).follower(model(4), version=4, max_age=60)
    with pytest.raises(dw.StaleBoard):
        known.advance()


def test_a_callback_decides(root: Path, tmp_path: Path, clock: list[float]) -> None:
    """For rollouts that go on while the trainer pauses."""
    told: list[dw.Stale] = []
    clock[0] = 100
    reader = dw.Board(root).follower(zeros(model()), max_age=60, on_stale=told.append)
    reader.advance()
    assert same(reader.target, model(4))
    reader.advance()
    dw.Board(root).pull(tmp_path / "pulled", max_age=60, on_stale=told.append)
    assert holds(tmp_path / "pulled", 4)
    assert [stale.version for stale in told] == [4, 4, 4]
    assert all(stale.age > 60 == stale.max_age for stale in told)

    class Paused(Exception):
        pass

    def stop(stale: dw.Stale) -> None:
        raise Paused

    reader = dw.Board(root).follower(zeros(model()), max_age=60, on_stale=stop)
    with pytest.raises(Paused):
        reader.advance()
    assert same(reader.target, zeros(model()))


@pytest.mark.parametrize("age", [0, -1, float("nan")])
def test_impossible_ages(age: float, root: Path) -> None:
    with pytest.raises(ValueError, match="max_age"):
        dw.Board(root).follower(model(), max_age=age)


def test_a_signed_time_cannot_be_renewed(tmp_path: Path, clock: list[float]) -> None:
    """Who holds newer versions back cannot make the newest look young."""
    root = make_board(tmp_path / "board", trainer())
    path = manifest_path(root, 4)
    record = path.read_bytes()
    time_ms = str(json.loads(record)["time_ms"])
    path.write_bytes(record.replace(time_ms.encode(), str(int(time_ms) + 10_000_000).encode()))
    clock[0] = 7200
    board = dw.Board(root, trust=dw.Trust([trainer().public]))
    with pytest.raises(dw.UntrustedDelta):
        board.follower(zeros(model()), max_age=3600).advance()
