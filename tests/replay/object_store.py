"""An object store with the part of S3 that pyarrow uses: objects, listings, multipart uploads; and moto, with the rest.

Unlike a disk it has no directories and no rename, and an object is whole or absent.
"""

import hashlib
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import Request, urlopen
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import pytest

from tests.integration import python_packages
from tests.integration.node.install import NotHere, kept
from tests.kit.waiting import PATIENCE_SECONDS
from tests.replay.cluster import started

BUCKET = "bucket"
"""The only one."""

PAGE = 3
"""Objects in one answer to a listing: few, so that there is more than one."""

XMLNS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class Store(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.puts: list[str] = []
        self.read_bytes: Counter[str] = Counter()
        self.full = False

    def put(self, key: str, data: bytes) -> None:
        """Store one whole object."""
        self.objects[key] = data
        self.puts.append(key)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, unless a client was killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Store

    def log_message(self, *_said: object) -> None:
        """Write no log."""

    def _asked(self) -> tuple[str, dict[str, str], bytes]:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        body = self._chunks() if chunked else self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" in (self.headers.get("Content-Encoding") or ""):
            body = _unchunked(body)
        return unquote(parts.path).lstrip("/"), query, body

    def _chunks(self) -> bytes:
        found = []
        while length := int(self.rfile.readline(), 16):
            found.append(self.rfile.read(length))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(found)

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _xml(self, text: str, status: int = 200) -> None:
        self._answer(status, f'<?xml version="1.0"?>{text}'.encode(), Content_Type="application/xml")

    def _error(self, status: int, code: str) -> None:
        self._xml(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>", status)

    def do_PUT(self) -> None:
        key, query, body = self._asked()
        if self.server.full:
            return self._error(507, "InsufficientCapacity")
        if "partNumber" in query:
            self.server.parts[query["uploadId"]][int(query["partNumber"])] = body
        else:
            self.server.put(key, body)
        return self._answer(200, ETag='"e"')

    def do_POST(self) -> None:
        key, query, body = self._asked()
        if "uploads" in query:
            upload = str(len(self.server.parts))
            self.server.parts[upload] = {}
            name = f"<Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            return self._xml(f"<InitiateMultipartUploadResult {XMLNS}>{name}</InitiateMultipartUploadResult>")
        if "uploadId" in query:
            parts = self.server.parts.pop(query["uploadId"])
            self.server.put(key, b"".join(parts[number] for number in sorted(parts)))
            inner = f"<Key>{escape(key)}</Key><ETag>e</ETag>"
            return self._xml(f"<CompleteMultipartUploadResult {XMLNS}>{inner}</CompleteMultipartUploadResult>")
        bucket = key.partition("/")[0]
        for each in ET.fromstring(body).iter():  # noqa: S314  pyarrow wrote it
            if each.tag.endswith("Key"):
                self.server.objects.pop(f"{bucket}/{each.text}", None)
        return self._xml(f"<DeleteResult {XMLNS}></DeleteResult>")

    def do_DELETE(self) -> None:
        key, _query, _body = self._asked()
        self.server.objects.pop(key, None)
        self._answer(204)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        key, query, _body = self._asked()
        if "list-type" in query:
            return self._list(key.partition("/")[0], query)
        data = self.server.objects.get(key)
        if data is None and key.rstrip("/") != BUCKET:
            return self._error(404, "NoSuchKey")
        data = data or b""
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = data[int(first) : int(last) + 1 if last else None]
            self.server.read_bytes[key] += len(part)
            return self._answer(206, part, Content_Range=f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.server.read_bytes[key] += len(data) if self.command == "GET" else 0
        return self._answer(200, data, Last_Modified="Sun, 22 Nov 2026 00:00:00 GMT")

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after, limit = query.get("continuation-token", ""), min(PAGE, int(query.get("max-keys", PAGE)))
        names = sorted(key.removeprefix(f"{bucket}/") for key in self.server.objects if key.startswith(f"{bucket}/"))
        found: dict[str, str] = {}
        for name in (name for name in names if name.startswith(prefix)):
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                common = prefix + rest.partition(delimiter)[0] + delimiter
                found[common] = f"<CommonPrefixes><Prefix>{escape(common)}</Prefix></CommonPrefixes>"
            else:
                size = len(self.server.objects[f"{bucket}/{name}"])
                inner = f"<Key>{escape(name)}</Key><Size>{size}</Size><LastModified>2026-11-22T00:00:00Z</LastModified>"
                found[name] = f"<Contents>{inner}</Contents>"
        rest_of = [name for name in found if name > after]
        more = len(rest_of) > limit
        token = f"<NextContinuationToken>{escape(rest_of[limit - 1])}</NextContinuationToken>" if more else ""
        listed = "".join(found[name] for name in rest_of[:limit])
        count = f"<KeyCount>{len(rest_of[:limit])}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
        self._xml(f"<ListBucketResult {XMLNS}><Name>{bucket}</Name>{count}{token}{listed}</ListBucketResult>")


def _unchunked(body: bytes) -> bytes:
    """Return the data of a body that is followed by a checksum."""
    found = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size.partition(b";")[0], 16)
        if not length:
            break
        found.append(body[:length])
        body = body[length + 2 :]
    return b"".join(found)


def environment(url: str) -> dict[str, str]:
    """Return the variables by which pyarrow and Hadoop reach a store."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
    }


@contextmanager
def moto() -> Iterator[str]:
    """Start moto, whose only bucket is BUCKET, and yield its URL. Skips where it cannot be installed."""
    try:
        packages = python_packages.folder("moto[server]>=5")
    except NotHere as reason:
        pytest.skip(str(reason))
    words = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", "0"]
    process, output = started(words, {**os.environ, "PYTHONPATH": str(packages)})
    try:
        url = output.find(lambda line: re.search(r"Running on (http://\S+)", line), PATIENCE_SECONDS)[1]
        urlopen(Request(f"{url}/{BUCKET}", method="PUT"), timeout=PATIENCE_SECONDS).close()  # noqa: S310  our own
        yield url
    finally:
        process.kill()
        process.wait()


def connector_jars() -> str:
    """Return Hadoop's connector for S3 and its dependencies, which Maven fetches once. Skips without them."""
    import pyspark

    manifest = Path(__file__).with_name("s3a") / "pom.xml"
    [client] = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    if f"<version>{client.stem.rpartition('-')[2]}</version>" not in manifest.read_text():
        pytest.skip(f"the connector is not that of {client.stem}")

    def fetch(target: Path) -> None:
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
        try:
            subprocess.run(["mvn", "-q", "-B", "-f", manifest, *goal], check=True, capture_output=True, timeout=600)
        except (OSError, subprocess.SubprocessError) as error:
            raise NotHere("Hadoop's connector for S3 cannot be had: `mvn` failed") from error

    try:
        found = kept(f"s3a-{hashlib.sha256(manifest.read_bytes()).hexdigest()[:12]}", fetch)
    except NotHere as reason:
        pytest.skip(str(reason))
    return ",".join(map(str, sorted(found.glob("*.jar"))))


@contextmanager
def running() -> Iterator[Store]:
    with Store() as store:
        thread = threading.Thread(target=store.serve_forever, args=(0.01,), name="object store", daemon=True)
        thread.start()
        try:
            yield store
        finally:
            store.shutdown()
            thread.join()
