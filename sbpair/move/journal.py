"""What the primary has accepted and the backlog does not know yet.

Only a message whose five-part key is here is completed without being sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.move.route import Key

REMEMBERED_MOST = 100_000
"""Messages that another mover has taken since never come back here: beyond this many, the oldest are forgotten."""


class Journal:
    """Remembers for as long as the process lives.

    It holds only messages that may be delivered again: those that were accepted or given back, and never confirmed as
    completed. So its size does not depend on the backlog's.
    """

    def __init__(self, most: int = REMEMBERED_MOST) -> None:
        self._most = most
        self._accepted: dict[Key, None] = {}
        self._returned: dict[Key, None] = {}

    def seen(self, key: Key) -> bool:
        """Whether this run has had the message before."""
        return key in self._accepted or key in self._returned

    def was_accepted(self, key: Key) -> bool:
        return key in self._accepted

    def unconfirmed(self) -> list[Key]:
        """What the primary has, and the backlog may still have too."""
        return list(self._accepted)

    def accepted(self, key: Key) -> None:
        """Only ever after the primary's accepted outcome."""
        self._returned.pop(key, None)
        self._remember(self._accepted, key)

    def returned(self, key: Key) -> None:
        """The message went back to the backlog, unsent."""
        self._remember(self._returned, key)

    def completed(self, key: Key) -> None:
        """The backlog has confirmed: it will not be delivered again."""
        self._accepted.pop(key, None)
        self._returned.pop(key, None)

    def _remember(self, keys: dict[Key, None], key: Key) -> None:
        keys[key] = None
        if len(keys) > self._most:
            del keys[next(iter(keys))]
