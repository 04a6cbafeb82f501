"""Removal of a proxy's credentials from the records of Azure's loggers.

The SDK logs the exceptions of aiohttp in full, with the headers of the request to the proxy.
"""

from __future__ import annotations

import logging
import re

_CREDENTIALS = re.compile(r"(\bBasic )(?!realm)[\w+/=-]+|(\bBasicAuth\().*, encoding='[^']*'(?=\))", re.DOTALL)


class _Redaction(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "Basic" in text:
            record.msg, record.args = _CREDENTIALS.sub(lambda found: f"{found[1] or found[2]}***", text), ()
        return True


_redaction = _Redaction()


def redact_proxy_credentials() -> None:
    """Add the redaction to each logger of Azure's packages. Records do not pass the filters of parent loggers."""
    for name in list(logging.Logger.manager.loggerDict):
        if name.startswith("azure."):
            logging.getLogger(name).addFilter(_redaction)
