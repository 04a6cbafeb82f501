"""Rules of subscriptions: SQL and correlation filters over a message, for `--where` and for the emulator. Pure.

`compiler` turns the `grammar` into functions over `values`, which read a message through a `view`.
"""
