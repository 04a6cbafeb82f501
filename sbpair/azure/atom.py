"""One namespace's management side over Atom.

Thin: it requests, converts and translates errors. `sdk_administration`, over azure-servicebus, is opened when something
is created or changed. Durations are text, since TimeSpan.MaxValue does not fit a timedelta.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast
from urllib.parse import parse_qs, quote, urlsplit

from sbpair.azure.credentials import authorization_for, signed_in
from sbpair.azure.descriptions import (
    bytes_of,
    counts_of,
    described,
    first_rule_xml,
    of_xml,
    queue_state,
    read,
    sku_of,
    with_chosen_size,
)
from sbpair.azure.http_client import CALL_SECONDS, AnswerLimit, HttpClient
from sbpair.azure.management_errors import (
    lacks_manage,
    missing,
    of_answer,
    refuse_unreadable_answers,
    service_response,
    translate_management_errors,
)
from sbpair.bounded_xml import parse_xml
from sbpair.errors import (
    EntityMissing,
    NameTaken,
    NotAuthenticated,
    NotAuthorized,
    PartitionsWanted,
    SbpairError,
    ServiceRefused,
    nearest,
)
from sbpair.model import tiers
from sbpair.model.connect_errors import explain_refusal, is_accepted, key_hint
from sbpair.model.entities import Described, Queue, Rule, Subscription, Topic, subscription_of, with_partitions
from sbpair.model.entity_properties import names_of
from sbpair.model.pair import Identity, SasKey
from sbpair.model.queues import Counts, QueueSpec, QueueState
from sbpair.model.rotated_key import has_another
from sbpair.model.tiers import Capacity
from sbpair.timespan import TIMESPAN_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from xml.etree.ElementTree import Element

    from sbpair.azure.sdk_administration import SdkAdministration
    from sbpair.model.entities import AnyEntity, Kind, Sized
    from sbpair.model.pair import Endpoint

T = TypeVar("T")

API_VERSION = "2021-05"
PAGE_SIZE = 100
MAX_PROBED_QUEUES = 100
NAMES_SECONDS = 2.0
QUEUES = ("$Resources", "queues")


@asynccontextmanager
async def open_atom(
    endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS, page_pause: float = 0
) -> AsyncIterator[AtomNamespace]:
    """Open the namespace of `endpoint`. Nothing is connected before the first call; `call_seconds` limits each.

    Before each page of a list, it pauses for `page_pause` seconds.
    """
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient(endpoint))
        authorization = await stack.enter_async_context(authorization_for(endpoint))
        yield AtomNamespace(http, authorization, endpoint, call_seconds, stack, page_pause)


@dataclass(frozen=True, slots=True)
class NamespaceProbe:
    """A namespace's tier, and a queue that links may be opened to without effect, "" where there is none."""

    tier: str
    queue: str


async def nearest_entity(endpoint: Endpoint, path: str, otherwise: str) -> str:
    """Return the hint for an entity that does not exist: one like it, if the namespace names one soon."""
    wanted, names = subscription_of(path), list[str]()
    part, before, after = (wanted.topic, "", f"/subscriptions/{wanted.name}") if wanted else (path, "", "")
    with suppress(SbpairError, TimeoutError):
        async with asyncio.timeout(NAMES_SECONDS), open_atom(endpoint) as control:
            with suppress(SbpairError):  # there is no such topic
                names = [each.name for each in await control.subscriptions(wanted.topic)] if wanted else []
            if names and wanted:
                part, before, after = wanted.name, f"{wanted.topic}/subscriptions/", ""
            else:
                names = await control.names()
    known = set(map(str.lower, names))
    if part.lower() in known:  # as a topic, where a queue is wanted, or as a queue
        return f"{part} has no subscriptions" if wanted else otherwise
    parent = path.rpartition("/")[0]
    near = nearest(part, [*names, *([f"{parent}/$DeadLetterQueue"] if parent.lower() in known else [])])
    return f"did you mean {before}{near[0]}{after}?" if near else otherwise


class AtomNamespace:
    """The entities of one namespace, and the calls that count and remove queues. Get one from `open_atom`.

    Every method raises only errors of `sbpair.errors`, and may be called by several coroutines at once.
    """

    takes_first_rule: ClassVar = True

    def __init__(
        self,
        http: HttpClient,
        authorization: Callable[[str], Awaitable[str]],
        endpoint: Endpoint,
        call_seconds: float,
        stack: AsyncExitStack,
        page_pause: float = 0,
    ) -> None:
        self._http = http
        self._authorization = authorization
        self._limit = AnswerLimit(http.netloc, call_seconds)
        self._endpoint = endpoint
        self._namespace = endpoint.name
        self._call_seconds = call_seconds
        self._stack = stack
        self._page_pause = page_pause
        self._administration: SdkAdministration | None = None
        self._administration_lock = asyncio.Lock()
        self._wants_partitions = False
        self._capacity: Capacity | None = None
        self._capacity_lock = asyncio.Lock()
        self._listed_first = "sbpair-checks-its-credential"

    # The namespace

    async def tier_name(self) -> str:
        """Return the tier as the service names it, known to sbpair or not."""
        return (await self._read_sku())[0]

    async def own_name(self) -> str:
        """Return the name that the service has for the namespace, in lower case."""
        with self._reading("read the namespace's name") as what:
            found = await self._get(what, "$namespaceinfo")
        return (found.findtext("{*}content/{*}NamespaceInfo/{*}Name") or self._namespace).lower()

    async def capacity(self) -> Capacity:
        async with self._capacity_lock:
            if self._capacity is None:
                name, units = await self._read_sku()
                self._capacity = Capacity(tiers.tier_named(name), units)
        return self._capacity

    async def probe(self) -> NamespaceProbe:
        """Read the tier's name, known or not, and the first queue that links may be opened to."""
        name, _ = await self._read_sku()
        return NamespaceProbe(name, await self._linkable_queue())

    async def _read_sku(self) -> tuple[str, int | None]:
        with self._reading("read the namespace's tier") as what:
            sku = sku_of(await self._get(what, "$namespaceinfo"))
        if sku is None:
            raise ServiceRefused(
                f"{self._namespace} does not report its tier", hint="check the address: is it a Service Bus?"
            )
        return sku

    async def _linkable_queue(self) -> str:
        seen = 0
        with self._reading("list the queues") as what:
            async for name, description in self._listed(what, Queue.kind, *QUEUES):
                if _accepts_any_link(read(QueueSpec(name), of_xml(description))):
                    return name
                seen += 1
                if seen == MAX_PROBED_QUEUES:
                    break
        return ""

    # Queues by path, as the service reports them

    async def list_under(self, prefix: str, *, counts: bool = False) -> list[QueueState]:
        if prefix:
            self._listed_first = f"{prefix}0"
        with self._reading("list the queues") as what:
            return [
                queue_state(path, of_xml(description), counted=counts)
                async for path, description in self._listed(what, Queue.kind, *QUEUES)
                if path.lower().startswith(prefix.lower())
            ]

    async def get(self, path: str) -> QueueState:
        """Read a queue or a subscription with its counts, locked messages included. Raises EntityMissing."""
        kind, *address = _source_address(path)
        with self._reading(f"read the {kind} {path}") as what:
            return queue_state(path, of_xml(await self._described(what, kind, *address)), counted=True)

    async def counts(self, path: str) -> Counts:
        return (await self.get(path)).counts or Counts()

    async def exact_counts(self, path: str) -> Counts:
        """Count as `counts` does. Raises ServiceRefused where the service omits a figure."""
        with self._reading(f"count the messages of {path}") as what:
            counts = counts_of(of_xml(await self._described(what, Queue.kind, path)))
        if counts is None:
            raise ServiceRefused(
                f"{self._namespace} does not report how many messages {path} holds",
                hint="only queues known to be empty are removed: receive or peek its messages",
            )
        return counts

    async def description(self, path: str, kind: str = Queue.kind) -> dict[str, str]:
        """Return the elements of an entity's description, by name, exactly as the service wrote them."""
        found = await self._described(f"read the {kind} {path}", kind, *_source_address(path)[1:])
        return {each.tag.rpartition("}")[2]: each.text or "" for each in found.iter()}

    async def set_status(self, path: str, status: str) -> None:
        """Set the status, such as `Active` or `SendDisabled`, and nothing else. Raises EntityMissing."""
        queue = await self.read(Queue(path))
        await self._administered(lambda opened: opened.set_status(queue, status))

    async def delete(self, path: str) -> None:
        """Delete a queue, a topic or a subscription with its messages. Raises EntityMissing."""
        kind, *address = _source_address(path)
        await self._delete(f"delete the {kind} {path}", *address)

    # Entities of every kind

    async def list_all(self, kind: type[Sized]) -> list[tuple[Sized, int]]:
        """List every queue or topic, each with the bytes that it holds."""
        with self._reading(f"list the {kind.kind}s") as what:
            listed = self._listed(what, kind.kind, "$Resources", f"{kind.kind}s")
            found = [(read(kind(path), of_xml(each)), bytes_of(of_xml(each))) async for path, each in listed]
        return [(await self._with_chosen_size(entity), size) for entity, size in found]

    async def list_counted(self, *, subscriptions: bool = True) -> list[tuple[str, QueueState]]:
        """List every queue and topic, and their `subscriptions`, with its counts, each with its kind."""
        found = []
        with self._reading("list the entities") as what:
            for kind in (Queue.kind, Topic.kind):
                async for path, each in self._listed(what, kind, "$Resources", f"{kind}s"):
                    found.append((kind, queue_state(path, of_xml(each), counted=True)))
            for topic in [state.spec.path for kind, state in found if kind == Topic.kind and subscriptions]:
                async for name, each in self._below(what, Subscription.kind, topic, "subscriptions"):
                    path = f"{topic}/subscriptions/{name}"
                    found.append((Subscription.kind, queue_state(path, of_xml(each), counted=True)))
        return found

    async def list_known(
        self, *, subscriptions: bool = True
    ) -> tuple[list[tuple[str, QueueState]], NotAuthorized | None]:
        """List as `list_counted`; with keys of entities alone, list these, and return why no others.

        Without Manage on such an entity, its kind is "", and its counts are None.
        """
        try:
            return await self.list_counted(subscriptions=subscriptions), None
        except NotAuthorized as error:
            if not (paths := self._endpoint.keyed_entities):
                raise
            found = [await self._keyed(path) for path in paths]
            what = "" if all(state.counts for _, state in found) else "counts and "
            error.message = f"{what}other entities need Manage on the namespace: the key is for {' and '.join(paths)}"
            return found, error

    async def _keyed(self, path: str) -> tuple[str, QueueState]:
        with self._reading(f"read {path}") as what:
            try:
                entry = await self._get(what, path)
            except NotAuthorized:
                return "", QueueState(QueueSpec(path))
            kind = Queue.kind if described(entry, Topic.kind) is None else Topic.kind
            return kind, queue_state(path, of_xml(self._description_in(entry, what, kind, path)), counted=True)

    async def names(self) -> list[str]:
        """List the paths of the queues and topics."""
        with self._reading("list the entities") as what:
            kinds = (Queue.kind, Topic.kind)
            return [path for kind in kinds async for path, _ in self._listed(what, kind, "$Resources", f"{kind}s")]

    async def subscriptions(self, topic: str) -> list[Subscription]:
        with self._reading(f"list the subscriptions of {topic}") as what:
            listed = self._below(what, Subscription.kind, topic, "subscriptions")
            return [read(Subscription(topic, name), of_xml(each)) async for name, each in listed]

    async def rules(self, topic: str, subscription: str) -> list[Rule]:
        with self._reading(f"list the rules of {topic}/{subscription}") as what:
            listed = self._rules(what, topic, subscription)
            return [read(Rule(topic, subscription, name), of_xml(each)) async for name, each in listed]

    async def rule_descriptions(self, topic: str, subscription: str) -> list[Element]:
        """Return the rules of a subscription as the service wrote them."""
        with self._reading(f"list the rules of {topic}/{subscription}") as what:
            return [each async for _, each in self._rules(what, topic, subscription)]

    async def read(self, like: Kind) -> Kind:
        """Read the entity of the kind and name of `like`. Raises EntityMissing, and NameTaken by another kind."""
        with self._reading(f"read the {like.kind} {like.path}") as what:
            found = read(like, of_xml(await self._described(what, like.kind, *_address(like))))
        return cast("Kind", await self._with_chosen_size(found) if isinstance(found, (Queue, Topic)) else found)

    async def queue_or_topic(self, path: str) -> Queue | Topic:
        """Read a queue or a topic in one call, with its size as the service reports it. Raises EntityMissing."""
        with self._reading(f"read the queue {path}") as what:
            entry = await self._get(what, path)
            if (found := described(entry, Topic.kind)) is not None:
                return read(Topic(path), of_xml(found))
            return read(Queue(path), of_xml(self._description_in(entry, what, Queue.kind, path)))

    async def create(self, entity: Described) -> bool:
        """Create an entity, with partitions in a namespace that is partitioned as a whole.

        Such a namespace does not report that, and refuses any other entity.
        """
        if isinstance(entity, (Subscription, Rule)):
            return await self.create_exact(entity)
        if not self._wants_partitions:
            with suppress(PartitionsWanted):
                return await self.create_exact(entity)
            self._wants_partitions = True
        return await self.create_exact(with_partitions(entity))

    async def create_exact(self, entity: Described) -> bool:
        """Create an entity without adding partitions. Raises PartitionsWanted."""
        return await self._administered(lambda opened: opened.create(entity))

    async def create_with_rule(self, subscription: Subscription, rule: Rule) -> bool:
        """Create a subscription together with its first rule, in place of the service's own."""
        # The transport adds the rule before the count.
        options = {"first_rule": first_rule_xml(rule), "max_delivery_count": subscription.max_delivery_count}
        return await self._administered(lambda opened: opened.create(subscription, **options))

    async def delete_rule(self, rule: Rule) -> None:
        with suppress(EntityMissing):
            await self._delete(f"delete the rule {rule.path}", *_address(rule))

    async def _administered(self, action: Callable[[SdkAdministration], Awaitable[T]]) -> T:
        opened = await self._opened_administration()
        try:
            return await action(opened)
        except NotAuthenticated:
            if not await has_another(self._endpoint.rotated, opened.credential):
                raise
        if self._administration is opened:
            self._administration = None
        return await self._administered(action)

    async def _opened_administration(self) -> SdkAdministration:
        async with self._administration_lock:
            if self._administration is None:
                from sbpair.azure.sdk_administration import open_administration

                administration = open_administration(self._endpoint, self._call_seconds)
                self._administration = await self._stack.enter_async_context(administration)
        return self._administration

    async def _listed(self, what: str, kind: str, *path: str) -> AsyncIterator[tuple[str, Element]]:
        skip, top = 0, PAGE_SIZE
        while top:
            await asyncio.sleep(self._page_pause)
            feed = await self._get(what, *path, query=f"$skip={skip}&$top={top}")
            for entry in feed.iterfind("{*}entry"):
                description = described(entry, kind)
                if description is None:
                    raise LookupError(f"an entry does not describe a {kind}")
                yield entry.findtext("{*}title") or "", description
            skip, top = _next_page(feed, skip)

    def _rules(self, what: str, topic: str, subscription: str) -> AsyncIterator[tuple[str, Element]]:
        return self._below(what, Rule.kind, topic, "subscriptions", subscription, "rules")

    async def _below(self, what: str, kind: str, *path: str) -> AsyncIterator[tuple[str, Element]]:
        """List what an entity has; nothing of one that is gone, for which the service has an empty feed, or 404."""
        with suppress(EntityMissing):
            async for each in self._listed(what, kind, *path):
                yield each

    async def _described(self, what: str, kind: str, *path: str) -> Element:
        """Read a description. Raises EntityMissing, and NameTaken by another kind."""
        return self._description_in(await self._get(what, *path), what, kind, path[0])

    def _description_in(self, entry: Element, what: str, kind: str, path: str) -> Element:
        description = described(entry, kind)
        if description is not None:
            return description
        # A path where nothing is has an empty feed, not an entry.
        if entry.find("{*}content") is None:
            raise missing(what, self._namespace)
        raise NameTaken(f"{path} is not a {kind} in {self._namespace}", hint="rename or delete the entity of that name")

    # `what` completes "cannot …" in the message of an error.

    async def _get(self, what: str, *path: str, query: str = "enrich=false") -> Element:
        return parse_xml(await self._request("GET", what, path, f"{query}&"))

    async def _delete(self, what: str, *path: str) -> None:
        await self._request("DELETE", what, path)

    async def _request(self, method: str, what: str, path: tuple[str, ...], query: str = "") -> bytes:
        target = f"/{'/'.join(quote(part, safe='$') for part in path)}?{query}api-version={API_VERSION}"
        clock, had_time = self._endpoint.clock, self._endpoint.clock.known() is not None
        endpoint = self._endpoint.keyed_for(path[0])
        credential = endpoint.present
        with translate_management_errors(what, self._namespace, self._http.netloc):
            async with asyncio.timeout(self._call_seconds):
                headers = {"Authorization": await self._authorization(path[0])}
            async with self._limit.one_request():
                response = await self._http.request(method, target, headers)
        if response.status == 401 and not had_time and clock.difference() and self._signs():
            # The signature had expired when it was made. A new one is made by the time that this answer has shown.
            return await self._request(method, what, path, query)
        if response.status != 200:
            text = f"{response.reason}\n{response.body.decode(errors='replace')}"
            answer = service_response(response.status, text, response.headers)
            error = explain_refusal(of_answer(answer, what, self._namespace, key_hint("")), endpoint)
            # Another key may be there; or the token ended on its way, and the next one is another.
            if isinstance(error, NotAuthenticated) and (
                await has_another(endpoint.rotated, credential)
                or (isinstance(credential, Identity) and await self._authorization(path[0]) != headers["Authorization"])
            ):
                return await self._request(method, what, path, query)
            if isinstance(error, NotAuthenticated) and await self._takes_links(path[0]):
                raise lacks_manage(what, self._namespace) from error
            raise error
        return response.body

    async def _takes_links(self, path: str) -> bool:
        """Return whether a link is accepted with the credential: to management without Manage, the answer may be 401.

        It is opened to the entity of the request, or of the key, or one that may be listed, unless one was accepted
        before. A link to one that does not exist is missing, or refused before that.
        """
        from sbpair.amqp_client.client import connect  # few commands get such an answer

        of_all, signed = path.startswith("$"), self._endpoint.signed
        entity = (self._endpoint.entity or self._listed_first) if of_all else path
        if not (signed if of_all else entity in signed):
            try:
                async with asyncio.timeout(self._call_seconds), signed_in(connect, self._endpoint) as client:
                    (await client.sender(entity)).close()
            except TimeoutError:
                return False
            except SbpairError as error:
                if not is_accepted(error):
                    return False
        return True

    def _signs(self) -> bool:
        return isinstance(self._endpoint.credential, SasKey)

    @contextmanager
    def _reading(self, what: str) -> Iterator[str]:
        """Return `what`. Raise Unreachable if the block cannot read the service's XML."""
        with refuse_unreadable_answers(what, self._namespace):
            yield what

    async def _with_chosen_size(self, entity: Sized) -> Sized:
        return with_chosen_size(entity, (await self.capacity()).tier) if entity.enable_partitioning else entity


def _next_page(feed: Element, skip: int) -> tuple[int, int]:
    """Return $skip and $top of the next page; (0, 0) after the last one."""
    link = feed.find("{*}link[@rel='next']")
    if link is None:
        return 0, 0
    query = parse_qs(urlsplit(link.get("href", "")).query)
    after, top = int(query["$skip"][0]), int(query["$top"][0])
    if after <= skip:
        raise ValueError("the next page is not after this one")
    return after, top


def _source_address(path: str) -> tuple[str, ...]:
    """Return the kind of a queue or a subscription, and its address."""
    entity = subscription_of(path) or Queue(path)
    return entity.kind, *_address(entity)


def _address(entity: AnyEntity) -> tuple[str, ...]:
    first, *others = names_of(entity)
    return first, *chain.from_iterable(zip(("subscriptions", "rules"), others, strict=False))


def _accepts_any_link(spec: QueueSpec) -> bool:
    """Return whether a link may be opened without effect: no idle deletion to postpone, and plain receivers work."""
    lasting = spec.auto_delete_on_idle == TIMESPAN_MAX
    return lasting and spec.status == "Active" and not spec.requires_session and not spec.forward_to
