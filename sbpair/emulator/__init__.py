"""The embedded Service Bus: namespaces with entities, in memory, that Azure's own clients talk to over real sockets.

Of sbpair it imports `amqp` and `errors` only. It has no opinion on backlogs: one bug must not hide in both. This
module itself imports nothing, so that naming the emulator costs nothing.
"""
