"""Boards behind a web server: read as any other, never written, never listed."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import deltawire as dw
from board_runs import fresh_memory, holds, manifest_path, model, publish, same, zeros
from cli_runs import Cli
from store_servers import Web, quick_options


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A local board with versions 0, an anchor, to 3."""
    publish(dw.Board(tmp_path / "board", create=True), 3)
    return tmp_path / "board"


@pytest.fixture
def web(root: Path) -> Iterator[Web]:
    """A server over the directory that it lies in."""
    with Web(root.parent) as web:
        yield web


@pytest.fixture
def board(web: Web) -> dw.Board:
    """The same board, read through the server."""
    return dw.Board(f"{web.url}/board", options=quick_options(credentials=None))


def test_following(board: dw.Board, root: Path) -> None:
    served = zeros(model())
    follower = board.follower(served)
    assert [step.version for step in follower.advance(2)] == [0, 1, 2]
    assert [step.version for step in follower.advance()] == [3]
    assert follower.advance() == []
    with dw.Board(root).publisher() as publisher:
        publisher.publish(4, base=model(3), new=model(4))
    assert board.wait(4, timeout=10)
    follower.advance()
    assert same(served, model(4))
    assert follower.prove() == board.manifest(4).result_state
    assert [item.version for item in board.log()] == [4, 3, 2, 1, 0]


def test_nothing_is_written(board: dw.Board, web: Web) -> None:
    web.requests.clear()
    calls = [
        board.publisher,
        lambda: board.store.upload("objects/1/0-x.dw"),
        lambda: board.store.delete("latest.json"),
        lambda: board.store.commit(4, board.manifest(3).to_json()),
        lambda: board.store.claim_anchor(4, 1, "ab" * 16, 0),
    ]
    for call in calls[:3]:
        with pytest.raises(dw.StoreError, match="read-only") as caught:
            call()
        assert caught.value.path == board.url
    assert web.requests == []
    for call in calls[3:]:
        with pytest.raises(dw.DeltawireError):
            call()
    assert {request.method for request in web.requests} <= {"GET", "HEAD"}


def test_the_head_is_found_without_listing(board: dw.Board, root: Path) -> None:
    assert board.head() == 3
    (root / "latest.json").unlink()
    assert dw.Board(board.url, options=board.options).head() == 3
    # Neither the hint nor version 0, nor the one after it, which would do as well.
    for version in (0, 1):
        manifest_path(root, version).unlink()
    lost = dw.Board(board.url, options=board.options)
    with pytest.raises(dw.StoreError, match=r"latest\.json nor version 0") as caught:
        lost.head()
    assert caught.value.path == board.url
    with pytest.raises(dw.StoreError, match="cannot be listed"):
        lost.store.list_all("objects")
    # One who knows a version goes on.
    assert board.head() == 3
    (root / "latest.json").write_text('{"version":2}')
    assert lost.head() == 3


def test_a_server_without_ranges(root: Path, tmp_path: Path) -> None:
    """Whole objects are enough for deltas and for a pull; tensors in memory need ranges."""
    with Web(root, ranges=False) as web:
        board = dw.Board(web.url, options=quick_options(credentials=None))
        board.pull(tmp_path / "out")
        assert holds(tmp_path / "out", 3)
        served = model(1)
        board.follower(served, version=1).advance()
        assert same(served, model(3))
        with pytest.raises(dw.StoreError, match="byte ranges"):
            board.follower(zeros(model())).advance()


def test_the_command_line(
    board: dw.Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = Cli(capsys)
    assert cli("log", board.url, "--json").json["head"] == 3
    out, cache = tmp_path / "out", tmp_path / "cache"
    assert cli("pull", board.url, "-o", out, "--cache", cache, "--json").json["version"] == 3
    assert holds(out, 3)
    assert len(list(cache.iterdir())) == 5  # an anchor file, three deltas, the lock
    error = cli("publish", board.url, out, "--json", status=5).json["error"]
    assert (error["kind"], "read-only" in error["message"]) == ("store", True)


def test_certificates(root: Path, tmp_path: Path) -> None:
    """Over TLS, with a certificate that only an option makes trusted."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "certificate.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "key.pem").write_bytes(private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, tmp_path / "key.pem")
    with Web(root, tls=context) as web:
        url = web.url.replace("127.0.0.1", "localhost")
        assert url.startswith("https://")
        with pytest.raises(dw.StoreError, match="certificate"):
            dw.Board(url, options=quick_options(credentials=None, allow_http=False, retries=0))
        options = quick_options(credentials=None, allow_http=False, ca_file=pem)
        assert dw.Board(url, options=options).head() == 3


def test_a_board_in_memory_has_no_settings() -> None:
    """Options are accepted everywhere, so that one configuration serves several places."""
    assert dw.Board(fresh_memory(), create=True, options=quick_options()).head() is None
