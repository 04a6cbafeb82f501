"""The embedded Service Bus emulator: namespaces in memory, served to Azure's own clients over real sockets.

Invariant: it imports only `amqp` and `errors` of sbpair. It does not know backlogs, or one bug could hide in both.
"""
