"""The tables of a pair's state file, and the statements that upgrade the file of an earlier version."""

APPLICATION_ID, VERSION = 0x5B9A1204, 3

TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE runs (id TEXT PRIMARY KEY, command TEXT NOT NULL, started_ms INTEGER NOT NULL, ended_ms INTEGER,
    outcome TEXT NOT NULL, exit_code INTEGER, error TEXT NOT NULL DEFAULT '', receipt TEXT)""",
    # One row, the last opener of the journal: so the batches of all openers have distinct numbers.
    "CREATE TABLE journals (number INTEGER PRIMARY KEY AUTOINCREMENT)",
    # A row is a batch; `keys` is the JSON of three lists: sequence numbers, enqueued times (ms), message ids.
    """CREATE TABLE flights (id INTEGER PRIMARY KEY, run TEXT NOT NULL, namespace TEXT NOT NULL,
    queue TEXT NOT NULL, destination TEXT NOT NULL, state INTEGER NOT NULL, at_ms INTEGER NOT NULL,
    keys TEXT NOT NULL)""",
)

UPGRADES = {
    2: (
        "ALTER TABLE runs ADD COLUMN settings TEXT",
        # `figures` is the JSON of a sample's fields, without its run and time.
        """CREATE TABLE samples (run TEXT NOT NULL, at_ms INTEGER NOT NULL, figures TEXT NOT NULL,
        PRIMARY KEY (run, at_ms)) WITHOUT ROWID""",
    ),
    # The state in which others want a live run, and the one that it has confirmed.
    3: ("CREATE TABLE controls (run TEXT PRIMARY KEY, wanted TEXT NOT NULL, state TEXT NOT NULL) WITHOUT ROWID",),
}
"""By the version that they lead to, from the one before; for new files too."""
