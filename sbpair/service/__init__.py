"""A mover that runs for long: its health, its messages to systemd, and definitions of services that start it."""
