"""Messages as lines and JSON: reading, sending, receiving and rendering them."""
