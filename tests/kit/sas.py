"""Shared access signatures for the emulator, as its clients create them."""

import base64
from urllib.parse import quote

from sbpair.amqp_server.shared_access import SCHEME, AuthorizationRule, signature


def sign(rule: AuthorizationRule, resource: str, expiry_s: int) -> str:
    """Return a token for `resource`."""
    signed = quote(resource, safe="")
    sig = quote(base64.b64encode(signature(rule.primary_key, signed, str(expiry_s))).decode(), safe="")
    return f"{SCHEME} sr={signed}&sig={sig}&se={expiry_s}&skn={quote(rule.key_name, safe='')}"
