"""The paired clients as applications have them: senders, and beside them a syphon that brings the backlog back."""
