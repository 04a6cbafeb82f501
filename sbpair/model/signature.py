"""Shared access signatures, as Service Bus accepts them for AMQP and for HTTP. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

if TYPE_CHECKING:
    from sbpair.model.pair import SasKey

SAS_SECONDS = 3_600
"""Life of a signature."""


def sign(audience: str, key: SasKey, expires_at: int) -> str:
    """Return a SharedAccessSignature: HMAC-SHA256 over the encoded audience and the expiry."""
    resource = quote_plus(audience)
    digest = hmac.digest(key.key.encode(), f"{resource}\n{expires_at}".encode(), hashlib.sha256)
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_at}&skn={quote_plus(key.name)}"
