"""What networks and servers do to requests: retried, resumed, recognised, or a typed error."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import deltawire as dw
from board_runs import model, publish, same, zeros
from store_servers import KEY, S3, SECRET, Proxy, Web, quick_options

MIB = 1 << 20
Ref = tuple[str, int, str]


@pytest.fixture
def proxy(s3: S3) -> Iterator[Proxy]:
    """Between the boards of a test and S3."""
    with Proxy(s3.port) as proxy:
        yield proxy


@pytest.fixture
def board(s3: S3, proxy: Proxy) -> dw.Board:
    """An empty board behind the proxy."""
    return s3.board(endpoint=proxy.url, part_bytes=5 * MIB)


def noise(length: int, seed: int = 0) -> bytes:
    """Bytes of which every block is another."""
    return np.random.default_rng(seed).bytes(length)


def put(board: dw.Board, data: bytes, name: str = "objects/1/0-x.dw") -> Ref:
    """Upload an object."""
    upload = board.store.upload(name)
    for start in range(0, len(data), MIB):
        upload.write(data[start : start + MIB])
    return upload.finish()


def fetch(board: dw.Board, item: Ref) -> bytes:
    """Download an object."""
    sink = io.BytesIO()
    board.store.fetch(*item, sink)
    return sink.getvalue()


# --- Creating ----------------------------------------------------------------------------


def test_a_store_that_ignores_the_condition_is_refused(board: dw.Board, proxy: Proxy) -> None:
    proxy.fault("unconditional", method="PUT", times=100)
    for _ in range(2):
        with pytest.raises(dw.StoreError, match="If-None-Match") as caught:
            board.publisher()
        assert caught.value.path == board.url
    assert not proxy.asked("manifests/", "PUT")
    # The same store, once it honours it.
    proxy.faults.clear()
    publish(board, 1)
    assert board.head() == 1


@pytest.mark.parametrize("retries", [0, 4])
def test_a_lost_reply_is_recognised_as_success(s3: S3, proxy: Proxy, retries: int) -> None:
    """Read back (no retry below us), or a retry below us that collides with its own success."""
    board = s3.board(endpoint=proxy.url, retries=retries)
    publish(board, 0)
    for part in ("control/epoch-", "objects/", "manifests/"):
        proxy.fault("no-reply", part, "PUT")
    with board.publisher() as publisher:
        assert publisher.epoch == 2
        publisher.publish(1, base=model(0), new=model(1))
    assert [fault.times for fault in proxy.faults] == [0, 0, 0]
    assert len(proxy.asked("manifests/00000000000000000001", "PUT")) == (2 if retries else 1)
    served = zeros(model())
    assert [step.version for step in board.follower(served).advance()] == [0, 1]
    assert same(served, model(1))


def test_a_lost_reply_to_the_end_of_a_large_upload(board: dw.Board, proxy: Proxy, s3: S3) -> None:
    data = noise(11 * MIB)
    proxy.fault("no-reply", "uploadId=", "POST")
    item = put(board, data)
    assert fetch(board, item) == data
    assert s3.unfinished_uploads(board.url.split("/")[2]) == 0


def test_a_create_that_failed_is_not_taken_for_one_that_succeeded(
    board: dw.Board, proxy: Proxy
) -> None:
    publish(board, 0)
    with board.publisher() as publisher:
        proxy.fault("status", "manifests/", "PUT", times=100, number=500)
        with pytest.raises(dw.StoreError, match="500"):
            publisher.publish(1, base=model(0), new=model(1))
        assert board.head() == 0
        proxy.faults.clear()
        publisher.publish(1, base=model(0), new=model(1))
    assert board.head() == 1


# --- Statuses ----------------------------------------------------------------------------


def test_busy_servers_are_asked_again(board: dw.Board, proxy: Proxy) -> None:
    for status in (500, 503, 429):
        for part in ("control/", "objects/", "manifests/", "anchors/"):
            for method in ("GET", "PUT"):
                proxy.fault("status", part, method, number=status)
    publish(board, 1)
    served = zeros(model())
    board.follower(served).advance()
    assert same(served, model(1))
    assert sum(fault.times for fault in proxy.faults) < 6


def test_busy_for_too_long(board: dw.Board, proxy: Proxy) -> None:
    publish(board, 0)
    before = len(proxy.asked(method="HEAD"))
    proxy.fault("status", method="HEAD", times=100, number=503)
    with pytest.raises(dw.StoreError, match="503"):
        board.head()
    assert len(proxy.asked(method="HEAD")) - before == 5


@pytest.mark.parametrize(("status", "message"), [(403, "permission denied"), (401, "credential")])
def test_refusals_are_not_repeated(
    board: dw.Board, proxy: Proxy, status: int, message: str
) -> None:
    publish(board, 1)
    for part, method, call in [
        ("manifests/", "GET", lambda: board.manifest(1)),
        ("manifests/", "HEAD", board.head),
        ("control/", "PUT", board.publisher),
    ]:
        before = len(proxy.asked(part, method))
        proxy.fault("status", part, method, number=status)
        with pytest.raises(dw.StoreError, match=message) as caught:
            call()
        assert part in str(caught.value.path)
        # A create is read back, which changes nothing here.
        assert len(proxy.asked(part, method)) - before == 1


def test_what_is_not_there(board: dw.Board, proxy: Proxy) -> None:
    with pytest.raises(dw.StoreError, match="no such object"):
        fetch(board, ("objects/1/0-none.dw", 5, "00" * 32))
    with pytest.raises(dw.StoreError, match="no such object"):
        board.store.read_range("objects/1/0-none.dw", 0, 5)
    assert board.store.read("objects/1/0-none.dw", 100) is None
    assert len(proxy.asked("0-none")) == 3


def test_a_bucket_that_is_not_there(s3: S3) -> None:
    with pytest.raises(dw.StoreError, match="no such bucket") as caught:
        dw.Board("s3://no-bucket-of-this-name/run", create=True, options=s3.options())
    assert caught.value.path == "s3://no-bucket-of-this-name/run"


def test_nobody_listens(s3: S3) -> None:
    started = time.monotonic()
    with pytest.raises(dw.StoreError, match="Connect"):
        dw.Board("s3://bucket/run", options=s3.options(endpoint="http://127.0.0.1:1"))
    assert time.monotonic() - started < 10


# --- Broken bodies -----------------------------------------------------------------------


def ranges_asked(server: Proxy | Web, part: str = "objects/") -> list[tuple[int, int]]:
    """First and last byte of every range that was asked for."""
    found = [request.headers.get("range") for request in server.asked(part, "GET")]
    pairs = [text.removeprefix("bytes=").split("-") for text in found if text is not None]
    return [(int(first), int(last)) for first, last in pairs]


def test_a_large_object_comes_in_pieces(board: dw.Board, proxy: Proxy) -> None:
    data = noise(17 * MIB)
    item = put(board, data)
    assert len(proxy.asked("partNumber=", "PUT")) == 4
    assert fetch(board, item) == data
    pieces = [(at, min(at + 5 * MIB, 17 * MIB) - 1) for at in range(0, 17 * MIB, 5 * MIB)]
    assert sorted(ranges_asked(proxy)) == pieces


def test_a_broken_download_goes_on_where_it_broke(board: dw.Board, proxy: Proxy) -> None:
    data = noise(15 * MIB)
    item = put(board, data)
    proxy.fault("cut", "objects/", "GET", times=4, number=MIB)
    assert fetch(board, item) == data
    asked = ranges_asked(proxy)
    # Three pieces, and four times the rest of one.
    assert len(asked) == 7
    assert all(first % MIB == 0 for first, _ in asked)
    assert len({first for first, _ in asked}) > 4


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("ranges", [True, False])
def test_web_servers_of_all_kinds(tmp_path: Path, tags: bool, ranges: bool) -> None:
    """Without entity tags nothing below us resumes, without ranges nobody can."""
    data = noise(12 * MIB + 5)
    item = put(dw.Board(tmp_path, create=True), data)
    with Web(tmp_path, ranges=ranges, tags=tags) as web:
        board = dw.Board(web.url, options=quick_options(credentials=None, part_bytes=5 * MIB))
        assert fetch(board, item) == data
        web.requests.clear()
        web.fault("cut", "objects/", "GET", times=3, number=2 * MIB)
        assert fetch(board, item) == data
        if ranges:
            assert len(ranges_asked(web)) == 6
        web.fault("cut", "objects/", "GET", times=1000, number=0)
        with pytest.raises(dw.StoreError):
            fetch(board, item)
        assert len(web.asked("objects/")) < 100


def test_small_records_survive_broken_connections(tmp_path: Path) -> None:
    publish(dw.Board(tmp_path, create=True), 2)
    with Web(tmp_path, tags=False) as web:
        board = dw.Board(web.url, options=quick_options(credentials=None))
        for _ in range(3):
            web.fault("cut", "manifests/", "GET", number=100)
        served = zeros(model())
        board.follower(served).advance()
        assert same(served, model(2))
        assert [fault.times for fault in web.faults] == [0, 0, 0]


def test_lies_about_ranges_and_bytes(board: dw.Board, proxy: Proxy) -> None:
    data = noise(12 * MIB)
    item = put(board, data)
    for kind, error, message in [
        ("shift", dw.StoreError, "Requested"),
        ("grow", dw.UntrustedDelta, "its manifest says"),
        ("alter", dw.UntrustedDelta, "BLAKE3"),
    ]:
        proxy.requests.clear()
        proxy.fault(kind, "objects/", "GET")
        with pytest.raises(error, match=message):
            fetch(board, item)
        assert len(proxy.asked("objects/")) <= 4
    assert fetch(board, item) == data
    longer: Ref = (item[0], item[1] + 1, item[2])
    with pytest.raises(dw.UntrustedDelta, match="its manifest says"):
        fetch(board, longer)
    with pytest.raises(dw.UntrustedDelta):
        board.store.read_range(item[0], item[1] - 1, item[1] + 1)
    with pytest.raises(dw.UntrustedDelta):
        board.store.read_range(item[0], item[1] + 5, item[1] + 9)


def test_servers_that_hang(s3: S3, proxy: Proxy) -> None:
    board = s3.board(endpoint=proxy.url, read_timeout=0.3, retries=1)
    publish(board, 0)
    proxy.fault("hang", "manifests/", "GET")
    assert board.manifest(0).version == 0
    proxy.fault("hang", "manifests/", "GET", times=2)
    started = time.monotonic()
    with pytest.raises(dw.StoreError, match=r"timed out|timeout"):
        board.manifest(0)
    assert time.monotonic() - started < 5
    with board.publisher() as publisher:
        proxy.fault("hang", "manifests/", "PUT")
        # Nobody knows what will become of it, so it is not said to have failed for good.
        with pytest.raises(dw.StoreError):
            publisher.publish(1, base=model(0), new=model(1))


def test_many_ranges_in_few_requests(board: dw.Board, proxy: Proxy) -> None:
    data = noise(8 * MIB)
    name, _, _ = put(board, data)
    near = [(place, place + 100) for place in range(0, MIB, 10_000)]
    far = [(5 * MIB, 5 * MIB + 7), (3 * MIB, 3 * MIB + 9), (0, 0)]
    found = board.store.read_ranges(name, near + far)
    assert found == [data[first:last] for first, last in near + far]
    assert len(ranges_asked(proxy)) == 3
    proxy.fault("cut", "objects/", "GET", number=1000)
    assert board.store.read_ranges(name, near) == [data[first:last] for first, last in near]


# --- Uploads -----------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "method"), [("partNumber=2", "PUT"), ("uploadId=", "POST")])
def test_a_failed_upload_is_removed(
    s3: S3, board: dw.Board, proxy: Proxy, part: str, method: str
) -> None:
    proxy.fault("status", part, method, number=403)
    with pytest.raises(dw.StoreError, match=r"permission denied|403"):
        put(board, noise(17 * MIB))
    assert board.store.list_all("objects") == []
    assert s3.unfinished_uploads(board.url.split("/")[2]) == 0
    assert len(proxy.asked("uploadId=", "DELETE")) == 1


def test_parts_are_retried(board: dw.Board, proxy: Proxy) -> None:
    data = noise(17 * MIB)
    proxy.fault("status", "partNumber=", "PUT", times=3, number=503)
    proxy.fault("no-reply", "partNumber=", "PUT", times=2)
    assert fetch(board, put(board, data)) == data


MEASURE = """
import resource, sys, threading, time
sys.path.insert(0, sys.argv[1])
import numpy as np
import deltawire as dw
from store_servers import quick_options

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))

peak = 0
def sample():
    global peak
    while True:
        peak = max(peak, anonymous())
        time.sleep(0.001)

class Nowhere:
    def write(self, data):
        return len(data)

options = quick_options(endpoint=sys.argv[3], part_bytes=5 << 20, parallel=3)
board = dw.Board(sys.argv[2], options=options)
piece = np.random.default_rng(0).bytes(1 << 20)
board.head()
threading.Thread(target=sample, daemon=True).start()
time.sleep(0.02)
start = anonymous()
upload = board.store.upload("objects/1/0-large.dw")
for _ in range(150):
    upload.write(piece)
item = upload.finish()
board.store.fetch(*item, Nowhere())
print(peak - start)
"""


def test_transfers_take_bounded_memory(s3: S3) -> None:
    board = s3.board()
    command = [sys.executable, "-c", MEASURE, str(Path(__file__).parent), board.url, s3.endpoint]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # 150 MiB go through; a handful of parts of 5 MiB, and what connections buffer, may stay.
    assert int(done.stdout) < 64 * MIB


def test_requests_at_once_are_bounded(s3: S3, proxy: Proxy) -> None:
    board = s3.board(endpoint=proxy.url, part_bytes=5 * MIB, parallel=2)
    data = noise(41 * MIB)
    item = put(board, data)
    assert fetch(board, item) == data
    assert proxy.most_at_once == 2


# --- Secrets -----------------------------------------------------------------------------


def test_secrets_are_never_shown(s3: S3, proxy: Proxy) -> None:
    token = "token-not-to-be-shown"
    credentials = dw.Credentials(id=KEY, secret=SECRET, token=token)
    board = s3.board(endpoint=proxy.url, credentials=credentials)
    shown = [repr(board), repr(board.options), repr(credentials)]
    for kind, number in [("status", 403), ("status", 400), ("no-reply", 0), ("cut", 0)]:
        for method in ("GET", "PUT"):
            proxy.fault(kind, method=method, times=100, number=number)
        for call in (lambda: board.manifest(0), board.publisher):
            with pytest.raises(dw.StoreError) as caught:
                call()
            shown += [str(caught.value), repr(caught.value), repr(caught.value.path)]
        proxy.faults.clear()
    for options in (
        {"endpoint": f"https://{KEY}:{SECRET}@localhost"},
        {"ca_file": "/nowhere"},
        {"credentials": dw.Credentials(secret=SECRET)},
    ):
        with pytest.raises(dw.StoreError) as caught:
            s3.board(**options)
        shown.append(str(caught.value))
    for url in (f"https://{KEY}:{SECRET}@host/run", f"https://host/run?sig={SECRET}"):
        with pytest.raises(dw.StoreError, match="environment") as caught:
            dw.Board(url)
        shown.append(f"{caught.value} {caught.value.path}")
    for text in shown:
        assert not any(secret in text for secret in (SECRET, token, KEY)), text
