"""Schemas of the output of config, doctor, emulator, receive and send."""

from sbpair.cli.schemas.builders import (
    Optional,
    Schema,
    anything,
    array,
    choice,
    count,
    flag,
    forms,
    nullable,
    number,
    optional,
    record,
    scalar,
    text,
)

_SETTING: dict[str, Schema | Optional] = {
    "key": text("Name of the setting", example="primary.namespace"),
    "value": scalar("Its value; intervals are in seconds, secrets are masked"),
    "source": text("Option, variable, file or setting it comes from; empty for a default"),
    "origin": choice("Kind of source", "flag", "environment", "file", "default", "derived"),
}
CONFIG = forms(
    "sbpair/config/1",
    "The effective configuration. JSON Lines have one setting each.",
    record("The document", {"settings": array("Settings", record("One setting", _SETTING))}),
    record("The line of a setting", _SETTING),
    record("With --path", {"path": text("Path of the configuration file"), "exists": flag("Whether the file exists")}),
    record("With --example", {"example": text("An example configuration file")}),
)

_CHECK: dict[str, Schema | Optional] = {
    "name": text("Name of the check", example="primary.sign_in"),
    "outcome": choice("Outcome", "ok", "failed", "note", "unknown"),
    "assumed": optional(text("Assumed behaviour, of a live test")),
    "observed": optional(text("Observed behaviour, of a live test")),
    "reason": text("What was found"),
    "hint": text("What to do about it; may be empty"),
    "exit_code": count("Exit code of the problem; 0 for none"),
}
DOCTOR = forms(
    "sbpair/doctor/1",
    "The checks of sbpair doctor. JSON Lines have one check each.",
    record(
        "The document",
        {
            "checks": array("Checks", record("One check", _CHECK)),
            "live": array("Live tests; empty without --live", record("One test", _CHECK)),
        },
    ),
    record("The line of a check", _CHECK),
)

EMULATOR = forms(
    "sbpair/emulator/1",
    "How to connect to the emulator, on one line.",
    record(
        "The document",
        {
            "namespaces": array(
                "Namespaces",
                record(
                    "One namespace",
                    {
                        "name": text("Its name"),
                        "endpoint": text("Host and port"),
                        "connection_string": text("Connection string"),
                        "tls_connection_string": optional(text("Connection string for TLS, with --tls")),
                    },
                ),
            ),
            "ca_file": optional(text("File with the CA, with --tls")),
            "identity": optional(
                record(
                    "Managed identity, with --identity",
                    {"endpoint": text("IDENTITY_ENDPOINT"), "header": text("IDENTITY_HEADER")},
                )
            ),
        },
    ),
)

_MESSAGE: dict[str, Schema | Optional] = {
    "from": choice("Namespace it came from", "primary", "secondary"),
    "message_id": nullable(text("Message id")),
    "sequence_number": nullable(count("Sequence number")),
    "enqueued_at": nullable(text("Enqueued time, with its UTC offset")),
    "delivery_count": nullable(count("Delivery count")),
    "session_id": nullable(text("Session id")),
    "subject": nullable(text("Subject")),
    "content_type": nullable(text("Content type")),
    "correlation_id": nullable(text("Correlation id")),
    "properties": {"type": "object", "description": "Application properties"},
    "body": anything("Body: text, or an AMQP value; null if body_base64 is present"),
    "body_base64": optional(text("Body that is not UTF-8, in base64")),
}
RECEIVE = forms(
    "sbpair/receive/1",
    "Received messages. JSON Lines have one message each.",
    record(
        "The document",
        {
            "entity": text("Queue, or topic with subscription"),
            "messages": array("Messages", record("One message", _MESSAGE)),
            "received": count("Received or peeked messages"),
            "not_removed": count("Messages that were printed but not removed"),
            "duplicates": count("Copies that were not printed"),
            "removed": flag("Whether messages are removed, so without --peek"),
        },
    ),
    record("The line of a message", _MESSAGE),
)

SEND = forms(
    "sbpair/send/1",
    "The receipt of sbpair send: messages = primary + backlog + outbox + in_doubt + failed.",
    record(
        "The document",
        {
            "entity": text("Queue or topic"),
            "messages": count("Messages that were tried"),
            "primary": count("Accepted by the primary"),
            "backlog": count("Accepted by the backlog"),
            "outbox": count("Stored in the outbox"),
            "in_doubt": count("Sent last, without an answer"),
            "failed": count("Refused"),
            "next_line": count("First line that is not accepted yet"),
            "doubtful": array("Ids of possible duplicates", text("Message id")),
            "failure": nullable(
                record(
                    "Why it ended early; null if it did not",
                    {
                        "line": nullable(count("Line of the message")),
                        "reason": text("What happened"),
                        "hint": text("What to do about it"),
                    },
                )
            ),
            "seconds": number("Duration"),
            "stopped": flag("Whether a signal ended it"),
        },
    ),
)

_NAME: dict[str, Schema | Optional] = {"name": text("Name of the schema"), "description": text("Its description")}
SCHEMA_LIST = forms(
    "sbpair/schemas/1",
    "The schemas that sbpair schema prints. JSON Lines have one schema each.",
    record("The document", {"schemas": array("Schemas", record("One schema", _NAME))}),
    record("The line of a schema", _NAME),
)

SCHEMAS = (CONFIG, DOCTOR, EMULATOR, RECEIVE, SCHEMA_LIST, SEND)
