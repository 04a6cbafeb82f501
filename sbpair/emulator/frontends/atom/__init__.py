"""The Atom management frontend: entities as XML over HTTP."""
