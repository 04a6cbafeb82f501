"""The embedded Service Bus emulator: namespaces in memory, served to Azure's own clients over real sockets.

Invariant: with the product it shares protocols, not entities. It does not know backlogs, or one bug could hide in both.
"""
