"""The download cache: nothing is fetched twice, nothing in it is trusted, it stays in bounds."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from board_runs import holds, model, publish, same, zeros
from store_servers import Fault, Web, quick_options

MIB = 1 << 20
TESTS = str(Path(__file__).parent)
Ref = tuple[str, int, str]


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    """A web server over an empty board."""
    dw.Board(tmp_path / "board", create=True)
    with Web(tmp_path / "board") as web:
        yield web


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Where downloads are kept."""
    return tmp_path / "cache"


def opened(web: Web, cache: Path, **changes: object) -> dw.Board:
    """The board, read with a cache."""
    values = {"credentials": None, "part_bytes": 5 * MIB, "cache": cache, **changes}
    return dw.Board(web.url, options=quick_options(**values))


def put(tmp_path: Path, length: int, seed: int = 0) -> tuple[bytes, Ref]:
    """An object on the board."""
    data = np.random.default_rng(seed).bytes(length)
    upload = dw.Board(tmp_path / "board").store.upload(f"objects/1/{seed}-x.dw")
    upload.write(data)
    return data, upload.finish()


def fetch(board: dw.Board, item: Ref) -> bytes:
    """Download an object."""
    sink = io.BytesIO()
    board.store.fetch(*item, sink)
    return sink.getvalue()


def kept(cache: Path) -> list[str]:
    """Names of the objects in it."""
    return sorted(path.name for path in cache.iterdir() if path.name != ".lock")


def asked(web: Web) -> int:
    """Requests for objects, but not for records of skips, which are only looked for."""
    return sum("/from-" not in request.path for request in web.asked("objects/"))


def test_an_object_is_fetched_once(web: Web, cache: Path, tmp_path: Path) -> None:
    data, item = put(tmp_path, 12 * MIB + 5)
    assert fetch(opened(web, cache), item) == data
    before = asked(web)
    assert kept(cache) == [item[2]]
    assert fetch(opened(web, cache), item) == data
    assert asked(web) == before


def test_a_broken_download_is_resumed(web: Web, cache: Path, tmp_path: Path) -> None:
    data, item = put(tmp_path, 12 * MIB)

    def late(method: str, path: str, headers: dict[str, str]) -> bool:
        first = headers.get("range", "bytes=0-").removeprefix("bytes=").split("-")[0]
        return "objects/" in path and int(first) >= 10 * MIB

    web.faults.append(Fault("status", late, times=100, number=403))
    with pytest.raises(dw.StoreError, match="permission"):
        fetch(opened(web, cache), item)
    web.faults.clear()
    web.requests.clear()
    assert fetch(opened(web, cache), item) == data
    firsts = [request.headers["range"] for request in web.asked("objects/")]
    assert firsts == [f"bytes={10 * MIB}-{12 * MIB - 1}"]


DOWNLOAD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import deltawire as dw
from store_servers import quick_options

class Fatal:
    def __init__(self, count):
        self.count = count

    def write(self, data):
        self.count -= len(data)
        if self.count <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return len(data)

options = quick_options(credentials=None, part_bytes=5 << 20, cache=sys.argv[3])
board = dw.Board(sys.argv[2], options=options)
board.store.fetch(sys.argv[4], int(sys.argv[5]), sys.argv[6], Fatal(int(sys.argv[7])))
"""


def test_a_killed_process_is_continued(web: Web, cache: Path, tmp_path: Path) -> None:
    data, item = put(tmp_path, 23 * MIB)
    for count in (7 * MIB, 16 * MIB):
        words = [TESTS, web.url, str(cache), *map(str, item), str(count)]
        done = subprocess.run([sys.executable, "-c", DOWNLOAD, *words], check=False)
        assert done.returncode == -9
    web.requests.clear()
    assert fetch(opened(web, cache), item) == data
    first = min(int(r.headers["range"][6:].split("-")[0]) for r in web.asked("objects/"))
    # What the second process had was kept before it was handed on.
    assert first >= 15 * MIB


@pytest.mark.parametrize("place", [10, 5 * MIB + 100, -1])
def test_altered_files_are_not_used(web: Web, cache: Path, tmp_path: Path, place: int) -> None:
    data, item = put(tmp_path, 9 * MIB)
    fetch(opened(web, cache), item)
    path = cache / item[2]
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    for _ in range(3):
        assert fetch(opened(web, cache), item) == data
    before = asked(web)
    assert fetch(opened(web, cache), item) == data
    assert asked(web) == before
    # Files of other lengths, and what is no file.
    for other in (b"", b"junk", bytes(content) + b"more"):
        path.write_bytes(other)
        assert fetch(opened(web, cache), item) == data
    path.unlink()
    path.mkdir()
    assert fetch(opened(web, cache), item) == data


def test_other_bytes_than_the_manifests_are_not_kept(web: Web, cache: Path, tmp_path: Path) -> None:
    data, item = put(tmp_path, 6 * MIB)
    web.fault("alter", "objects/", "GET")
    with pytest.raises(dw.UntrustedDelta, match="BLAKE3"):
        fetch(opened(web, cache), item)
    assert kept(cache) == []
    assert fetch(opened(web, cache), item) == data
    assert kept(cache) == [item[2]]
    # Blocks that agree with their own sums, but are another object's.
    other, wrong = put(tmp_path, 6 * MIB, 1)
    os.replace(cache / item[2], cache / wrong[2])
    with pytest.raises(dw.UntrustedDelta, match="BLAKE3"):
        fetch(opened(web, cache), wrong)
    assert fetch(opened(web, cache), wrong) == other


def test_it_stays_in_bounds(web: Web, cache: Path, tmp_path: Path) -> None:
    objects = [put(tmp_path, 2 * MIB, seed) for seed in range(4)]
    most = 5 * MIB
    board = opened(web, cache, max_cache_bytes=most)
    for data, item in objects:
        assert fetch(board, item) == data
        assert sum(path.stat().st_size for path in cache.iterdir()) <= most
        path = cache / item[2]
        # Whole seconds apart, so that the order is certain.
        os.utime(path, (path.stat().st_mtime + len(kept(cache)),) * 2)
    assert kept(cache) == sorted(item[2] for _, item in objects[2:])
    large, item = put(tmp_path, 6 * MIB, 9)
    assert fetch(board, item) == large
    assert len(kept(cache)) == 2


def test_several_at_once(web: Web, cache: Path, tmp_path: Path) -> None:
    data, item = put(tmp_path, 11 * MIB)
    wrong: list[int] = []

    def work(number: int) -> None:
        if fetch(opened(web, cache), item) != data:
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    before = asked(web)
    assert fetch(opened(web, cache), item) == data
    assert asked(web) == before


def test_followers_and_pulls_use_it(web: Web, cache: Path, tmp_path: Path) -> None:
    publish(dw.Board(tmp_path / "board"), 3)
    opened(web, cache).pull(tmp_path / "one")
    web.requests.clear()
    opened(web, cache).pull(tmp_path / "two")
    assert holds(tmp_path / "two", 3)
    served = model(0)
    opened(web, cache).follower(served, version=0).advance()
    assert same(served, model(3))
    assert asked(web) == 0
    assert not web.asked("anchors/")
    served = zeros(model())
    opened(web, cache).follower(served).advance()
    assert same(served, model(3))


def test_a_directory_that_cannot_be(web: Web, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(dw.StoreError, match="cache directory"):
        opened(web, tmp_path / "file" / "cache")
