"""Limits of the client: the time that a peer has, and the size of a message. `amqp.connection` has those of a frame."""

ANSWER_SECONDS = 60.0
"""Time limit for an answer: it must exceed 15 s, to give a partition time to move."""

SILENT_SECONDS = 15.0
"""How long a peer may be silent after a request: a partition has time to move."""

STOP_SECONDS = 2.0
"""Time limit for a receiver's last deliveries."""

CLOSE_SECONDS = 5.0
"""Time limit for the answer to a close."""

UNUSED_SECONDS = 540.0
"""How long a link is left unused: the service closes it after ten minutes, and its connection some minutes later."""

MAX_RECEIVED = 256 * 1024 * 1024
"""The largest message that is received, so that a peer cannot fill the memory by one. The service allows 100 MB."""
