"""The rules of a subscription: filters that select messages and actions that change the selected. No I/O, no clock.

`rule` puts them together; `syntax` reads SQL, `evaluate` calculates it over `values`, and a `view` of a message is all
that any of them sees. This module imports nothing.
"""
