"""The AMQP door: connections, links, and requests to management nodes."""
