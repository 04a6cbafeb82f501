"""Paths of dead-letter queues, as the service and users write them."""

import pytest

from sbpair.model.message_state import MessageState, is_dead_letter_path, path_of, split_state

QUEUE = "contoso/x-servicebus-transfer/0"


@pytest.mark.parametrize(
    ("suffix", "state"),
    [
        ("", MessageState.ACTIVE),
        ("/$deadletterqueue", MessageState.DEAD),
        ("/$DeadLetterQueue", MessageState.DEAD),
        ("/$Transfer/$DeadLetterQueue", MessageState.TRANSFER_DEAD),
        ("/$TRANSFER/$deadletterQUEUE", MessageState.TRANSFER_DEAD),
    ],
)
def test_path_of_dead_letters_is_that_of_their_entity(suffix: str, state: MessageState) -> None:
    assert split_state(QUEUE + suffix) == (QUEUE, state)
    assert split_state(path_of(QUEUE, state)) == (QUEUE, state)
    assert is_dead_letter_path(QUEUE + suffix) is (state != MessageState.ACTIVE)
