"""What the primary has accepted and the backlog does not know yet.

Only a message whose five-part key is here is completed without being sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.move.route import Key


class Journal:
    """Remembers for as long as the process lives.

    It holds only messages that may be delivered again: those that were accepted or given back, and never confirmed as
    completed. So its size does not depend on the backlog's.
    """

    def __init__(self) -> None:
        self._accepted: set[Key] = set()
        self._returned: set[Key] = set()

    def seen(self, key: Key) -> bool:
        """Whether this run has had the message before."""
        return key in self._accepted or key in self._returned

    def was_accepted(self, key: Key) -> bool:
        return key in self._accepted

    def accepted(self, key: Key) -> None:
        """Only ever after the primary's accepted outcome."""
        self._accepted.add(key)
        self._returned.discard(key)

    def returned(self, key: Key) -> None:
        """The message went back to the backlog, unsent."""
        self._returned.add(key)

    def completed(self, key: Key) -> None:
        """The backlog has confirmed: it will not be delivered again."""
        self._accepted.discard(key)
        self._returned.discard(key)
