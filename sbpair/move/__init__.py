"""Moving a message from a backlog queue to where it was meant to go, once for everyone who moves any."""
