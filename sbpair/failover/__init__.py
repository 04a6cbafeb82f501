"""Send availability: an application keeps sending while its primary namespace is unavailable."""
