"""A local AMQP endpoint in front of a pair: failover for clients of every language."""
