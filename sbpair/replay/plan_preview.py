"""What a replay would not send of what is looked at: known to be there, repeated, or not chosen. Pure.

The law: it says what the plan of a run would say, message by message, without having all of them. Which one of two that
repeat each other comes first is the order of looking here, and that of time in a run: the counts are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from sbpair.backlog import check_path
from sbpair.model.message_key import message_key
from sbpair.move.message.route import Send

if TYPE_CHECKING:
    from sbpair.model.message_key import Key
    from sbpair.move.message.route import Facts, Route

ALREADY_SENT, DEDUPLICATED, UNSENT = "already_sent", "deduplicated", "unsent"

MAX_REMEMBERED = 10_000_000
"""Message ids that are kept, in some 70 bytes each."""


def named(destinations: Iterable[str]) -> tuple[str, ...]:
    """Destinations as they are compared with those of messages. Raises NameInvalid for what no entity can be."""
    paths = dict.fromkeys(each.strip("/") for each in destinations)
    for path in paths:
        check_path(path, shorten="name a queue or a topic of the primary with --destination")
    return tuple(paths)


class PlanPreview:
    """For one look at a backlog. `once` is whether what repeats another's message id and destination is not sent.

    `accepted` are the keys of what the syphon's journal knows the primary to have. `forgetful` is whether there were
    more message ids than are remembered.
    """

    def __init__(
        self, namespace: str, *, once: bool, destinations: Collection[str] = (), accepted: Collection[Key] = ()
    ) -> None:
        self._namespace = namespace
        self._once = once
        self._chosen = {name.lower() for name in destinations}
        self._accepted = frozenset(accepted)
        self._ids: set[bytes] = set()
        self.forgetful = False

    def __call__(self, facts: Facts, decision: Route) -> tuple[str | None, bool]:
        """(what becomes of a message that is not sent, or None; whether it repeats another one)."""
        if self._accepted and message_key(self._namespace, facts) in self._accepted:
            return ALREADY_SENT, False
        destination = decision.destination if isinstance(decision, Send) else (facts.path or "").strip("/")
        again = isinstance(decision, Send) and self._is_known(destination, facts.message_id)
        if self._chosen and destination.lower() not in self._chosen:
            return UNSENT, again
        return (DEDUPLICATED if again and self._once else None), again

    def _is_known(self, destination: str, message_id: str | None) -> bool:
        if not message_id:
            return False
        name = f"{destination.lower()}\0{message_id}".encode(errors="surrogatepass")
        digest = hashlib.blake2b(name, digest_size=16).digest()
        if digest in self._ids:
            return True
        if len(self._ids) < MAX_REMEMBERED:
            self._ids.add(digest)
        else:
            self.forgetful = True
        return False
