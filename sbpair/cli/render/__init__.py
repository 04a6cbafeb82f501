"""Results as tables, text and JSON."""
