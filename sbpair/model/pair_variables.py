"""The environment variables that describe a pair to a process elsewhere: their values, and the names of secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.model.pair import Identity, Transport, authority_of

if TYPE_CHECKING:
    from sbpair.model.pair import Pair


def pair_variables(pair: Pair) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that are no secret, and the names of those that are."""
    found: dict[str, str] = {}
    secrets = []
    for side, end in (("SBPAIR_PRIMARY", pair.primary), ("SBPAIR_SECONDARY", pair.secondary)):
        address = authority_of(end.host, end.port)
        found[f"{side}_NAME"] = end.name
        if isinstance(end.credential, Identity):
            found[f"{side}_NAMESPACE"] = end.authority
        else:
            secrets.append(f"{side}_CONNECTION_STRING")
        if address not in (end.authority, f"{end.authority}:{end.port}"):
            found[f"{side}_ENDPOINT"] = address
        if end.transport is not Transport.TCP:
            found[f"{side}_TRANSPORT"] = end.transport.value
        if end.ca_file is not None:
            found[f"{side}_CA_FILE"] = end.ca_file
        if end.proxy is not None and end.proxy.user is None:
            found[f"{side}_PROXY"] = end.proxy.url
        elif end.proxy is not None:
            secrets.append(f"{side}_PROXY")
    return found, tuple(secrets)
