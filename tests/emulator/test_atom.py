"""The Atom frontend, request by request, down to the XML element."""

import pytest

from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from tests.emulator.atom_client import ATOM, Manager, elements_of, entry, open_manager, read, sub_code
from tests.emulator.peer import raw_connection

FOR_EVER = "P10675199DT2H48M5.4775807S"
BACKLOG = "contoso%2Fx-servicebus-transfer%2F0"


async def test_a_backlog_queue_reads_back_element_for_element(manager: Manager) -> None:
    status, text = await manager.put(
        BACKLOG,
        "<LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>5120</MaxSizeInMegabytes>"
        f"<DefaultMessageTimeToLive>{FOR_EVER}</DefaultMessageTimeToLive>"
        "<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>"
        "<MaxDeliveryCount>2147483647</MaxDeliveryCount><EnableBatchedOperations>true</EnableBatchedOperations>"
        f"<AutoDeleteOnIdle>{FOR_EVER}</AutoDeleteOnIdle>",
    )
    assert status == 201
    found = elements_of(text)
    assert found.pop("CreatedAt") == found.pop("UpdatedAt")
    assert list(found.items()) == [
        ("LockDuration", "PT1M"),
        ("MaxSizeInMegabytes", "5120"),
        ("RequiresDuplicateDetection", "false"),
        ("RequiresSession", "false"),
        ("DefaultMessageTimeToLive", FOR_EVER),
        ("DeadLetteringOnMessageExpiration", "true"),
        ("DuplicateDetectionHistoryTimeWindow", "PT10M"),
        ("MaxDeliveryCount", "2147483647"),
        ("EnableBatchedOperations", "true"),
        ("SizeInBytes", "0"),
        ("MessageCount", "0"),
        ("IsAnonymousAccessible", "false"),
        ("AuthorizationRules", ""),
        ("Status", "Active"),
        ("SupportOrdering", "true"),
        ("AutoDeleteOnIdle", FOR_EVER),
        ("EnablePartitioning", "false"),
        ("EntityAvailabilityStatus", "Available"),
        ("EnableExpress", "false"),
        ("MaxMessageSizeInKilobytes", "256"),
    ]
    assert read(text).findtext(f"{ATOM}title") == "contoso/x-servicebus-transfer/0"
    later = elements_of((await manager.ask("GET", BACKLOG + "?enrich=true"))[1])
    assert (later.pop("CountDetails"), later.pop("AccessedAt")) == ("", "0001-01-01T00:00:00Z")
    assert later == elements_of(text)


async def test_entities_with_a_partition_that_is_down_are_limited(manager: Manager) -> None:
    await manager.put("plain")
    await manager.put("parts", "<EnablePartitioning>true</EnablePartitioning>")
    await manager.put("news", "<EnablePartitioning>true</EnablePartitioning>", kind="TopicDescription")
    await manager.put("news/subscriptions/all", kind="SubscriptionDescription")
    kinds = {"plain": "Queue", "parts": "Queue", "news": "Topic", "news/subscriptions/all": "Subscription"}

    async def availability() -> dict[str, str]:
        found = {}
        for path, kind in kinds.items():
            status, text = await manager.ask("GET", f"{path}?api-version=2021-05")
            assert status == 200
            found[path] = dict(elements_of(text, f"{kind}Description"))["EntityAvailabilityStatus"]
        return found

    every = dict.fromkeys(kinds, "Available")
    with manager.emulator.faults.during("partition-down", "contoso", partition=3):
        assert await availability() == {**dict.fromkeys(kinds, "Limited"), "plain": "Available"}
    assert await availability() == every


async def test_an_api_version_has_its_elements(manager: Manager) -> None:
    newer = ("MaxMessageSizeInKilobytes", "SqlFilterCount", "CorrelationFilterCount")
    await manager.put("orders", kind="TopicDescription")
    for version, count in (("2017-04", 0), ("2021-05", 1), ("2024-05", 3)):
        _, text = await manager.ask("GET", f"orders?api-version={version}")
        assert [name for name in elements_of(text, "TopicDescription") if name in newer] == [*newer[:count]]


@pytest.mark.parametrize(
    "body",
    [
        entry("<MaxSizeInMegabytes>1024</MaxSizeInMegabytes><LockDuration>PT1M</LockDuration>"),
        entry("<LockDuration>PT6M</LockDuration>"),
        entry("<DefaultMessageTimeToLive>P10675199DT2H48M5.477581S</DefaultMessageTimeToLive>"),
        entry("<Colour>red</Colour>"),
        entry("<LockDuration>PT1M</LockDuration>" * 2),
        entry('<LockDuration xmlns="urn:other">PT1M</LockDuration>'),
        entry("", kind="RelayDescription"),
        entry("<LockDuration>PT1M</LockDuration>")[:-3],
        "<entry/>",
        "",
        "not xml",
        b"\xff\xfe<\x00",
        '<?xml version="1.0" encoding="nonsense"?><a/>',
        '<!DOCTYPE entry [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>' + entry("<UserMetadata>&b;</UserMetadata>"),
        '<!DOCTYPE entry SYSTEM "http://192.0.2.1/">' + entry(""),
        ('<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>').encode("utf-16"),
        entry(f"<UserMetadata>{'x' * 70_000}</UserMetadata>"),
        "<a>" * 10_000,
        "<a>" * 9_000 + "</a>" * 9_000,
        entry("<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Fly</AccessRights></Rights>"
              "</AuthorizationRule></AuthorizationRules>"),
    ],
)  # fmt: skip
async def test_an_invalid_description_creates_nothing(manager: Manager, body) -> None:
    status, text = await manager.ask("PUT", "orders", body)
    assert (status, sub_code(text)) == (400, 40000)
    assert read(text).findtext("Code") == "400"
    assert manager.namespace.queues() == []


@pytest.mark.parametrize("count", [100, 250])
async def test_a_list_of_full_pages_has_links(manager: Manager, count: int) -> None:
    for index in range(count):
        manager.namespace.create_queue(f"q{index:03}")
    seen: list[str] = []
    path = "$Resources/queues?$skip=0&$top=500&api-version=2021-05"
    while path:
        status, text = await manager.ask("GET", path)
        assert status == 200
        feed = read(text)
        seen += [title.text for title in feed.iterfind(f"{ATOM}entry/{ATOM}title")]
        links = {link.get("rel"): link.get("href") for link in feed.iterfind(f"{ATOM}link")}
        path = links.get("next", "").partition(manager.namespace.authority + "/")[2]
    assert seen == [f"q{index:03}" for index in range(count)]


@pytest.mark.parametrize(
    "path",
    [
        *("$Resources/queues", "$resources/topics?$skip=7", "t/subscriptions?$skip=7", "n"),
        *("n/subscriptions", "n/subscriptions/s", "n/subscriptions/s/rules", "t/subscriptions/s/rules?$skip=1"),
    ],
)
async def test_an_empty_list_or_a_missing_entity_is_an_empty_feed(manager: Manager, path: str) -> None:
    manager.namespace.create_topic("t").create_subscription("s")
    status, text = await manager.ask("GET", path)
    assert (status, read(text).tag) == (200, f"{ATOM}feed")
    assert read(text).find(f"{ATOM}entry") is None


SHAPES = [
    # method, path as it is asked for, names of its entry or entries: id, self link, others
    ("GET", "a/q?enrich=x&api-version=2017-04", "a/q?enrich=x&api-version=2017-04", None),
    ("GET", "A/Q?", "A/Q", None),
    ("PUT", "a/q?api-version=2021-05", "a/q?api-version=2021-05", None),
    ("GET", "$Resources/queues?$top=9&api-version=2012-03", "a/q?api-version=2012-03", "../a/q?api-version=2012-03"),
    ("GET", "T/subscriptions?", "t/Subscriptions/s", "subscriptions/s"),
    ("GET", "t/Subscriptions/s/rules?", "t/Subscriptions/s/Rules/$Default", "rules/$Default"),
    ("GET", "t/subscriptions/s/rules/$default?", "sb:t/subscriptions/s/rules/$default", None),
]


@pytest.mark.parametrize(("method", "path", "uri", "relative"), SHAPES)
async def test_an_entry_has_the_services_shape(
    manager: Manager, method: str, path: str, uri: str, relative: str | None
) -> None:
    """A single one is named as it was asked for, one of a list by its own address, relative to that of the list."""
    base = f"http://{manager.namespace.authority}"
    manager.namespace.create_queue("a/q")
    manager.namespace.create_topic("t").create_subscription("s")
    status, text = await manager.ask(method, path, entry() if method == "PUT" else b"", If_Match="*")
    listed = relative is not None
    found = read(text).find(f"{ATOM}entry") if listed else read(text)
    kind = "feed" if listed else "entry"
    assert (status, manager.last["Content-Type"]) == (200, f"application/atom+xml;type={kind};charset=utf-8")
    wanted = f"sb{base[4:]}/{uri[3:]}" if uri.startswith("sb:") else f"{base}/{uri}"
    if listed:
        asked = f"{base}/{path.rstrip('?')}"  # the client sends no empty query
        assert found.get("{http://www.w3.org/XML/1998/namespace}base") == asked
        assert read(text).findtext(f"{ATOM}id") == read(text).find(f"{ATOM}link").get("href") == asked
    assert found.findtext(f"{ATOM}id") == wanted
    assert found.find(f"{ATOM}link").get("href") == (relative or wanted)
    assert (found.find(f"{ATOM}author") is not None) == ("subscriptions" not in path.lower())
    assert (found.find(f"{ATOM}published") is None) == (method == "PUT")
    assert ("ETag" in manager.last) == (not listed)


async def test_a_creation_has_no_etag_and_rules_no_empty_properties(manager: Manager) -> None:
    manager.namespace.create_topic("t").create_subscription("s")
    await manager.put("q")
    assert "ETag" not in manager.last
    sql = '<Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>'
    for name, elements in (("sql", sql), ("like", '<Filter i:type="CorrelationFilter"><Label>l</Label></Filter>')):
        _, made = await manager.put(f"t/subscriptions/s/rules/{name}", elements, "RuleDescription")
        _, later = await manager.ask("GET", f"t/subscriptions/s/rules/{name}")
        assert ("Properties" in later, "Parameters" in made, "Parameters" in later) == (False, False, name == "sql")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("startswith(path%2c+%27contoso%2fx-servicebus-transfer%2f%27)+eq+true", ["0", "1"]),
        ("startswith(path,%20'CONTOSO/x-servicebus-transfer/1')", ["1"]),
        ("startswith(path,'none')", []),
        ("", ["0", "1", "orders"]),
    ],
)
async def test_queues_are_filtered_by_the_start_of_their_path(manager: Manager, query: str, found: list[str]) -> None:
    for path in ("contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1", "orders"):
        manager.namespace.create_queue(path)
    seen: list[str] = []
    path = f"$Resources/Queues/?$skip=0&$top=1&$filter={query}&api-version=2014-09"
    while path:
        feed = read((await manager.ask("GET", path))[1])
        seen += [title.text.rpartition("/")[2] for title in feed.iterfind(f"{ATOM}entry/{ATOM}title")]
        links = {link.get("rel"): link.get("href") for link in feed.iterfind(f"{ATOM}link")}
        path = links.get("next", "").partition(manager.namespace.authority + "/")[2]
    assert seen == found


@pytest.mark.parametrize(
    "query", ["$skip=-1", "$top=x", "$top=" + "9" * 5000, "api-version=2012-02", "$filter=createdAt%20gt%201"]
)
async def test_an_invalid_query_is_refused(manager: Manager, query) -> None:
    status, text = await manager.ask("GET", f"$Resources/queues?{query}")
    assert (status, sub_code(text)) == (400, 40000)


def listener_token(manager: Manager) -> str:
    """Return a token that is valid, and without Manage."""
    listener = AuthorizationRule("listener", "key one", "key two", frozenset({AccessRight.LISTEN}))
    manager.namespace.keys = (manager.namespace.keys[0], listener)
    return manager.token(listener)


async def test_only_a_valid_token_with_manage_is_accepted(manager: Manager) -> None:
    wrong = AuthorizationRule("RootManageSharedAccessKey", "wrong", "wrong")
    bad = ["", manager.token(wrong), manager.token(seconds=-1), manager.token(path="/other"), "Bearer eyJ"]
    for token in bad:
        for method, path in (("GET", "orders"), ("PUT", "orders"), ("GET", "$Resources/queues")):
            status, text = await manager.ask(method, path, entry(""), token=token)
            assert (status, sub_code(text)) == (401, 40100)
    status, _ = await manager.ask("PUT", "orders", entry(""), token=listener_token(manager))
    assert (status, manager.namespace.queues()) == (401, [])
    status, _ = await manager.ask("PUT", "orders", entry(""), token=manager.token(path="/orders"))
    assert status == 201


READ = "Manage,EntityRead claims required for this operation."
WRITE, DELETE = (f"Authorization failed for specified action: Manage,Entity{verb}." for verb in ("Write", "Delete"))


async def test_a_token_without_manage_learns_only_that_an_entity_is_missing(manager: Manager) -> None:
    token = listener_token(manager)
    status, text = await manager.ask("GET", "orders", token=token)
    assert (status, "<entry" in text, "<feed" in text) == (200, False, True)
    for method, path, detail in (
        ("PUT", "orders", WRITE),
        ("DELETE", "orders", DELETE),
        ("GET", "$Resources/queues", READ),
        ("GET", "$Resources/topics", READ),
    ):
        status, text = await manager.ask(method, path, entry(""), token=token)
        assert (status, (read(text).findtext("Detail") or "").partition(" TrackingId:")[0]) == (401, detail)


async def test_a_refusal_below_a_topic_is_a_reason_phrase(manager: Manager) -> None:
    async with raw_connection(manager.namespace.authority) as (reader, writer):
        target = "/topic/Subscriptions/s/rules"
        head = f"GET {target}?api-version=2021-05 HTTP/1.1\r\nHost: localhost\r\n"
        writer.write(f"{head}Authorization: {listener_token(manager)}\r\nContent-Length: 0\r\n\r\n".encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert answer.startswith(
        "HTTP/1.1 401 SubCode=40100: Unauthorized : Unauthorized access for 'EnumerateRules' operation on endpoint "
        f"'sb://localhost{target}'. Tracking Id: "
    )
    assert "Content-Length: 0" in answer


async def test_an_entitys_rules_are_kept_and_sign_tokens() -> None:
    rules = (
        '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        "<Rights><AccessRights>Manage</AccessRights><AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights>"
        "</Rights><KeyName>own &amp; only</KeyName><PrimaryKey>a key</PrimaryKey>"
        "</AuthorizationRule></AuthorizationRules>"
    )

    async with open_manager() as manager:
        _, text = await manager.put("orders", rules)
        (rule,) = manager.namespace.queue("orders").description.authorization_rules
        assert (rule.key_name, rule.primary_key) == ("own & only", "a key")
        assert len(rule.secondary_key) == 44
        assert "<KeyName>own &amp; only</KeyName><PrimaryKey>a key</PrimaryKey>" in text
        own = manager.token(rule, "/orders")
        assert (await manager.ask("GET", "orders", token=own))[0] == 200
        assert (await manager.ask("GET", "$Resources/queues", token=own))[0] == 401
        assert "Time>" not in text
        times = (
            "<CreatedTime>2026-01-02T03:04:05.1234567Z</CreatedTime><ModifiedTime>2026-02-03T00:00:00Z</ModifiedTime>"
        )
        timed = rules.replace("<KeyName>", f"{times}<KeyName>")
        status, text = await manager.put("orders", timed, If_Match="*", token=own)
        assert (status, times in text) == (200, True)


async def test_a_forwarding_target_reads_back_as_a_whole_address(manager: Manager) -> None:
    whole = f"sb://{manager.namespace.authority}/target"
    for path in ("target", "a/target", "dead/letters"):
        manager.namespace.create_queue(path)
    for name, given in (("bare", "target"), ("whole", whole)):
        _, text = await manager.put(name, f"<ForwardTo>{given}</ForwardTo>")
        assert elements_of(text)["ForwardTo"] == whole
    given = "<ForwardTo>SB://LocalHost:5/A/Target</ForwardTo>"
    given += "<ForwardDeadLetteredMessagesTo>Dead/Letters</ForwardDeadLetteredMessagesTo>"
    _, text = await manager.put("cased", given)
    assert elements_of(text)["ForwardTo"] == "sb://localhost:5/A/Target"
    dead_letters = f"sb://{manager.namespace.authority}/Dead/Letters"
    assert elements_of(text)["ForwardDeadLetteredMessagesTo"] == dead_letters


async def test_other_methods_are_not_allowed(manager: Manager) -> None:
    below = [f"t/subscriptions{rest}" for rest in ("", "/s", "/s/rules", "/s/rules/r")]
    for path in ("orders/messages", "$Resources/queues", "t", *below):
        status, text = await manager.ask("POST", path)
        assert (status, read(text).findtext("Code")) == (405, "405")


async def test_a_bug_is_answered_with_the_services_text(monkeypatch, caplog) -> None:
    kept = "SharedAccessKey=secret"

    def failing(*_: object) -> None:
        raise RuntimeError(kept)

    async with open_manager() as manager:
        await manager.put("orders")
        with monkeypatch.context() as broken:
            broken.setattr(manager.namespace, "_find", failing)
            status, text = await manager.ask("GET", "orders")
        assert (status, "SubCode=50000" in text, kept in text) == (500, True, False)
        assert (await manager.ask("GET", "orders"))[0] == 200
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert kept not in caplog.text


@pytest.mark.parametrize("path", ["/[", "/orders", "//["])
async def test_two_leading_slashes_are_no_host(manager: Manager, path) -> None:
    await manager.put("orders")
    ask = f"GET /{path}?api-version=2021-05 HTTP/1.1\r\nHost: localhost\r\nAuthorization: {manager.token()}\r\n"
    async with raw_connection(manager.namespace.authority) as (reader, writer):
        writer.write(f"{ask}Connection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode()
    assert answer.startswith("HTTP/1.1 200")
    assert ("QueueDescription" in answer) is (path == "/orders")


@pytest.mark.parametrize(
    ("status", "begins"),
    [
        (401, "Unauthorized"),
        (403, "Ip has been"),
        (409, "SubCode=40901. Another"),
        (429, "SubCode=50004. The request was terminated"),
        (500, "SubCode=50000. Internal"),
        (503, "SubCode=50300. "),
    ],
)
async def test_count_requests_are_refused_with_the_services_text(manager: Manager, status: int, begins: str) -> None:
    manager.emulator.faults.refuse_requests("contoso", status, count=2)
    for _ in range(2):
        answered, text = await manager.ask("GET", "$Resources/queues")
        assert answered == status
        assert read(text).findtext("Code") == str(status)
        assert read(text).findtext("Detail").startswith(begins)
    assert (await manager.ask("GET", "$Resources/queues"))[0] == 200


async def test_only_one_entity_or_method_is_refused(manager: Manager) -> None:
    faults = manager.emulator.faults
    fault = faults.refuse_requests("contoso", 409, "Orders", method="PUT", sub_code=40900)
    for _ in range(3):
        status, text = await manager.put("orders")
        assert (status, sub_code(text)) == (409, 40900)
    assert (await manager.ask("GET", "orders"))[0] == 200
    assert (await manager.put("orders2"))[0] == 201
    faults.end(fault)
    assert (await manager.put("orders"))[0] == 201
