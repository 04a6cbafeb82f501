"""The server's half of AMQP over sockets: ports, TLS, WebSocket, connections, links to nodes, shared access signatures.

Invariant: nothing here knows an entity or a message. Each server has its keys, and endpoints for its links.
"""
