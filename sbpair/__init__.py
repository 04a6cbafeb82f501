"""Azure Service Bus paired namespaces, for everyone who still needs them."""

__version__ = "0.1.0"
