"""Management of a pair's entities: plan, compare, provision, audit, prune, partition."""
