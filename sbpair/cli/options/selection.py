"""Options that choose messages of an entity: their state, an SQL condition, sequence numbers and age."""

from typing import TYPE_CHECKING, Any

from sbpair.cli.options.common import duration, flag, option, option_group
from sbpair.model.message_state import SUFFIXES, MessageState
from sbpair.model.sequence_ranges import SequenceRanges

if TYPE_CHECKING:
    from collections.abc import Collection

    from sbpair.cli.render.screen import Screen
    from sbpair.move.filter import MessageFilter

STATES = ", ".join(MessageState)
WHERE = option("--where SQL", "Only messages that match; the others stay")


@option_group
class ChosenMessages:
    """Which messages of an entity a command takes."""

    in_state: MessageState | None = option("--messages STATE", STATES, excludes="--dead-letters")
    where: str | None = WHERE
    sequence: SequenceRanges | None = option(
        "--sequence N,N-N", "Only these sequence numbers", parse=SequenceRanges.read
    )
    older_than: float | None = duration("--older-than TIME", "Only messages enqueued longer ago than that", unit=True)

    @property
    def state(self) -> MessageState | None:
        """The state that a message must have; None if the command chooses it."""
        return self.in_state

    def filter(
        self, screen: "Screen", reasons: "Collection[str]" = (), *, peeks: bool = False
    ) -> "MessageFilter | None":
        """Return the filter of these options and of dead-letter reasons; None if they choose all messages.

        One that `peeks` also looks at the state: an entity shows its messages in all states. Warns of doubts about the
        filter. Raises FilterInvalid.
        """
        state = self.state if peeks and self.state not in SUFFIXES else None
        choices: dict[str, Any] = {"sequences": self.sequence, "older_than": self.older_than, "state": state}
        if self.where is None and not (reasons or any(choices.values())):
            return None
        from sbpair.move.filter import MessageFilter

        found = MessageFilter("" if self.where is None else self.where or " ", reasons=reasons, **choices)
        for remark in found.remarks:
            screen.warn(f"--where: {remark}")
        return found


@option_group
class Selection(ChosenMessages):
    """The same, with a short form of --messages dead."""

    dead_letters: bool = flag("--dead-letters", "The same as --messages dead")

    @property
    def state(self) -> MessageState | None:
        return MessageState.DEAD if self.dead_letters else self.in_state
