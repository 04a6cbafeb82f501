"""Planning of a pair: the cost of an outage, and its entities as infrastructure code."""
