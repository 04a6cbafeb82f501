"""The syphon: moves stranded messages from the backlog queues back to the primary."""
