"""Google's metadata server and Secret Manager, an identity endpoint of Azure and a Key Vault, all on loopback.

The secret managers have TLS and their real names: clients reach them through a proxy, and trust the CA for the test.
"""

import base64
import json
import re
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sbpair.amqp_server.tls import tls_for
from tests.kit.proxy import running_proxy

HOSTS = ("secretmanager.googleapis.com", "orders-kv.vault.azure.net")
PROJECT, TOKEN = "orders-project", "token-nobody-may-see"


@dataclass
class SecretManagers:
    """`secrets` are those that exist, and `status` replaces answers that have one.

    `environment` leads a process here. `requests` are the paths that had a token.
    """

    secrets: dict[str, str]
    status: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def answer(self, path: str, headers: Any) -> tuple[int, dict[str, Any] | str]:
        if path.startswith("/computeMetadata/v1/"):
            if headers["Metadata-Flavor"] != "Google":
                return 403, {}
            return 200, PROJECT if path.endswith("/project-id") else {"access_token": TOKEN, "expires_in": 3599}
        if path.startswith("/identity"):
            [audience] = parse_qs(urlsplit(path).query)["resource"]
            assert (audience, headers["X-IDENTITY-HEADER"]) == ("https://vault.azure.net", "here")
            return 200, {"access_token": TOKEN, "expires_on": "4102444800", "resource": audience}
        if headers["Authorization"] != f"Bearer {TOKEN}":
            return 401, {}
        self.requests.append(path)
        name = re.split("[/?]", path.partition("/secrets/")[2])[0]
        if self.status:
            return self.status, {"error": {"message": "nobody-may-see"}}
        if name not in self.secrets:
            return 404, {}
        value = f"{self.secrets[name]}\n"  # as of a file
        encoded = base64.b64encode(value.encode()).decode()
        return 200, {"value": value} if "api-version" in path else {"payload": {"data": encoded}}


@asynccontextmanager
async def secret_managers(secrets: dict[str, str]) -> AsyncIterator[SecretManagers]:
    found = SecretManagers(secrets)
    with ExitStack() as stack:
        tls = stack.enter_context(tls_for("key vault", HOSTS))
        plain = stack.enter_context(_served(found))
        encrypted = stack.enter_context(_served(found, tls.context))
        async with running_proxy() as proxy:
            proxy.routes |= {f"{host}:443": encrypted for host in HOSTS}
            found.environment |= {
                "GCE_METADATA_HOST": f"127.0.0.1:{plain}",
                "HTTPS_PROXY": proxy.url,
                "SSL_CERT_FILE": str(tls.ca_file),
                "IDENTITY_ENDPOINT": f"http://127.0.0.1:{plain}/identity",
                "IDENTITY_HEADER": "here",
            }
            yield found


@contextmanager
def _served(found: SecretManagers, context: ssl.SSLContext | None = None) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = found.answer(self.path, self.headers)
            data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            if status in (301, 307):
                self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="secret managers")
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
