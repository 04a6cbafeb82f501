"""Managed platforms that run a replay: one module each, and what they share."""
