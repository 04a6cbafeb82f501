"""References to secrets: fetched where a job runs, from the secret managers of Google and Azure."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest

from sbpair import errors
from sbpair.azure import fetched_secrets
from sbpair.azure.fetched_secrets import named_secrets, read_secret
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.replay.run_description import NamespaceAccess
from tests.kit.proxy import closed_port
from tests.kit.secret_managers import PROJECT, TOKEN, SecretManagers, secret_managers

STRING = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"
VAULT = "https://orders-kv.vault.azure.net/secrets"
NAME = "SBPAIR_PRIMARY_CONNECTION_STRING"


@asynccontextmanager
async def reachable() -> AsyncIterator[SecretManagers]:
    fetched_secrets._fetched.cache_clear()
    async with secret_managers({NAME: STRING, "primary": STRING}) as found:
        with patch.dict(os.environ, found.environment):
            yield found


async def read(reference: str) -> str:
    return await asyncio.to_thread(read_secret, reference)


@pytest.mark.parametrize(
    ("reference", "path"),
    [
        (f"gsm://{NAME}", f"/v1/projects/{PROJECT}/secrets/{NAME}/versions/latest:access"),
        ("gsm://projects/other-project/secrets/primary", "/v1/projects/other-project/secrets/primary/versions/latest"),
        (f"{VAULT}/primary", "/secrets/primary?api-version=7.4"),
    ],
)
async def test_a_secret_is_read_once_and_without_its_line_end(reference: str, path: str) -> None:
    async with reachable() as managers:
        assert [await read(reference), await read(reference)] == [STRING, STRING]
    [asked] = managers.requests
    assert asked.startswith(path)


@pytest.mark.parametrize(
    "text", ["", STRING, "gsm://", "gsm://a/b", "gsm://projects/p/secrets/n/versions/1", f"{VAULT}/", f"{VAULT}/a/b/c"]
)
def test_a_text_that_names_no_secret_is_itself(text: str) -> None:
    assert read_secret(text) == text


@pytest.mark.parametrize("host", ["kv.vault.azure.net.evil.example", "evil.example", "a@kv.vault.azure.net"])
def test_no_other_host_gets_a_token(host: str) -> None:
    assert read_secret(f"https://{host}/secrets/primary") == f"https://{host}/secrets/primary"


async def test_only_variables_of_sbpair_and_of_a_principal_are_replaced() -> None:
    environ = {
        NAME: f"gsm://{NAME}",
        "ELSEWHERE": f"gsm://{NAME}",
        "SBPAIR_PRIMARY_NAME": "contoso",
        "AZURE_CLIENT_ID": "gsm://primary",
    }
    async with reachable() as managers:
        assert await asyncio.to_thread(named_secrets, environ) == {NAME: STRING, "AZURE_CLIENT_ID": STRING}
    assert len(managers.requests) == 2


async def test_a_worker_reads_the_secret_that_its_variable_names() -> None:
    endpoint = replace(endpoint_from_connection_string(STRING), key_source=NAME)
    access = NamespaceAccess.from_endpoint(endpoint)
    async with reachable() as managers:
        found = await asyncio.to_thread(access.endpoint, {NAME: f"gsm://{NAME}"})
    assert found.credential == endpoint.credential
    assert managers.requests
    assert "c2VjcmV0" not in repr(access)


@pytest.mark.parametrize("reference", ["gsm://primary", f"{VAULT}/primary"])
@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (403, errors.NotAuthorized, r"may not be read \(status 403\)"),
        (404, errors.EntityMissing, "there is no secret"),
        (307, errors.Unavailable, "cannot be read: status 307"),
        (200, errors.Unavailable, "cannot be read: the answer has no secret"),
        (503, errors.Unavailable, "cannot be read: status 503"),
    ],
)
async def test_a_refused_secret_is_an_error_without_content(
    reference: str, status: int, error: type[errors.SbpairError], reason: str
) -> None:
    async with reachable() as managers:
        managers.status = status
        with pytest.raises(error, match=reason) as refused:
            await read(reference)
    told = f"{refused.value.message} {refused.value.hint}"
    assert (TOKEN in told, "nobody-may-see" in told, bool(refused.value.hint)) == (False, False, True)


async def test_a_machine_without_service_account_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_port() as port:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{port}")
        with pytest.raises(errors.MachineLacks, match="no service account of Google"):
            await read("gsm://missing")
