"""What a namespace holds: queues, topics, subscriptions and their messages. Nothing here knows a protocol."""
