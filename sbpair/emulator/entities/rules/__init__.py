"""The rules of a subscription: filters that select messages and actions that change the selected. No I/O, no clock.

`rule` is the entrance. `syntax` parses SQL into a `syntax_tree`, `evaluate` compiles it to functions over `values`, and
they read a message through its `view` only. This module imports nothing.
"""
