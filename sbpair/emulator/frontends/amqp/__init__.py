"""The AMQP frontend: connections, links, and requests to management nodes."""
