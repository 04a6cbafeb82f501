"""Our AMQP client over asyncio: connect, sign in, receive raw, send raw, settle. Bytes in, the same bytes out."""
