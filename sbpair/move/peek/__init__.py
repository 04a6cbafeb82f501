"""Reading of queues without locks: peeked messages and lookups of their destinations."""
