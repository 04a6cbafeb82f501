"""Secrets that are fetched where a program runs: a variable, or a file, names one in a secret manager.

So do the jobs of Dataproc and Fabric. Other platforms put the secret itself into the variable.
Invariant: a fetched value stays in the memory of this process, and only the two hosts here get a token.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib import request

from sbpair.azure.credentials import identity_token
from sbpair.errors import EntityMissing, MachineLacks, NotAuthorized, Unavailable

GOOGLE = re.compile(r"gsm://(?:projects/(?P<project>[a-z0-9:.-]{4,80})/secrets/)?(?P<secret>[A-Za-z0-9_-]{1,255})")
KEY_VAULT = re.compile(
    r"https://[A-Za-z0-9-]{3,24}\.vault\.(azure\.net|azure\.cn|usgovcloudapi\.net)/secrets/[A-Za-z0-9-]{1,127}"
)
PRINCIPAL = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")
"""The variables of a service principal, which pyarrow and azure-identity read."""

SECONDS = 5.0


def named_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets that variables of sbpair and of a service principal name, by variable; no other variable.

    Raises what `read_secret` raises.
    """
    own = {name: text for name, text in environ.items() if name.startswith("SBPAIR_") or name in PRINCIPAL}
    return {name: read_secret(text) for name, text in own.items() if _is_reference(text)}


def read_secret(text: str, *, again: bool = False) -> str:
    """Return the secret that a text names, else the text. Raises AccessError, EntityMissing, MachineLacks, Unavailable.

    `gsm://NAME` is a secret of the job's own Google project, `gsm://projects/PROJECT/secrets/NAME` one of another.
    `https://VAULT.vault.azure.net/secrets/NAME` is one of Azure Key Vault. The latest version is read, once or `again`.
    """
    if again:
        _fetched.cache_clear()
    return _fetched(text) if _is_reference(text) else text


def _is_reference(text: str) -> bool:
    return bool(GOOGLE.fullmatch(text) or KEY_VAULT.fullmatch(text))


@cache
def _fetched(reference: str) -> str:
    try:
        if found := GOOGLE.fullmatch(reference):
            return _from_google(reference, found["project"], found["secret"])
        return _from_key_vault(reference)
    except (ValueError, KeyError, TypeError):
        raise Unavailable(
            f"{reference} cannot be read: the answer has no secret", hint="check that no proxy answers instead"
        ) from None


def _from_google(reference: str, project: str | None, secret: str) -> str:
    token = json.loads(_metadata("instance/service-accounts/default/token"))["access_token"]
    project = project or _metadata("project/project-id").decode()
    url = f"https://secretmanager.googleapis.com/v1/projects/{project}/secrets/{secret}/versions/latest:access"
    grant = "give the service account the role roles/secretmanager.secretAccessor on it"
    data = _secret(reference, url, token, grant)["payload"]["data"]
    return base64.b64decode(data).decode().strip()


def _from_key_vault(reference: str) -> str:
    vault, _, _ = reference.partition("/secrets/")
    token = identity_token(f"https://vault.{vault.partition('.vault.')[2]}/.default", vault.removeprefix("https://"))
    grant = "give the identity that runs this program the role Key Vault Secrets User"
    return str(_secret(reference, f"{reference}?api-version=7.4", token, grant)["value"]).strip()


def _metadata(path: str) -> bytes:
    host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    url = f"http://{host}/computeMetadata/v1/{path}"
    with suppress(OSError, HTTPException):
        status, content = _get(request.ProxyHandler({}), url, {"Metadata-Flavor": "Google"})
        if status == HTTPStatus.OK:
            return content
    raise MachineLacks(
        f"no service account of Google: {host} does not answer",
        hint="run it in Google Cloud with a service account, or put the secret itself into the variable",
    )


def _secret(reference: str, url: str, token: str, grant: str) -> dict[str, Any]:
    try:
        status, content = _get(request.ProxyHandler(), url, {"Authorization": f"Bearer {token}"})
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise Unavailable(f"{reference} cannot be read: {reason}", hint="check the network, and retry") from None
    if status == HTTPStatus.OK:
        return dict(json.loads(content))
    if status == HTTPStatus.NOT_FOUND:
        raise EntityMissing(f"there is no secret {reference}", hint="store it, or correct its name")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise NotAuthorized(f"{reference} may not be read (status {status})", hint=grant)
    raise Unavailable(f"{reference} cannot be read: status {status}", hint="retry in a minute")


def _get(proxies: request.ProxyHandler, url: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Return status and content. Follows no redirect, which would send the token to another host."""
    opener = request.OpenerDirector()
    for handler in (proxies, request.HTTPHandler(), request.HTTPSHandler()):
        opener.add_handler(handler)
    with opener.open(request.Request(url, headers=dict(headers)), timeout=SECONDS) as answer:  # noqa: S310
        return answer.status, answer.read()
