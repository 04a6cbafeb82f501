"""Who may do what: shared access keys and bearer tokens."""
