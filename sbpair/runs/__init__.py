"""Persistent state of runs: the database, the journal, the list of runs, and the leases."""
