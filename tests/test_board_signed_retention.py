"""Collection, leases and background anchors on boards that are signed, remote or attacked."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import pytest

import deltawire as dw
from board_runs import advance, contents, copied, holds, manifest_path, model, same, zeros
from cli_runs import Cli
from deltawire import _native
from deltawire.board.overtaken import retried
from deltawire.board.plan import find_anchor
from signed_runs import MALLORY, anchor_path, history, key, publish_signed, trainer
from store_servers import KEY, S3, SECRET, Web, quick_options


@pytest.fixture
def trust() -> dw.Trust:
    return dw.Trust([trainer().public])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A signed board with versions 0 to 9, and anchors at 0, 3 and 6."""
    root = tmp_path / "board"
    board = dw.Board(root, create=True)
    publish_signed(board, trainer(), 0, 9)
    with board.publisher(key=trainer()) as publisher:
        for version in (3, 6):
            publisher.publish_anchor(version, model(version))
    return root


def marker(root: Path, version: int) -> None:
    """A collection marker that no collection wrote."""
    (root / "control" / f"collected-{version:020d}.json").write_text("{}")


def versions(board: dw.Board) -> list[int]:
    return [manifest.version for manifest in reversed(board.log())]


# --- Signatures ---------------------------------------------------------------------------


def test_a_signed_board_is_collected_under_a_reader(
    root: Path, tmp_path: Path, trust: dw.Trust
) -> None:
    """A lease, a memory and an age limit work together, and the introduction of a key stays."""
    board = dw.Board(root, trust=trust)
    successor = key("trainer-2", bytes(range(64, 96)))
    memory = tmp_path / "memory.json"
    target = zeros(model())
    with board.follower(target, lease="one", memory=memory, max_age=3600) as follower:
        follower.advance(7)
        # Asked for by number, while a newer version has been seen: the lease is on what is held.
        assert board.readers()[0].needs == 7
        board.introduce_key(successor.public, by=trainer())
        publish_signed(board, successor, 10, 12)
        with board.publisher(key=successor) as publisher:
            for version in (9, 12):
                publisher.publish_anchor(version, model(version))
        done = board.collect(keep=1)
        assert (done.boundary, done.until, done.leases, done.limit) == (6, 6, 1, "lease")
        assert [step.anchor for step in follower.advance()] == [False] * 5
        assert same(target, model(12))
        assert board.collect(keep=1).until == 12
    assert (root / "control" / "key-trainer-2.json").is_file()
    assert versions(board) == [12]
    assert json.loads(memory.read_text())["seen"]["version"] == 12
    # A new reader that knows the first key only learns the second from what was kept.
    fresh = zeros(model())
    dw.Board(root, trust=trust).follower(fresh, memory=memory, lease="two").advance()
    assert same(fresh, model(12))
    dw.Board(root, trust=trust).pull(tmp_path / "out")
    assert holds(tmp_path / "out", 12)


def test_background_anchors_are_signed(tmp_path: Path, trust: dw.Trust) -> None:
    board = dw.Board(tmp_path / "board", create=True, trust=trust)
    arrays = model()
    with board.publisher(key=trainer(), anchor_every=2, anchor_scratch=tmp_path) as publisher:
        publisher.publish_anchor(0, arrays)
        for version in range(1, 9):
            base = copied(arrays)
            advance(arrays, version)
            publisher.publish(version, base=base, new=arrays)
    records = sorted((tmp_path / "board" / "manifests").glob("*.anchor.json"))
    assert records
    assert {_native.record_signer(path.read_bytes()) for path in records} == {"trainer"}
    newest = int(records[-1].name[:20])
    assert board.collect(keep=1).boundary == newest
    target = zeros(model())
    steps = dw.Board(board.url, trust=trust).follower(target).advance()
    assert [step.version for step in steps] == list(range(newest, 9))
    assert same(target, model(8))


def test_a_signer_folds_nothing_that_its_key_did_not_sign(root: Path, tmp_path: Path) -> None:
    """Without trusted keys a publisher that signs an anchor believes only its own key for it."""
    other = key("trainer-2", bytes(range(64, 96)))
    publisher = dw.Board(root).publisher(key=other, anchor_every=1, anchor_scratch=tmp_path)
    publisher.publish(10, base=model(9), new=model(10))
    with pytest.raises(dw.UntrustedDelta, match="made in the background"):
        publisher.close()
    assert not anchor_path(root, 10).exists()
    # Told whom to believe, it folds what the first key signed.
    both = dw.Trust([trainer().public, other.public])
    with dw.Board(root, trust=both).publisher(key=other, anchor_every=1) as publisher:
        publisher.publish(11, base=model(10), new=model(11))
    board = dw.Board(root, trust=both)
    assert find_anchor(board, board.manifest(11), board.manifest(11)) is not None


def test_a_stranger_pushes_nothing_out(root: Path, trust: dw.Trust) -> None:
    """Versions and anchors that no trusted key signed are no reason to collect signed ones."""
    mallory = key("mallory", MALLORY)
    for signer in (mallory, None):
        copy = Path(shutil.copytree(root, root.with_name(f"copy {signer}")))
        publish_signed(dw.Board(copy), signer, 10, 14)
        before = contents(copy)
        with pytest.raises(dw.UntrustedDelta) as caught:
            dw.Board(copy, trust=trust).collect(keep=2)
        assert caught.value.version == 14
        assert contents(copy) == before
    with dw.Board(root).publisher(key=mallory) as publisher:
        publisher.publish_anchor(8, model(8))
    planned = dw.Board(root).collect(keep=1, dry_run=True)
    assert planned.boundary == 8
    done = dw.Board(root, trust=trust).collect(keep=1)
    assert (done.boundary, done.limit) == (6, "anchor")
    target = zeros(model())
    assert dw.Board(root, trust=trust).follower(target).advance(7)[0].version == 6
    assert same(target, model(7))


def test_a_marker_that_no_collection_wrote(root: Path, trust: dw.Trust) -> None:
    for version, ring in ((8, None), (8, trust)):
        marker(root, version)
        before = contents(root)
        for dry_run in (True, False):
            with pytest.raises(dw.UntrustedDelta, match="nothing was removed") as caught:
                dw.Board(root, trust=ring).collect(keep=1, dry_run=dry_run)
            assert caught.value.version == version
            assert caught.value.path is not None
            assert caught.value.path.endswith(f"collected-{version:020d}.json")
        assert contents(root) == before
    # Readers believe nothing because of it: the chain is there and is checked.
    target = zeros(model())
    follower = dw.Board(root, trust=trust).follower(target)
    follower.advance(5)
    follower.advance()
    assert same(target, model(9))
    # With a lease they would rely on what is given up, so they stop.
    untouched = zeros(model())
    holder = dw.Board(root, trust=trust).follower(untouched, lease="one")
    with pytest.raises(dw.BrokenChain, match="no path"):
        holder.advance()
    assert same(untouched, zeros(model()))
    holder.close()
    (root / "control" / f"collected-{8:020d}.json").unlink()
    assert dw.Board(root, trust=trust).collect(keep=1).boundary == 6


def test_a_marker_that_would_leave_a_gap(root: Path, trust: dw.Trust) -> None:
    """Such a marker is the floor too, but what is below it is there and goes first."""
    marker(root, 6)
    done = dw.Board(root, trust=trust).collect(keep=100)
    assert (done.first, done.until, done.boundary) == (0, 6, 6)
    (root / "latest.json").unlink()
    board = dw.Board(root, trust=trust)
    assert board.head() == 9
    assert versions(board) == [6, 7, 8, 9]
    assert {int(path.name) for path in (root / "objects").iterdir()} == {6, 7, 8, 9}


def test_a_forged_boundary_hides_no_other_history(root: Path, tmp_path: Path) -> None:
    """A version that is given up is still checked as long as it is there."""
    follower = dw.Board(root).follower(zeros(model()))
    follower.advance(2)
    other = dw.Board(tmp_path / "other", create=True)
    publish_signed(other, None, 0, 9, seed=1)
    with other.publisher() as publisher:
        publisher.publish_anchor(6, history(6, 1))
    for name in ("manifests", "objects", "anchors"):
        for version in range(3, 10):
            place = f"{version:020d}" if name == "manifests" else f"{version}"
            for path in (root / name).glob(f"{place}*"):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            for path in (tmp_path / "other" / name).glob(f"{place}*"):
                copy = shutil.copytree if path.is_dir() else shutil.copy
                copy(path, root / name / path.name)
    marker(root, 6)
    with pytest.raises(dw.BrokenChain, match="parent's digest"):
        follower.advance()
    assert follower.version == 2
    assert same(follower.target, model(2))


# --- Memory -------------------------------------------------------------------------------


def test_a_memory_of_what_was_collected(root: Path, tmp_path: Path, trust: dw.Trust) -> None:
    """A reader that comes back after a collection is not told that the board went back."""
    memory = tmp_path / "memory.json"
    board = dw.Board(root, trust=trust)
    board.follower(zeros(model()), memory=memory).advance(2)
    board.pull(tmp_path / "out", version=2)
    late = board.follower(zeros(model()))
    late.advance(2)
    assert board.collect(keep=2).boundary == 6
    again = dw.Board(root, trust=trust).follower(zeros(model()), memory=memory)
    assert again.seen == 2
    assert [step.version for step in again.advance()] == [6, 7, 8, 9]
    assert late.advance()[0].anchor
    assert dw.Board(root, trust=trust).pull(tmp_path / "out").anchor == 6
    assert holds(tmp_path / "out", 9)


def replace_by(root: Path, first: int, last: int) -> None:
    """Another board of the same run and key, that begins later, in this one's place."""
    shutil.rmtree(root)
    with dw.Board(root, create=True).publisher(run="test", key=trainer()) as publisher:
        arrays = model(first)
        publisher.publish_anchor(first, arrays)
        for version in range(first + 1, last + 1):
            base = copied(arrays)
            advance(arrays, version)
            publisher.publish(version, base=base, new=arrays)


def test_a_board_that_begins_after_what_was_seen(
    root: Path, tmp_path: Path, trust: dw.Trust
) -> None:
    """Missing versions are excused by the boundary of a collection and by nothing else."""
    memory = tmp_path / "memory.json"
    follower = dw.Board(root, trust=trust).follower(zeros(model()), memory=memory)
    follower.advance(2)
    dw.Board(root, trust=trust).pull(tmp_path / "out", version=2)
    replace_by(root, 20, 22)
    fresh = dw.Board(root, trust=trust)
    for call in (
        follower.advance,
        fresh.follower(zeros(model()), memory=memory).advance,
        lambda: fresh.pull(tmp_path / "out"),
    ):
        with pytest.raises(dw.RolledBack, match="no collection removed") as caught:
            call()
        assert caught.value.version == 2
    assert same(follower.target, model(2))
    assert holds(tmp_path / "out", 2)
    # Who remembers nothing takes it: it is signed.
    fresh.follower(zeros(model())).advance()


def test_a_board_that_was_collected_and_went_back(
    root: Path, tmp_path: Path, trust: dw.Trust
) -> None:
    """A boundary above what is held is no excuse for a head below what was seen."""
    memory = tmp_path / "memory.json"
    board = dw.Board(root, trust=trust)
    board.follower(zeros(model()), memory=memory).advance()
    board.collect(keep=2)
    for version in (8, 9):
        manifest_path(root, version).unlink()
    with pytest.raises(dw.RolledBack, match="ends at version 7"):
        dw.Board(root, trust=trust).follower(zeros(model()), memory=memory).advance()
    # The versions between are gone, those before are not: no collection does that.
    memory.write_text(memory.read_text().replace('"version": 9', '"version": 7'))
    raised = dw.Board(root, trust=trust).follower(zeros(model()), memory=memory)
    manifest_path(root, 7).unlink()
    with pytest.raises(dw.RolledBack):
        raised.advance(6)


def test_a_replaced_board_is_not_asked_again(root: Path) -> None:
    """RolledBack is no sign of a collection, whatever the boundary does meanwhile."""
    board = dw.Board(root)
    tries = []

    def step(oldest: int) -> None:
        tries.append(oldest)
        board.collect(keep=1)
        if len(tries) == 1:
            raise dw.BrokenChain("overtaken", version=1)
        raise dw.RolledBack("another board", version=1)

    with pytest.raises(dw.RolledBack):
        retried(board, step, lambda: None)
    assert tries == [0, 6]


def test_a_stale_board_keeps_its_leases(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that complains of an old head goes on holding what it holds."""
    board = dw.Board(root)
    stale: list[dw.Stale] = []
    follower = board.follower(zeros(model()), lease="one", max_age=1e-4, on_stale=stale.append)
    follower.advance()
    (before,) = board.readers()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 600)
    assert follower.advance() == []
    assert len(stale) == 2
    assert board.readers()[0].expires > before.expires
    strict = board.follower(zeros(model()), lease="two", max_age=1e-4)
    for _ in range(2):
        with pytest.raises(dw.StaleBoard):
            strict.advance()
    assert {lease.name for lease in board.readers()} == {"one", "two"}


def test_a_publisher_and_its_anchors_see_one_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that adds an anchor looks for the head while the next version is committed."""
    board = dw.Board(tmp_path / "board", create=True)
    publisher = board.publisher()
    arrays = model()
    publisher.publish_anchor(0, arrays)
    publisher.publish(1, base=model(0), new=model(1))
    asked, go_on = threading.Event(), threading.Event()
    real = dw.Board.head

    def slow(self: dw.Board) -> int | None:
        head = real(self)
        if threading.current_thread() is not threading.main_thread():
            asked.set()
            assert go_on.wait(20)
        return head

    monkeypatch.setattr(dw.Board, "head", slow)
    errors: list[dw.DeltawireError] = []

    def add() -> None:
        try:
            publisher.publish_anchor(1, model(1))
        except dw.DeltawireError as error:
            errors.append(error)

    thread = threading.Thread(target=add)
    thread.start()
    assert asked.wait(20)
    publisher.publish(2, base=model(1), new=model(2))
    go_on.set()
    thread.join()
    assert errors == []


# --- Remote stores ------------------------------------------------------------------------


def test_retention_on_s3(s3: S3, tmp_path: Path, trust: dw.Trust) -> None:
    """Signatures, background anchors, leases and collection through an S3 server."""
    url, options = f"s3://{s3.bucket()}/runs/a", s3.options()
    board = dw.Board(url, create=True, trust=trust, options=options)
    arrays = model()
    target = zeros(model())
    follower = dw.Board(url, trust=trust, options=options).follower(target, lease="one")
    with board.publisher(key=trainer(), anchor_every=2, anchor_scratch=tmp_path) as publisher:
        publisher.publish_anchor(0, arrays)
        follower.advance()
        for version in range(1, 7):
            base = copied(arrays)
            advance(arrays, version)
            publisher.publish(version, base=base, new=arrays)
    assert list(tmp_path.iterdir()) == []
    first = board.collect(keep=1)
    assert (first.until, first.limit, first.leases) == (0, "lease", 1)
    assert [step.anchor for step in follower.advance()] == [False] * 6
    assert same(target, model(6))
    done = board.collect(keep=1)
    assert done.boundary is not None
    assert done.boundary >= 2
    assert versions(board) == list(range(done.boundary, 7))
    left = {path for name in ("objects", "anchors") for path, _ in board.store.list_all(name)}
    assert {int(path.split("/")[1]) for path in left} == set(versions(board))
    follower.close()
    assert board.readers() == []
    fresh = zeros(model())
    dw.Board(url, trust=trust, options=options).follower(fresh).advance()
    assert same(fresh, model(6))
    # The next publisher finds the head without version 0, and its number.
    with board.publisher(key=trainer()) as publisher:
        assert publisher.publish(base=model(6), new=model(7)).version == 7


def test_commands_on_s3(s3: S3, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    url = f"s3://{s3.bucket()}/runs/a"
    board = dw.Board(url, create=True, options=s3.options())
    publish_signed(board, trainer(), 0, 4)
    with board.publisher(key=trainer()) as publisher:
        publisher.publish_anchor(3, model(3))
    trainer().public.save(tmp_path / "trainer.pub")
    key("mallory", MALLORY).public.save(tmp_path / "mallory.pub")
    trusted = ("--trusted-keys", tmp_path / "trainer.pub")
    cli.board_options = ["--endpoint", s3.endpoint, "--allow-http", "--region", "eu-central-1"]
    with board.follower(zeros(model()), lease="rollout") as follower:
        follower.advance(2)
        assert cli("gc", url, "--keep", 1, "--json", *trusted).json["limit"] == "lease"
        shown = cli("log", url, *trusted).out
        assert "rollout" in shown
        assert "trainer\n" in shown.replace("trainer ", "trainer\n")
        assert "trainer?" in cli("log", url).out
        found = cli("log", url, "--json", *trusted).json
        assert found["verified"] is True
        assert [item["signer"] for item in found["versions"]] == ["trainer"] * 5
        assert found["readers"][0]["lag_versions"] == 2
    assert cli("gc", url, "--keep", 1, "--json", *trusted).json["boundary"] == 3
    for verb in ("gc", "log"):
        cli(verb, url, "--trusted-keys", tmp_path / "mallory.pub", status=3)
    assert cli("log", url, "--json").json["boundary"] == 3


def test_a_collected_board_behind_a_web_server(
    root: Path, tmp_path: Path, cli: Cli, trust: dw.Trust
) -> None:
    """What cannot be listed is left out of the log; readers find anchors by hint and manifests."""
    with Web(root.parent) as web:
        url = f"{web.url}/board"
        options = quick_options(credentials=None)
        behind = dw.Board(url, trust=trust, options=options)
        behind.pull(tmp_path / "out", version=2)
        late = behind.follower(zeros(model()))
        late.advance(2)
        local = dw.Board(root, trust=trust)
        assert local.collect(keep=1).boundary == 6
        cli.board_options = ["--allow-http"]
        found = cli("log", url, "--json").json
        assert (found["boundary"], found["readers"]) == (None, None)
        listed = [item["version"] for item in found["versions"]]
        assert listed == [9, 8, 7, 6]
        assert [bool(item["anchor"]) for item in found["versions"]] == [False] * 3 + [True]
        assert "lease" in cli("log", url).out
        late.advance()
        assert same(late.target, model(9))
        behind.pull(tmp_path / "out")
        assert holds(tmp_path / "out", 9)
        for dry_run in (True, False):
            with pytest.raises(dw.StoreError, match="cannot be listed"):
                behind.collect(keep=1, dry_run=dry_run)
        cli("gc", url, "--keep", 1, status=5)
        with pytest.raises(dw.StoreError, match="without a lease"):
            behind.follower(zeros(model()), lease="one").advance()
