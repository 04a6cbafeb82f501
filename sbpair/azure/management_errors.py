"""Translation of the management side's exceptions into `sbpair.errors`.

Statuses and SubCodes are the service's. The service's text becomes part of a message, the request's never does.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair import errors
from sbpair.http_tunnel import refused_by_proxy
from sbpair.model.connect_errors import REACH_HINT, FirstAnswerTimeout, key_hint, refused, unreachable
from sbpair.model.pair import authority_of
from sbpair.operating_system.shortages import shortage_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from azure.core.exceptions import AzureError, HttpResponseError


_SUB_CODE = re.compile(r"SubCode=(\d{3,6})")
_DETAIL = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)
_NAMESPACE = re.compile(r"namespaces/[^/']+'")
_SYNC_PROXY_STATUS = re.compile(r"failed CONNECT via proxy status: (\d{3})")
_TRACKING = re.compile(r"\s*(?:TrackingId:|CorrelationId:|To know more visit).*", re.DOTALL)
MAX_DETAIL_CHARACTERS = 200
MAX_RETRY_AFTER_DIGITS = 8

CONFLICT_IN_PROGRESS = "40901"
NAMESPACE_IS_FULL = "40300"
THROTTLED = frozenset({"50004", "50009"})

SIGN_IN_HINT = "sign in (az login), or set a connection string: see sbpair provision --help"
_LACKS_MANAGE = re.compile(
    "claim.*required|authorization failed for specified action|unauthorized access for '", re.IGNORECASE
)
"""The service's texts for a claim that is missing. A bad token gives "claim is empty or token is invalid"."""

_CLAIM_HINT = "use a key or an identity with the Manage claim (the role Azure Service Bus Data Owner)"
_ROLE_HINT = "assign the identity a role on the namespace: Azure Service Bus Data Owner, or Contributor"


class NotHttp(Exception):
    """The peer's response is not HTTP/1.1, or exceeds the limits."""


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """A response of the service: an HTTP status, its SubCode ("" without one) and one line of text.

    `retry_after_seconds` is the requested pause, None without one.
    """

    status: int
    sub_code: str
    detail: str
    retry_after_seconds: float | None = None

    @property
    def name_is_taken(self) -> bool:
        """Whether the name exists; False for a conflict with an operation in progress.

        Resource Manager uses both 409 and 429 for either.
        """
        if self.status == 429:
            return "already exists" in self.detail
        return self.status == 409 and self.sub_code != CONFLICT_IN_PROGRESS

    @property
    def is_about_the_place(self) -> bool:
        """Whether Resource Manager has no such subscription, resource group or namespace."""
        if self.detail.startswith(("(ResourceNotFound)", "(ParentResourceNotFound)")):
            return _NAMESPACE.search(self.detail) is not None
        return self.detail.startswith(("(SubscriptionNotFound)", "(ResourceGroupNotFound)"))


@contextmanager
def translate_management_errors(
    what: str, namespace: str, address: str = "", *, sign_in: str = SIGN_IN_HINT
) -> Iterator[None]:
    """Raise an error of the block as an SbpairError. `what` completes "cannot …" in its message.

    `address` is where connections go. `sign_in` is the hint where no identity is signed in.
    """
    try:
        yield
    except errors.NotAuthenticated as error:
        error.hint = sign_in if error.hint == SIGN_IN_HINT else error.hint
        raise
    except errors.SbpairError:
        raise
    except FirstAnswerTimeout as error:
        raise unreachable(namespace, error.address, error.seconds, doing=f"cannot {what}") from error
    except TimeoutError as error:
        raise _timed_out(what, namespace) from error
    except NotHttp as error:
        raise not_a_service_bus(what, namespace) from error
    except OSError as error:
        raise unreachable(namespace, address or namespace, error, doing=f"cannot {what}") from error
    except Exception as error:
        if (lack := shortage_of(error, f"cannot {what}")) is not None:
            raise lack from error
        # Loaded only where the SDK may have raised it: it takes a fifth of the time of a short command.
        from azure.core.exceptions import AzureError

        if not isinstance(error, AzureError):
            raise
        raise of_azure(error, what, namespace) from error


@contextmanager
def refuse_unreadable_answers(what: str, namespace: str) -> Iterator[None]:
    """Raise Unreachable if the block cannot read an answer: Azure's SDK checks neither its shape nor its depth."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise not_a_service_bus(what, namespace) from error


@contextmanager
def translate_answers(what: str, namespace: str, sign_in: str = SIGN_IN_HINT) -> Iterator[None]:
    """Raise an error of Azure's SDK, and an answer that it cannot read, as an SbpairError."""
    with translate_management_errors(what, namespace, sign_in=sign_in), refuse_unreadable_answers(what, namespace):
        yield


def proxy_status(error: AzureError) -> int:
    """Return the HTTP status with which a proxy refused a connection of Azure's clients; else 0."""
    inner = error.inner_exception
    # Of aiohttp.
    if type(inner).__name__ == "ClientHttpProxyError":
        return int(getattr(inner, "status", 0))
    found = _SYNC_PROXY_STATUS.search(str(error))
    return int(found[1]) if found else 0


def of_azure(error: AzureError, what: str, namespace: str) -> errors.SbpairError:
    """Return the SbpairError for one of azure-core's."""
    from azure.core import exceptions as azure

    if isinstance(error, azure.ResourceNotFoundError) and error.response is None:
        return missing(what, namespace)
    if isinstance(error, (azure.DecodeError, azure.DeserializationError)):
        return not_a_service_bus(what, namespace)
    if status := proxy_status(error):
        return refused_by_proxy(f"cannot {what}: the proxy refuses connections to {namespace}", status)
    if isinstance(error, azure.HttpResponseError) and error.status_code:
        return of_answer(answer_of(error), what, namespace)
    if isinstance(error, (azure.ServiceRequestTimeoutError, azure.ServiceResponseTimeoutError)):
        return _timed_out(what, namespace)
    cause = error.__cause__ or error
    # Of aiohttp, if no connection was made.
    host, port = getattr(cause, "host", None), getattr(cause, "port", None)
    address = authority_of(host, port) if host else namespace
    return unreachable(namespace, address, cause, doing=f"cannot {what}")


def answer_of(error: HttpResponseError) -> ServiceResponse:
    """Parse a refusal as the SDK raises it, with the XML in its text."""
    return service_response(error.status_code or 0, str(error), getattr(error.response, "headers", None) or {})


def service_response(status: int, text: str, headers: Mapping[str, str]) -> ServiceResponse:
    """Parse the SubCode and the detail from the XML in `text`; without XML its first line is the detail."""
    found = _DETAIL.search(text)
    detail = _TRACKING.sub("", found.group(1) if found else text.partition("\n")[0]).strip()
    sub_code = _SUB_CODE.search(text)
    wait = str(headers.get("Retry-After") or headers.get("retry-after") or "")
    return ServiceResponse(status, sub_code.group(1) if sub_code else "", " ".join(detail.split()), _seconds(wait))


def of_answer(answer: ServiceResponse, what: str, namespace: str, key_is_wrong: str = "") -> errors.SbpairError:
    """Return the SbpairError for an HTTP response of the service. `key_is_wrong` is the hint for a refused key."""
    error = _translation(answer, what, namespace, key_is_wrong or key_hint(""))
    if isinstance(error, errors.Unavailable):
        error.retry_after_seconds = answer.retry_after_seconds
    return error


def _seconds(text: str) -> float | None:
    # The service sends seconds. A date, which HTTP also allows, depends on the namespace's clock.
    return float(text) if text.isascii() and text.isdigit() and len(text) < MAX_RETRY_AFTER_DIGITS else None


def _translation(answer: ServiceResponse, what: str, namespace: str, key_is_wrong: str) -> errors.SbpairError:
    if answer.status == 401:
        return _unauthorized(answer, what, namespace, key_is_wrong)
    if answer.status == 403 and answer.sub_code != NAMESPACE_IS_FULL:
        # Resource Manager's texts begin with a code.
        hint = _ROLE_HINT if answer.detail.startswith("(") else _CLAIM_HINT
        return errors.NotAuthorized(f"cannot {what}: {namespace} refuses it (403)", hint=hint)
    if answer.status in (404, 410):
        if not answer.is_about_the_place:
            return missing(what, namespace)
        return errors.UsageError(
            f"cannot {what}: no namespace {namespace} in that subscription and resource group",
            hint="check --subscription and --resource-group: az servicebus namespace list shows them",
        )
    if answer.sub_code == CONFLICT_IN_PROGRESS:
        return errors.Unavailable(
            f"cannot {what}: {namespace} is still busy with it ({answer.status})", hint="retry in a minute"
        )
    if answer.status == 429 or answer.sub_code in THROTTLED:
        return errors.Throttled(
            f"cannot {what}: {namespace} asks to slow down ({answer.status})", hint="retry in a minute"
        )
    if answer.status in (408, 504):
        return _timed_out(what, namespace)
    if answer.status >= 500:
        return errors.Unavailable(
            f"cannot {what}: {namespace} answered {answer.status}", hint="the service may be busy: retry in a minute"
        )
    # Of a Premium namespace that is partitioned as a whole.
    wants_partitions = answer.status == 400 and "non-partitioned entities are not allowed" in answer.detail.lower()
    refusal = errors.PartitionsWanted if wants_partitions else errors.ServiceRefused
    return refusal(
        f"cannot {what}: {namespace} refused it ({answer.status}): {answer.detail[:MAX_DETAIL_CHARACTERS]}",
        condition=answer.sub_code or str(answer.status),
        hint="correct the request: a retry would fail, too",
    )


def _unauthorized(answer: ServiceResponse, what: str, namespace: str, key_is_wrong: str) -> errors.SbpairError:
    if _LACKS_MANAGE.search(answer.detail):
        return lacks_manage(what, namespace)
    error = refused(f"cannot {what}: {namespace} does not accept the key or token", answer.detail, key_is_wrong)
    if not isinstance(error, errors.NotAuthenticated):
        error.message = f"cannot {what}: {namespace} refuses it: {answer.detail[:MAX_DETAIL_CHARACTERS]}"
    return error


def lacks_manage(what: str, namespace: str) -> errors.NotAuthorized:
    return errors.NotAuthorized(f"cannot {what}: the key for {namespace} lacks a claim", hint=_CLAIM_HINT)


def missing(what: str, namespace: str) -> errors.SbpairError:
    return errors.EntityMissing(
        f"cannot {what}: {namespace} has no such entity", hint="list the queues with sbpair audit"
    )


def _timed_out(what: str, namespace: str) -> errors.SbpairError:
    return errors.TimedOut(f"cannot {what}: {namespace} did not answer in time", hint=REACH_HINT)


def not_a_service_bus(what: str, namespace: str) -> errors.Unreachable:
    return errors.Unreachable(
        f"cannot {what}: the server at {namespace} is not a Service Bus", hint="check the address and the proxy"
    )
