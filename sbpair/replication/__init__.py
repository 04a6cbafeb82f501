"""Replication of the disaster advice: an entity in each namespace, and copies of messages, or roles, or both."""
