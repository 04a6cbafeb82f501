"""The key of the gateways of tests, and its rights."""

from sbpair.amqp.sasl import SaslClient
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule

KEY = "a2V5LW9mLXRoZS1nYXRld2F5LW9mLXRlc3RzLTEyMzQ1Njc="
RULE = AuthorizationRule("sbpair-gateway", KEY, KEY, frozenset({AccessRight.SEND, AccessRight.LISTEN}))
SIGN_IN = SaslClient("PLAIN", f"\0{RULE.key_name}\0{KEY}".encode())
