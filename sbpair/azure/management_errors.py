"""Foreign exceptions of the management side into those of `sbpair.errors`: the one place where that is done.

Statuses and SubCodes are the service's. What the service says goes into a message, what was sent to it never does.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from azure.core import exceptions as azure

from sbpair import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

_SUB_CODE = re.compile(r"SubCode=(\d{3,6})")
_DETAIL = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)
_NAMESPACE = re.compile(r"namespaces/[^/']+'")
_TRACKING = re.compile(r"\s*(?:TrackingId:|CorrelationId:|To know more visit).*", re.DOTALL)
LONGEST_DETAIL = 200
LONGEST_SECONDS = 8

CONFLICT_IN_PROGRESS = "40901"
NAMESPACE_IS_FULL = "40300"
THROTTLED = frozenset({"50004", "50009"})

SIGN_IN_HINT = "sign in (az login), or set a connection string: see sbpair provision --help"
_CLAIM_HINT = "use a key or an identity with the Manage claim (the role Azure Service Bus Data Owner)"
_ROLE_HINT = "give whoever is signed in a role on the namespace: Azure Service Bus Data Owner, or Contributor"
_REACH_HINT = "check the namespace's name, the network and the firewall; a retry may help"


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """What the service said: an HTTP status, its SubCode ("" without one) and a line for people.

    `retry_after_seconds` is how long it wants to be left alone; None where it did not say.
    """

    status: int
    sub_code: str
    detail: str
    retry_after_seconds: float | None = None

    @property
    def name_is_taken(self) -> bool:
        """A conflict, and not with another operation that is still under way.

        Resource Manager says both with 409 or 429, as it pleases.
        """
        if self.status == 429:
            return "already exists" in self.detail
        return self.status == 409 and self.sub_code != CONFLICT_IN_PROGRESS

    @property
    def wants_partitions(self) -> bool:
        """A Premium namespace that is partitioned as a whole takes nothing that does not ask to be so."""
        return self.status == 400 and "non-partitioned entities are not allowed" in self.detail.lower()

    @property
    def of_resource_manager(self) -> bool:
        """Its answers begin with a code, as the SDK shows them."""
        return self.detail.startswith("(")

    @property
    def is_about_the_place(self) -> bool:
        """Resource Manager has no such subscription, resource group or namespace."""
        if self.detail.startswith(("(ResourceNotFound)", "(ParentResourceNotFound)")):
            return _NAMESPACE.search(self.detail) is not None
        return self.detail.startswith(("(SubscriptionNotFound)", "(ResourceGroupNotFound)"))


@contextmanager
def translate_management_errors(what: str, namespace: str, *, sign_in: str = SIGN_IN_HINT) -> Iterator[None]:
    """Raise what goes wrong inside as an SbpairError. `what` completes "cannot …", for the message.

    `sign_in` is what to do where nobody is signed in.
    """
    try:
        yield
    except azure.AzureError as error:
        raise of_azure(error, what, namespace, sign_in) from error
    except TimeoutError as error:
        raise _timed_out(what, namespace) from error
    except OSError as error:
        raise errors.Unreachable(f"cannot {what}: {namespace}: {error.strerror or error}", hint=_REACH_HINT) from error


def of_azure(error: azure.AzureError, what: str, namespace: str, sign_in: str = SIGN_IN_HINT) -> errors.SbpairError:
    """The SbpairError that stands for one of azure-core's."""
    if isinstance(error, azure.ResourceNotFoundError) and error.response is None:
        return _missing(what, namespace)
    if isinstance(error, (azure.DecodeError, azure.DeserializationError)):
        return errors.Unreachable(
            f"cannot {what}: what answers as {namespace} is not a Service Bus", hint="check the address and the proxy"
        )
    if isinstance(error, azure.HttpResponseError) and error.status_code:
        return of_answer(answer_of(error), what, namespace)
    if isinstance(error, (azure.ServiceRequestTimeoutError, azure.ServiceResponseTimeoutError)):
        return _timed_out(what, namespace)
    if isinstance(error, azure.ClientAuthenticationError):
        return errors.NotAuthenticated(
            f"cannot {what}: no identity is signed in that {namespace} would accept",
            hint=sign_in,
        )
    if _is_tls(error.__cause__):
        return errors.Unreachable(
            f"cannot {what}: {namespace} could not be reached over TLS, or its certificate is not trusted",
            hint="give the certificates to trust as ca_file, or check whether the port speaks TLS at all",
        )
    return errors.Unreachable(f"cannot {what}: {namespace} cannot be reached", hint=_REACH_HINT)


def _is_tls(cause: BaseException | None) -> bool:
    # Not imported above: whoever only sends and receives can do without it.
    from aiohttp import ClientSSLError

    return isinstance(cause, ClientSSLError)


def answer_of(error: azure.HttpResponseError) -> ServiceResponse:
    """Status, SubCode and detail of a refusal, from the SDK's text or from the XML inside it."""
    text = str(error)
    found = _DETAIL.search(text)
    detail = _TRACKING.sub("", found.group(1) if found else text.partition("\n")[0]).strip()
    sub_code = _SUB_CODE.search(text)
    return ServiceResponse(
        error.status_code or 0,
        sub_code.group(1) if sub_code else "",
        " ".join(detail.split()),
        _retry_after(error),
    )


def of_answer(answer: ServiceResponse, what: str, namespace: str) -> errors.SbpairError:
    """The SbpairError that an HTTP answer of the service means."""
    error = _meant(answer, what, namespace)
    if isinstance(error, errors.Unavailable):
        error.retry_after_seconds = answer.retry_after_seconds
    return error


def _retry_after(error: azure.HttpResponseError) -> float | None:
    headers = getattr(error.response, "headers", None) or {}
    text = str(headers.get("Retry-After", ""))
    # The service gives seconds. A date, which HTTP allows too, would be of a clock that may not be this one.
    return float(text) if text.isascii() and text.isdigit() and len(text) < LONGEST_SECONDS else None


def _meant(answer: ServiceResponse, what: str, namespace: str) -> errors.SbpairError:
    if answer.status == 401:
        return _unauthorized(answer, what, namespace)
    if answer.status == 403 and answer.sub_code != NAMESPACE_IS_FULL:
        hint = _ROLE_HINT if answer.of_resource_manager else _CLAIM_HINT
        return errors.NotAuthorized(f"cannot {what}: {namespace} refuses it (403)", hint=hint)
    if answer.status in (404, 410):
        return _nowhere(what, namespace) if answer.is_about_the_place else _missing(what, namespace)
    if answer.sub_code == CONFLICT_IN_PROGRESS:
        return errors.Unavailable(
            f"cannot {what}: {namespace} is still busy with it ({answer.status})", hint="try again in a minute"
        )
    if answer.status == 429 or answer.sub_code in THROTTLED:
        return errors.Throttled(
            f"cannot {what}: {namespace} asks to slow down ({answer.status})", hint="try again in a minute"
        )
    if answer.status in (408, 504):
        return _timed_out(what, namespace)
    if answer.status >= 500:
        return errors.Unavailable(
            f"cannot {what}: {namespace} answered {answer.status}",
            hint="the service may be busy: try again in a minute",
        )
    refusal = errors.PartitionsWanted if answer.wants_partitions else errors.ServiceRefused
    return refusal(
        f"cannot {what}: {namespace} refused it ({answer.status}): {answer.detail[:LONGEST_DETAIL]}",
        condition=answer.sub_code or str(answer.status),
        hint="the service will not change its mind: correct what it says",
    )


def _unauthorized(answer: ServiceResponse, what: str, namespace: str) -> errors.SbpairError:
    # "claim is empty or token is invalid" is said of a bad token; a missing claim is one that is required.
    if "claim" in answer.detail.lower() and "required" in answer.detail.lower():
        return errors.NotAuthorized(f"cannot {what}: the key for {namespace} lacks a claim", hint=_CLAIM_HINT)
    return errors.NotAuthenticated(
        f"cannot {what}: {namespace} does not accept the key or token",
        hint="check the connection string, or sign in again: the key may be wrong or regenerated, the token expired",
    )


def _missing(what: str, namespace: str) -> errors.SbpairError:
    return errors.EntityMissing(
        f"cannot {what}: {namespace} has no such entity", hint="sbpair audit lists what is there"
    )


def _nowhere(what: str, namespace: str) -> errors.SbpairError:
    return errors.UsageError(
        f"cannot {what}: there is no namespace {namespace} in that subscription and resource group",
        hint="check --subscription and --resource-group: az servicebus namespace list shows where it is",
    )


def _timed_out(what: str, namespace: str) -> errors.SbpairError:
    return errors.TimedOut(f"cannot {what}: {namespace} did not answer in time", hint=_REACH_HINT)
