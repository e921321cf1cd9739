"""GCS and Azure, against stand-ins; and what options and the environment say about any store."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltawire as dw
from board_runs import holds, model, publish, same, stored, zeros
from cloud_fakes import AZURE_KEY, TOKEN, Azure, Gcs
from kept import reopened
from store_servers import KEY, S3, SECRET, Proxy, quick_options

MIB = 1 << 20


@pytest.fixture(params=["gs", "az key", "az signature"])
def board(request: pytest.FixtureRequest, s3: S3) -> Iterator[dw.Board]:
    """An empty board on each stand-in."""
    if request.param == "gs":
        with Gcs(s3.port) as gcs:
            options = quick_options(
                endpoint=gcs.url,
                credentials=dw.Credentials(token=TOKEN),
                part_bytes=5 * MIB,
            )
            yield dw.Board(f"gs://{s3.bucket()}/runs/a", create=True, options=options)
        return
    if request.param == "az key":
        credentials = dw.Credentials(id="account", secret=AZURE_KEY)
    else:
        credentials = dw.Credentials(id="account", token="?sv=2024&sig=signature")
    with Azure() as azure:
        options = quick_options(endpoint=azure.url, credentials=credentials, part_bytes=5 * MIB)
        yield dw.Board("az://box/runs/a", create=True, options=options)


def test_publishing_following_and_pulling(board: dw.Board, tmp_path: Path) -> None:
    publish(board, 3)
    with board.publisher() as publisher:
        assert publisher.epoch == 2
        publisher.publish_anchor(2, model(2))
        publisher.publish(4, base=model(3), new=model(4))
        with pytest.raises(dw.VersionConflict):
            publisher.publish(4, base=model(3), new=model(4))
    fresh = reopened(board)
    assert fresh.head() == 4
    served = zeros(model())
    assert [step.version for step in fresh.follower(served).advance()] == [2, 3, 4]
    assert same(served, model(4))
    fresh.pull(tmp_path / "out")
    assert holds(tmp_path / "out", 4)
    assert len(stored(board)) == 6


def test_of_two_creates_one_wins(board: dw.Board) -> None:
    publish(board, 0)
    first, second = board.publisher(), reopened(board).publisher()
    with pytest.raises(dw.VersionConflict, match="another publisher opened"):
        first.publish(1, base=model(0), new=model(1))
    second.publish(1, base=model(0), new=model(1))
    value = json.loads(board.manifest(1).to_json())
    other = json.dumps({**value, "write_id": "ab" * 16}).encode()
    with pytest.raises(dw.VersionConflict, match="committed this version first"):
        board.store.commit(1, other)


def test_large_objects(board: dw.Board) -> None:
    data = np.random.default_rng(0).bytes(13 * MIB)
    upload = board.store.upload("objects/1/0-x.dw")
    upload.write(data)
    item = upload.finish()
    sink = io.BytesIO()
    board.store.fetch(*item, sink)
    assert sink.getvalue() == data
    assert board.store.read_ranges(item[0], [(5, 9), (7 * MIB, 7 * MIB + 3)]) == [
        data[5:9],
        data[7 * MIB : 7 * MIB + 3],
    ]
    with pytest.raises(dw.UntrustedDelta):
        board.store.read_range(item[0], 14 * MIB, 15 * MIB)
    torn = board.store.upload("objects/1/0-y.dw")
    torn.write(data)
    torn.abort()
    board.store.delete(item[0])
    board.store.delete(item[0])
    assert stored(board) == []


@pytest.mark.parametrize(
    "credentials", [{"token": "wrong"}, {"id": "account", "token": "sig=wrong"}]
)
def test_wrong_credentials(s3: S3, credentials: dict[str, str]) -> None:
    with Gcs(s3.port) as gcs, Azure() as azure:
        azure_wanted = "id" in credentials
        url, server = ("az://box/run", azure) if azure_wanted else ("gs://bucket/run", gcs)
        options = quick_options(endpoint=server.url, credentials=dw.Credentials(**credentials))
        with pytest.raises(dw.StoreError, match="not authenticated") as caught:
            dw.Board(url, options=options)
        assert "wrong" not in str(caught.value)
        assert len(server.requests) == 1


def test_a_container_that_is_not_there() -> None:
    with Azure() as azure:
        options = quick_options(
            endpoint=azure.url, credentials=dw.Credentials(id="account", secret=AZURE_KEY)
        )
        with pytest.raises(dw.StoreError, match="no such bucket"):
            dw.Board("az://other/run", options=options)


# --- Options and environment -------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"part_bytes": 5 * MIB - 1},
        {"part_bytes": 2 << 30},
        {"parallel": 0},
        {"parallel": 257},
        {"read_timeout": 0},
        {"connect_timeout": float("nan")},
        {"retry_wait": -1},
        {"retry_time": float("inf")},
        {"retries": -1},
        {"max_cache_bytes": -1},
        {"anonymous": True, "credentials": dw.Credentials()},
    ],
)
def test_values_out_of_range(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values)) + "|credentials"):
        dw.StoreOptions(**values)


def test_an_endpoint_without_encryption_must_be_allowed(s3: S3) -> None:
    with pytest.raises(dw.StoreError, match="https://"):
        s3.board(allow_http=False)


@pytest.mark.parametrize(
    ("url", "credentials", "message"),
    [
        ("s3://b/run", {"id": "only"}, "id and a secret"),
        ("gs://b/run", {"id": "useless"}, "token or a service account"),
        ("gs://b/run", {"file": "/nowhere/key.json"}, "cannot set up"),
        ("az://b/run", {"id": "account"}, "account key"),
        ("az://b/run", {"secret": AZURE_KEY}, "cannot set up"),
    ],
)
def test_credentials_that_do_not_fit(
    url: str, credentials: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
    with pytest.raises(dw.StoreError, match=message) as caught:
        dw.Board(url, options=quick_options(credentials=dw.Credentials(**credentials)))
    assert caught.value.path == url
    assert AZURE_KEY not in str(caught.value)


def test_only_credentials_and_region_come_from_the_environment(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tools of a cloud read beside these would lead a board elsewhere."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    with Proxy(s3.port) as proxy:
        publish(s3.board(endpoint=proxy.url, credentials=None), 1)
        signed = {request.headers["authorization"].split(",")[0] for request in proxy.requests}
    assert all(f"Credential={KEY}/" in text and "/eu-north-1/" in text for text in signed)


def test_anonymous_requests(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """They carry nothing, whatever the environment has."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with Proxy(s3.port) as proxy:
        url = f"s3://{s3.bucket()}/run"
        options = s3.options(endpoint=proxy.url, credentials=None, anonymous=True)
        board = dw.Board(url, options=options)
        with pytest.raises(dw.StoreError):
            board.publisher()
        assert len(proxy.requests) > 1
        assert not any("authorization" in request.headers for request in proxy.requests)
