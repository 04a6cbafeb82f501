"""Entities and messages in a file: what `--data` adds. Nothing here is loaded without it."""
