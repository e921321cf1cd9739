"""Small stand-ins for GCS and Azure: the requests that a board makes, after their documents.

They show that URLs, conditions, parts and listings are what these services' documents ask for.
They are no proof that the services themselves agree.
"""

from __future__ import annotations

import base64
import hashlib
import re
import urllib.parse
from email.utils import formatdate
from xml.sax.saxutils import escape

from store_servers import SIGNED, Answer, Proxy, Request, Server

#: The token that GCS is shown.
TOKEN = "token-of-the-tests"


class Gcs(Proxy):
    """GCS's XML interface before an S3 server: it differs in authentication and conditions."""

    def answer(self, request: Request) -> Answer:
        """As GCS would."""
        headers = request.headers
        if headers.pop("authorization", "") != f"Bearer {TOKEN}":
            return Answer(401, {}, b"<Error><Code>AuthenticationRequired</Code></Error>")
        headers["authorization"] = SIGNED["Authorization"]
        generation = headers.pop("x-goog-if-generation-match", None)
        if generation is not None:
            assert (request.method, generation) == ("PUT", "0")
            headers["if-none-match"] = "*"
        path, mark, query = request.path.partition("?")
        request.path = urllib.parse.unquote(path) + mark + query
        answer = super().answer(request)
        answer.headers["x-goog-generation"] = "1"
        return answer


class Azure(Server):
    """Blob storage with one container, ``box``, in memory."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self._blocks: dict[tuple[str, str], bytes] = {}
        super().__init__()

    def answer(self, request: Request) -> Answer:
        """As Azure would."""
        url = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if query.get("sig") != "signature" and not request.headers.get(
            "authorization", ""
        ).startswith("SharedKey account:"):
            return Answer(401, {}, b"<Error><Code>NoAuthenticationInformation</Code></Error>")
        container, _, name = urllib.parse.unquote(url.path).lstrip("/").partition("/")
        if container != "box":
            return Answer(404, {}, b"<Error><Code>ContainerNotFound</Code></Error>")
        comp = query.get("comp")
        if comp == "list":
            return self._list(query)
        if comp == "batch":
            return self._batch(request)
        if request.method == "PUT":
            return self._put(request, name, query)
        if name not in self.blobs:
            return Answer(404, {}, b"<Error><Code>BlobNotFound</Code></Error>")
        return self._get(request, self.blobs[name])

    def _described(self, data: bytes) -> dict[str, str]:
        tag = hashlib.sha256(data).hexdigest()[:16]
        return {"etag": f'"{tag}"', "last-modified": formatdate(0, usegmt=True)}

    def _put(self, request: Request, name: str, query: dict[str, str]) -> Answer:
        data = request.body
        if query.get("comp") == "block":
            self._blocks[name, query["blockid"]] = data
            return Answer(201, {})
        if query.get("comp") == "blocklist":
            wanted = re.findall(r"<Uncommitted>([^<]*)</Uncommitted>", data.decode())
            data = b"".join(self._blocks.pop((name, block)) for block in wanted)
        else:
            assert request.headers["x-ms-blob-type"] == "BlockBlob"
        if request.headers.get("if-none-match") == "*" and name in self.blobs:
            return Answer(409, {}, b"<Error><Code>BlobAlreadyExists</Code></Error>")
        self.blobs[name] = data
        return Answer(201, self._described(data))

    def _get(self, request: Request, data: bytes) -> Answer:
        headers = {**self._described(data), "content-length": str(len(data))}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if not asked:
            return Answer(200, headers, data)
        first, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
        if first > last:
            return Answer(416, {}, b"<Error><Code>InvalidRange</Code></Error>")
        headers["content-range"] = f"bytes {first}-{last}/{len(data)}"
        headers["content-length"] = str(last + 1 - first)
        return Answer(206, headers, data[first : last + 1])

    def _list(self, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        entries = []
        for name, data in sorted(self.blobs.items()):
            rest = name.removeprefix(prefix)
            if name.startswith(prefix) and not (delimiter and delimiter in rest):
                described = self._described(data)
                entries.append(
                    f"<Blob><Name>{escape(name)}</Name><Properties>"
                    f"<Last-Modified>{described['last-modified']}</Last-Modified>"
                    f"<Content-Length>{len(data)}</Content-Length>"
                    "<Content-Type>application/octet-stream</Content-Type>"
                    f"<Etag>{escape(described['etag'])}</Etag></Properties></Blob>"
                )
        body = f"<EnumerationResults><Blobs>{''.join(entries)}</Blobs><NextMarker/>"
        return Answer(
            200, {"content-type": "application/xml"}, f"{body}</EnumerationResults>".encode()
        )

    def _batch(self, request: Request) -> Answer:
        boundary = "batchresponse_1"
        parts = []
        for number, path in enumerate(re.findall(r"DELETE (\S+) HTTP", request.body.decode())):
            name = urllib.parse.unquote(urllib.parse.urlsplit(path).path).split("/box/", 1)[1]
            found = self.blobs.pop(name, None) is not None
            status = "202 Accepted" if found else "404 The specified blob does not exist."
            code = "" if found else "x-ms-error-code: BlobNotFound\r\n"
            parts.append(
                f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
                f"HTTP/1.1 {status}\r\n{code}x-ms-request-id: {number}\r\n\r\n"
            )
        body = "".join(parts) + f"--{boundary}--\r\n"
        return Answer(202, {"content-type": f"multipart/mixed; boundary={boundary}"}, body.encode())


#: What Azure takes for a key.
AZURE_KEY = base64.b64encode(b"key-not-to-be-shown").decode()
