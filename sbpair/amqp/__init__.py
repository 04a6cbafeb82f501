"""AMQP 1.0 without sockets, for both roles: bytes in, events out; calls in, bytes out. Nothing here does I/O."""
