"""Backlog messages: decoding, routing, and the edits that a move makes to their bytes."""
