"""Replication without a backlog: senders to both namespaces or to one of two, and a deduplicating receiver."""
