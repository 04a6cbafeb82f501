"""The grants of one connection: of the key that it signed in with, and of the tokens that it has put."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sbpair.amqp_server.refusals import ArgumentInvalid, ServiceError, Unauthorized
from sbpair.amqp_server.shared_access import (
    NO_EXPIRY,
    AccessRight,
    AuthorizationRule,
    Grant,
    covers,
    expired_token,
    scope_of,
)


class Claims:
    """The grants of one connection. `on_lost` is called when rights are gone: a token expired or was replaced.

    `endpoint` is the namespace as the client addresses it: errors name entities there. A server's subclass has its
    keys, its tokens and its clock.
    """

    def __init__(self, endpoint: str, on_lost: Callable[[], None]) -> None:
        self.endpoint = endpoint
        self._on_lost = on_lost
        self._grants: dict[str, Grant] = {}

    # Of the server

    def keys(self) -> Iterable[AuthorizationRule]:
        """Return the rules whose keys a client may sign in with."""
        raise NotImplementedError

    def authenticate(self, token: str, name: str) -> Grant:
        """Return the rights of a token for the resource `name`. Raises ServiceError."""
        raise NotImplementedError

    def now_ms(self) -> int:
        """Return the time by which tokens expire."""
        raise NotImplementedError

    def expire_at(self, at_ms: int) -> None:
        """Call `expire` at this time instead of an earlier one; NO_EXPIRY for not at all."""
        raise NotImplementedError

    def owner_of(self, path: str) -> str:  # noqa: ARG002  # a server whose entities have rules returns theirs
        """Return the path of the entity whose rules may sign for `path`, too; "" for none."""
        return ""

    # Of a client

    def check_key(self, name: str, key: str) -> bool:
        """Accept SASL PLAIN: the name of a key and the key, which do not expire."""
        rule = next((rule for rule in self.keys() if rule.key_name == name), None)
        if rule is None or not rule.has_key(key):
            return False
        self._grants[""] = Grant(rule.rights, "")
        return True

    def put(self, name: str | None, token: object) -> None:
        """Add the grant of a token for the resource `name`. Raises ArgumentInvalid, and as `authenticate` does."""
        if name is None or not isinstance(token, str):
            raise ArgumentInvalid("A token is put with the 'name' of its resource, and its text as the body's value.")
        path = scope_of(name)
        grant = self.authenticate(token, name)
        before, self._grants[path] = self._grants.get(path, grant), grant
        self._await_expiry()
        if not (before.rights <= grant.rights and grant.owner in ("", before.owner) and before.roles == grant.roles):
            self._on_lost()

    def require(self, rights: tuple[AccessRight, ...], path: str) -> None:
        """Raise Unauthenticated or Unauthorized unless one of `rights` is granted on `path`."""
        now = self.now_ms()
        owners = ("", self.owner_of(path))
        covering = [grant for name, grant in self._grants.items() if covers(name, path) and grant.owner in owners]
        expired = [grant for grant in covering if now >= grant.expires_at_ms]
        if any(not grant.rights_on(path).isdisjoint(rights) for grant in covering if grant not in expired):
            return
        if expired:
            raise expired_token(expired[-1].expires_at_ms)
        raise Unauthorized(
            f"Unauthorized access. '{rights[0]}' claim(s) are required to perform this operation. "
            f"Resource: '{self.endpoint}/{path}'."
        )

    def allow(self, rights: tuple[AccessRight, ...], path: str) -> bool:
        """Return whether one of `rights` is granted on `path`."""
        try:
            self.require(rights, path)
        except ServiceError:
            return False
        return True

    def _await_expiry(self) -> None:
        self.expire_at(min((grant.expires_at_ms for grant in self._grants.values()), default=NO_EXPIRY))

    def expire(self) -> None:
        """Forget the grants that have expired. It may be too early for any."""
        now_ms = self.now_ms()
        self._on_lost()
        self._grants = {path: grant for path, grant in self._grants.items() if grant.expires_at_ms > now_ms}
        self._await_expiry()

    def clear(self) -> None:
        """Forget all grants: the connection ends."""
        self._grants.clear()
