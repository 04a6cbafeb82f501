"""The HTTP frontend: management requests, the control API and a managed identity."""
