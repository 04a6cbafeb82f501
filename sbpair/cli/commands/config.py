"""`sbpair config`: prints the merged configuration and the source of each value."""

import os
from pathlib import Path

from sbpair import config
from sbpair.cli.options.common import COUNT, STATE, PairSelection, flag
from sbpair.cli.options.values import flags_of, in_words, warn_of_unknown_variables
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.table import columns
from sbpair.config.file import PREFIX, all_namespaces, create_file, file_setting, has_pair
from sbpair.config.setting import Flags
from sbpair.errors import UsageError
from sbpair.relay.relay_settings import configured_relays

SCHEMA = "sbpair/config/1"
EXAMPLE = """\
# Pairs of namespaces for sbpair: choose one with --pair NAME or SBPAIR_PAIR, unless there is only one.
# No secrets belong here: connection_string_env is the NAME of an environment variable.
# sbpair help config describes all keys.

[pairs.orders]
backlog_queues = 10
failover_interval = "60s"                         # how long an entity fails before sends go to the backlog
ping_interval = "60s"                             # between pings to a failed-over entity

[pairs.orders.primary]
namespace = "contoso.servicebus.windows.net"      # signs in as az login did, or as a managed identity
# name = "contoso"                                # in backlog paths, if it is not the host's first label
# endpoint = "10.0.0.4:5671"                      # to connect to, if not the namespace: a proxy, a private link
# tls = true                                      # false for an emulator
# ca_file = "/etc/ssl/private-link.pem"           # certificates to trust instead of the machine's
# transport = "websocket"                         # AMQP over port 443, where 5671 is blocked [default: tcp]
# proxy = "http://proxy.example.com:3128"         # an HTTP proxy without a password
# proxy_env = "CORPORATE_PROXY"                   # or the NAME of the variable with an HTTP proxy and its password

[pairs.orders.secondary]
connection_string_env = "CONTOSO_DR"              # export CONTOSO_DR='Endpoint=sb://contoso-dr…'

# A namespace for --namespace archive and archive:ENTITY, of no pair, with the keys of a side:
# [namespaces.archive]
# namespace = "contoso-archive.servicebus.windows.net"

# A relay: a hybrid connection in each of two namespaces of Azure Relay, whose paths may differ. See sbpair help relay.
# [relays.service.primary]
# namespace = "contoso-relay.servicebus.windows.net"
# path = "service"
# [relays.service.secondary]
# connection_string_env = "SERVICE_DR"            # its EntityPath is the path
"""


def command(
    *,
    path: bool = flag("--path", "Print the path of the configuration file", excludes=("--example", "--init")),
    example: bool = flag("--example", "Print an example configuration file", excludes="--init"),
    init: bool = flag("--init", "Create the configuration file with that example"),
    count: int | None = COUNT,
    state: Path | None = STATE,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Show the effective configuration and the source of each value.

    Options win over SBPAIR_ variables, and these over the configuration file. Connects to nothing and prints no secret.

    Examples:
      sbpair config
      sbpair config --init

    See also: sbpair help config
    """
    flags = flags_of(connection, count=count, state=state)
    file = Path(str(file_setting(flags, os.environ).value))
    if init:
        create_file(file, EXAMPLE)
        screen.say("created: put your namespaces into it, then run sbpair config")
    if path or example or init:
        shown = {"example": EXAMPLE} if example else {"path": str(file), "exists": file.exists()}
        screen.result(SCHEMA, shown, [EXAMPLE.rstrip()] if example else [str(file)])
        return 0
    warn_of_unknown_variables(flags, screen)
    _require_some(flags, file)
    namespaces = all_namespaces(flags, os.environ)
    relays = configured_relays(flags, os.environ)
    found = config.effective(config.load(flags, os.environ), os.environ) if has_pair(flags, os.environ) else {}
    for each in namespaces:
        found |= config.effective_endpoint(f"{PREFIX}{each.name}", each.endpoint, each.settings, os.environ)
    for relay in relays:
        found |= relay.effective(os.environ)
    entries = [
        {"key": key, "value": setting.value, "source": setting.source, "origin": str(setting.origin)}
        for key, setting in found.items()
    ]
    rows = [(key, *in_words(setting)) for key, setting in found.items()]
    screen.result(SCHEMA, {"settings": entries}, columns([("SETTING", "VALUE", "FROM"), *rows]), entries)
    return 0


def _require_some(flags: Flags, file: Path) -> None:
    given = [each for each in (flags.pair, flags.config, flags.primary, flags.secondary) if each]
    if not given and not file.exists() and not any(os.environ.get(each) for each in config.VARIABLES):
        raise UsageError(
            f"nothing is configured: {file} does not exist, and no SBPAIR_ variable is set",
            hint="start with sbpair config --init; or export SBPAIR_PRIMARY_CONNECTION_STRING and"
            " SBPAIR_SECONDARY_CONNECTION_STRING",
        )
