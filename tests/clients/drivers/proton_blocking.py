"""Qpid Proton, by its blocking connection, which does not connect again."""

import base64
import os
import uuid
from typing import Any

from lines import serve
from proton import (
    UNDESCRIBED,
    Array,
    Condition,
    Data,
    Delivery,
    Described,
    Message,
    SSLDomain,
    int32,
    symbol,
    timestamp,
)
from proton.handlers import TransactionHandler
from proton.reactor import Copy, Filter, LinkOption
from proton.utils import BlockingConnection

HOST, PORT = os.environ["HOST"], os.environ["PORT"]
FILTER = symbol("com.microsoft:session-filter")
OUTCOMES = {
    "accept": "ACCEPTED",
    "release": "RELEASED",
    "modify": "MODIFIED",
    "defer": "MODIFIED",
    "reject": "REJECTED",
}

signed_in = {"user": os.environ["KEY_NAME"], "password": os.environ["KEY"]} if "KEY_NAME" in os.environ else {}
over_tls = os.environ["TRANSPORT"] == "tls"
trusting = SSLDomain(SSLDomain.MODE_CLIENT) if over_tls else None
if trusting:
    trusting.set_trusted_ca_db(os.environ["CA_FILE"])
    trusting.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
connection = BlockingConnection(
    f"amqps://localhost:{PORT}" if over_tls else f"amqp://{HOST}:{PORT}",  # it checks no addresses in certificates
    allowed_mechs="PLAIN" if signed_in else "ANONYMOUS",
    timeout=20,
    ssl_domain=trusting,
    **signed_in,
)
links: dict[Any, Any] = {}
deliveries: list[Any] = []
exchanges: list["Exchange"] = []


def link(key: tuple[Any, ...], make: Any) -> Any:
    if key not in links:
        links[key] = make()
    return links[key]


def send(to: str, body: str, session: str | None = None, at: int | None = None) -> None:
    annotations = {symbol("x-opt-scheduled-enqueue-time"): timestamp(at)} if at else None
    message = Message(body=body.encode(), inferred=True, group_id=session, annotations=annotations)
    link(("to", to), lambda: connection.create_sender(to)).send(message)


def receive(path: str, **given: str | None) -> dict[str, Any]:
    options = Filter({FILTER: Described(FILTER, given["session"])}) if "session" in given else None
    make = lambda: connection.create_receiver(path, 0, name=f"{path} {given}", options=options)  # noqa: E731
    receiver = link(("from", path, str(given)), make)
    message = receiver.receive()
    delivery = receiver.fetcher.unsettled.pop()
    deliveries.append(delivery)
    return {
        "delivery": len(deliveries) - 1,
        "body": text(message),
        "count": message.delivery_count,
        "session": message.group_id,
        "properties": len(message.properties or {}),
        "ttl": message.ttl * 1000,
        "partition": (message.annotations or {}).get("x-opt-partition-id"),
    }


def text(message: Message) -> str:
    return bytes(message.body).decode() if isinstance(message.body, bytes | memoryview) else str(message.body)


def browse(path: str, count: int) -> list[str]:
    browser = connection.create_receiver(path, count, options=Copy())
    return [text(browser.receive()) for _ in range(count)]


def settle_then_close(delivery: int) -> None:
    """Settle, and close the link and the connection before the answer."""
    got = deliveries[delivery]
    got.update(Delivery.ACCEPTED)
    got.settle()
    got.link.close()
    connection.close()


def settle(delivery: int, how: str) -> None:
    got = deliveries[delivery]
    got.local.failed = how == "modify"
    got.local.undeliverable = how == "defer"
    if how == "reject":
        reason = {"DeadLetterReason": "told", "DeadLetterErrorDescription": "by the client"}
        got.local.condition = Condition("com.microsoft:dead-letter", info={symbol(k): v for k, v in reason.items()})
    got.update(getattr(Delivery, OUTCOMES[how]))
    connection.wait(lambda: got.settled)
    got.settle()


class Exchange(TransactionHandler):
    """The course of a transaction: `ended` is None until it is committed, aborted or refused."""

    transaction: Any = None
    ended: str | None = None

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction

    def on_transaction_committed(self, _event: Any) -> None:
        self.ended = "committed"

    def on_transaction_aborted(self, _event: Any) -> None:
        self.ended = "aborted"

    def on_transaction_commit_failed(self, _event: Any) -> None:
        self.ended = "refused"


def begin_exchange(delivery: int, how: str = "accept", to: str | None = None, body: str = "") -> None:
    """Settle a delivery and send another message, if any, in one transaction."""
    exchanges.append(exchange := Exchange())
    connection.container.declare_transaction(connection.conn, handler=exchange)
    connection.wait(lambda: exchange.transaction)
    if how == "accept":
        exchange.transaction.accept(deliveries[delivery])
    else:
        exchange.transaction.update(deliveries[delivery], getattr(Delivery, OUTCOMES[how]))
    if to is None:
        connection.wait(lambda: deliveries[delivery].remote_state)
        return
    sent = exchange.transaction.send(link(("to", to), lambda: connection.create_sender(to)).link, Message(body=body))
    connection.wait(lambda: sent.settled)


def end_exchange(commits: bool) -> str | None:
    exchange = exchanges.pop()
    (exchange.transaction.commit if commits else exchange.transaction.abort)()
    connection.wait(lambda: exchange.ended)
    return exchange.ended


def value(given: dict[str, Any]) -> Any:
    ((kind, inner),) = given.items()
    return {
        "text": str,
        "int": int32,
        "long": int,
        "binary": base64.b64decode,
        "longs": lambda each: Array(UNDESCRIBED, Data.LONG, *each),
        "uuids": lambda each: Array(UNDESCRIBED, Data.UUID, *map(uuid.UUID, each)),
        "maps": lambda each: [{key: value(one) for key, one in entry.items()} for entry in each],
    }[kind](inner)


class ReplyTo(LinkOption):
    def apply(self, link: Any) -> None:
        link.target.address = "reply"


def request(node: str, properties: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    content = body["text"] if "text" in body else {key: value(each) for key, each in body.items()}
    sender = link(("to", node), lambda: connection.create_sender(node))
    receiver = link(("reply", node), lambda: connection.create_receiver(node, 0, options=ReplyTo()))
    sender.send(Message(id="1", reply_to="reply", body=content, properties=properties))
    answer = receiver.receive()
    status = answer.properties.get("statusCode", answer.properties.get("status-code"))
    return {"status": status, "keys": sorted(answer.body or {})}


serve({
    "send": send,
    "receive": receive,
    "settle": settle,
    "settle-then-close": settle_then_close,
    "browse": browse,
    "request": request,
    "begin-exchange": begin_exchange,
    "end-exchange": end_exchange,
})  # fmt: skip
