"""Azure Relay: hybrid connections, their listeners, and the gateway that relays requests and WebSockets to them."""
