"""The messages of a preview that a replay would not send: accepted before, duplicates, or not selected. Pure.

Invariant: the counts equal those of a run's plan. Only the choice of the first of two duplicates differs: it follows
the order of peeking here, and the order of time in a run.
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

MAX_REMEMBERED = 10_000_000  # upper bound on message ids kept, at about 70 bytes each


def normalize_destinations(destinations: Iterable[str]) -> tuple[str, ...]:
    """Return destination paths without duplicates and outer slashes. Raises NameInvalid."""
    paths = dict.fromkeys(each.strip("/") for each in destinations)
    for path in paths:
        check_path(path, shorten="name a queue or a topic of the primary with --destination")
    return tuple(paths)


class PlanPreview:
    """The plan of one preview. With `dedup`, a duplicate by message id and destination is not sent.

    `accepted` are keys in the syphon's journal. `ids_overflowed` is set beyond MAX_REMEMBERED message ids.
    """

    def __init__(
        self, namespace: str, *, dedup: bool, destinations: Collection[str] = (), accepted: Collection[Key] = ()
    ) -> None:
        self._namespace, self._dedup = namespace, dedup
        self._destinations = {name.lower() for name in destinations}
        self._accepted = frozenset(accepted)
        self._ids: set[bytes] = set()
        self.ids_overflowed = False

    def __call__(self, facts: Facts, decision: Route) -> tuple[str | None, bool]:
        """Return (outcome of a message that is not sent, or None; whether it is a duplicate)."""
        if self._accepted and message_key(self._namespace, facts) in self._accepted:
            return ALREADY_SENT, False
        destination = decision.destination if isinstance(decision, Send) else (facts.path or "").strip("/")
        duplicate = isinstance(decision, Send) and self._is_duplicate(destination, facts.message_id)
        if self._destinations and destination.lower() not in self._destinations:
            return UNSENT, duplicate
        return (DEDUPLICATED if duplicate and self._dedup else None), duplicate

    def _is_duplicate(self, destination: str, message_id: str | None) -> bool:
        if not message_id:
            return False
        name = f"{destination.lower()}\0{message_id}".encode(errors="surrogatepass")
        digest = hashlib.blake2b(name, digest_size=16).digest()
        if digest in self._ids:
            return True
        if len(self._ids) < MAX_REMEMBERED:
            self._ids.add(digest)
        else:
            self.ids_overflowed = True
        return False
