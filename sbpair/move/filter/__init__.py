"""Filters of `--where`: Service Bus's SQL filter grammar, over received and peeked messages. Pure."""
