"""What one connection may do: the tokens that were put to `$cbs`, or the key that it signed in with.

A token is for an entity and runs out; whoever holds links is told when that happens. Paths are in lower case here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbpair.emulator.access.sas import BEARER, SCHEME, AccessRight, Grant, covers, scope_of
from sbpair.emulator.clock import NEVER
from sbpair.emulator.frontends.amqp.request_messages import AmqpRequest, Reply, text_at
from sbpair.emulator.service_errors import ArgumentInvalid, ServiceError, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbpair.emulator.entities.namespace import Namespace

NODE: Final = "$cbs"
PUT_TOKEN: Final = "put-token"  # noqa: S105  # the name of an operation


class Claims:
    """The grants of one connection. `on_expired` is called when one of them has run out."""

    def __init__(self, namespace: Namespace, on_expired: Callable[[], None]) -> None:
        self.due_ms = NEVER
        self._namespace = namespace
        self._on_expired = on_expired
        self._grants: dict[str, Grant] = {}

    def check_key(self, name: str, key: str) -> bool:
        """SASL PLAIN: a key of the namespace and its name stand for a token that does not run out."""
        rule = next((rule for rule in self._namespace.keys if rule.key_name == name), None)
        if rule is None or key not in (rule.primary_key, rule.secondary_key):
            return False
        self._grants[""] = Grant(name, rule.rights, "")
        return True

    def put_token(self, request: AmqpRequest) -> Reply:
        """Answers a request to `$cbs`."""
        try:
            if request.operation != PUT_TOKEN:
                raise ArgumentInvalid(f"'{request.operation[:100]}' is no operation of $cbs.")
            self._put(text_at(request.properties, "name"), request.body)
        except ServiceError as refusal:
            # Without the condition: with one, the SDK for Python forgets status and description.
            return Reply(refusal.status, refusal.message)
        return Reply(202, "Accepted")

    def _put(self, name: str | None, token: object) -> None:
        if name is None or not isinstance(token, str):
            raise ArgumentInvalid("A token is put with the 'name' of its resource, and its text as the body's value.")
        path = scope_of(name)
        grant = self._verified(token, path)
        if path:
            self._namespace.resolve(path)
        self._grants[path] = grant
        self._due_by(grant.expires_at_ms)

    def _verified(self, token: str, path: str) -> Grant:
        # By the value, not by the type that was claimed: the SDK for Python says "jwt" of every token.
        return self._namespace.authenticate(token if token.startswith(SCHEME) else f"{BEARER} {token}", path)

    def require(self, claims: tuple[AccessRight, ...], path: str) -> None:
        """Refuses, unless one of `claims` is granted on `path`."""
        refusal: ServiceError = Unauthorized(
            f"Unauthorized access. '{claims[0]}' claim(s) are required to perform this operation. Resource: '{path}'."
        )
        now = self._namespace.clock.now_ms()
        for granted, grant in self._grants.items():
            if not covers(granted, path):
                continue
            for claim in claims:
                try:
                    grant.require(claim, path, now)
                except ServiceError as error:
                    refusal = error
                else:
                    return
        raise refusal

    # Timed

    def _due_by(self, at_ms: int) -> None:
        if at_ms < self.due_ms:
            self.due_ms = at_ms
            self._namespace.timers.schedule(at_ms, self)

    def advance(self, now_ms: int) -> None:
        self.due_ms = NEVER
        self._on_expired()
        self._grants = {path: grant for path, grant in self._grants.items() if grant.expires_at_ms > now_ms}
        self._due_by(min((grant.expires_at_ms for grant in self._grants.values()), default=NEVER))

    def forget(self) -> None:
        self._grants.clear()
        self.due_ms = NEVER
