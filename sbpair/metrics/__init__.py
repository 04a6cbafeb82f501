"""The figures of a run while it moves, for Prometheus and OpenTelemetry."""
