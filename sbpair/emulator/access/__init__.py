"""Authentication and authorization: shared access keys and bearer tokens."""
