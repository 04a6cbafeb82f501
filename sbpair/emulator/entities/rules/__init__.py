"""The rules of a subscription: filters that select messages and actions that change the selected. No I/O, no clock.

`rule` is the entrance. `syntax` parses SQL; `evaluate` compiles its trees to functions over `values`, which read a
message through its `view` only. This module imports nothing.
"""
