"""Faults that are injected on request, and the throttling of the service itself."""
