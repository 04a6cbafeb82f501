"""The nouns of pairs, namespaces and entities: frozen dataclasses and pure functions on them."""
