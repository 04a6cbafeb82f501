"""The entities of a namespace: queues, topics, subscriptions and their messages. No protocol is known here."""
