"""The rights of one connection: the tokens put to `$cbs`, or the key of its sign-in. Paths are in lower case."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sbpair.emulator.access.sas import BEARER, SCHEME, AccessRight, Grant, covers, scope_of
from sbpair.emulator.clock import NEVER
from sbpair.emulator.frontends.amqp.request_links import AmqpRequest, Reply, text_at
from sbpair.emulator.service_errors import ArgumentInvalid, ServiceError, Unauthorized

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace

NODE: Final = "$cbs"
PUT_TOKEN: Final = "put-token"  # noqa: S105  # the name of an operation


class Claims:
    """The grants of one connection. `on_expired` is called when one of them has expired."""

    def __init__(self, namespace: Namespace, on_expired: Callable[[], None]) -> None:
        self.due_ms = NEVER
        self._namespace = namespace
        self._on_expired = on_expired
        self._grants: dict[str, Grant] = {}

    def check_key(self, name: str, key: str) -> bool:
        """Accept SASL PLAIN: a key name of the namespace and its key, which do not expire."""
        rule = next((rule for rule in self._namespace.keys if rule.key_name == name), None)
        if rule is None or key not in (rule.primary_key, rule.secondary_key):
            return False
        self._grants[""] = Grant(name, rule.rights, "")
        return True

    def put_token(self, request: AmqpRequest) -> Reply:
        """Answer a request to `$cbs`."""
        try:
            if request.operation != PUT_TOKEN:
                raise ArgumentInvalid(f"'{request.operation[:100]}' is not an operation of $cbs.")
            self._put(text_at(request.properties, "name"), request.body)
        except ServiceError as error:
            # Without the condition: with one, the SDK for Python drops status and description.
            return Reply(error.status, error.message)
        return Reply(202, "Accepted")

    def _put(self, name: str | None, token: object) -> None:
        if name is None or not isinstance(token, str):
            raise ArgumentInvalid("A token is put with the 'name' of its resource, and its text as the body's value.")
        path = scope_of(name)
        # By its value, not the declared type: the SDK for Python declares every token "jwt".
        grant = self._namespace.authenticate(token if token.startswith(SCHEME) else f"{BEARER} {token}", path)
        if path:
            self._namespace.resolve(name)
        self._grants[path] = grant
        self._schedule(grant.expires_at_ms)

    def require(self, rights: tuple[AccessRight, ...], path: str) -> None:
        """Raise Unauthenticated or Unauthorized unless one of `rights` is granted on `path`."""
        failure: ServiceError = Unauthorized(
            f"Unauthorized access. '{rights[0]}' claim(s) are required to perform this operation. "
            f"Resource: '{self._namespace.endpoint}/{path}'."
        )
        now = self._namespace.clock.now_ms()
        for granted, grant in self._grants.items():
            if not covers(granted, path):
                continue
            for right in rights:
                try:
                    grant.require(right, path, now)
                except Unauthorized:
                    # The text above names the resource.
                    continue
                except ServiceError as error:
                    failure = error
                else:
                    return
        raise failure

    # Timed

    def _schedule(self, at_ms: int) -> None:
        if at_ms < self.due_ms:
            self.due_ms = at_ms
            self._namespace.timers.schedule(at_ms, self)

    def advance(self, now_ms: int) -> None:
        self.due_ms = NEVER
        self._on_expired()
        self._grants = {path: grant for path, grant in self._grants.items() if grant.expires_at_ms > now_ms}
        self._schedule(min((grant.expires_at_ms for grant in self._grants.values()), default=NEVER))

    def clear(self) -> None:
        self._grants.clear()
        self.due_ms = NEVER
