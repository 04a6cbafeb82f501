"""The key of a namespace whose source may get another one while a program runs."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from sbpair.errors import EntityMissing, MachineLacks, Unavailable, UsageError

KeyT = TypeVar("KeyT")


class RotatedKey(Generic[KeyT]):
    """The present key or signature of a namespace, which threads and coroutines share.

    `reread` returns the one in its source now. A copy in another process has no source.
    """

    def __init__(self, current: KeyT, reread: Callable[[], KeyT] | None = None) -> None:
        self.current = current
        self._reread = reread
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[RotatedKey[KeyT]], tuple[KeyT]]:
        return RotatedKey, (self.current,)

    def replaced(self, refused: object) -> bool:
        """Return whether there is another key than the one that was refused. Rereads the source for the present one.

        It blocks. Raises Unavailable for a file without a key, or a secret manager; AccessError where that refuses.
        """
        with self._lock:
            if self.current == refused and self._reread is not None:
                try:
                    self.current = self._reread()
                except EntityMissing:
                    return False  # the secret is gone
                except (UsageError, MachineLacks) as error:
                    # It may be written at this moment.
                    text = f"the key is refused, and no other one can be read: {error.message}"
                    raise Unavailable(text, hint=error.hint) from error
            return self.current != refused


async def has_another(rotated: RotatedKey[KeyT] | None, refused: object) -> bool:
    """Return whether there is another key than the refused one, as `replaced` does, without blocking the event loop."""
    import asyncio  # help needs no event loop

    return rotated is not None and await asyncio.to_thread(rotated.replaced, refused)
