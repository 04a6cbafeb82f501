"""Programs for Service Bus that run through a gateway, and where their outcome differs from a namespace's."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent

EXCEPTIONS = {
    "a missing entity is named at the host that the client opened": "A token is the gateway's own affair: it is taken "
    "for any entity, and the attach of the link is refused.",
    "missing": "As above: the client raises MessagingEntityNotFoundError instead of ServiceBusAuthenticationError.",
    "an entity that is not there (Go)": "As above: the client gives its code for it to an answer of $cbs alone.",
    "no claim": "The gateway has one key, which has Send and Listen on every entity. It knows no rule of an entity.",
    "expired token": "The token that a namespace takes for expired is the gateway's, which signs in again.",
    **dict.fromkeys(
        ("Kombu", "Celery"),
        "Kombu creates its queues by requests of administration to the address of its messages.",
    ),
}
"""Why the outcome is another one, by the name of a check, or the last parameter of a test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect that the tests of an exception fail: one that passes has no place among them."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        if parameters is not None and item.path.is_relative_to(HERE):
            reason = next((EXCEPTIONS[part] for part in parameters.id.split("-") if part in EXCEPTIONS), None)
            if reason is not None:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
