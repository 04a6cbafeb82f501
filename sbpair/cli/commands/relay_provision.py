"""`sbpair relay provision`: creates the hybrid connections of a relay by Resource Manager, and reports drift."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.completion import relays
from sbpair.cli.options.common import CONFIG, argument, flag, option
from sbpair.cli.options.values import resource_group_of, selected_relay
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.table import columns
from sbpair.errors import ExitCode, SbpairError

if TYPE_CHECKING:
    from sbpair.model.pair import ResourceGroup
    from sbpair.relay.relay_settings import ConfiguredRelay

SCHEMA = "sbpair/relay-provision/1"


@dataclass(slots=True)
class ProvisionedSide:
    """The outcome of one side. `differences` are property, expected and actual value."""

    side: str
    namespace: str
    path: str
    outcome: str
    differences: list[tuple[str, object, object]] = field(default_factory=list)
    error: SbpairError | None = None


def provision(
    *,
    name: str = argument("NAME", "Relay in the configuration file", complete=relays),
    dry_run: bool = flag("--dry-run", "Only print what would be created"),
    strict: bool = flag("--strict", "Exit 3 if an existing hybrid connection differs"),
    subscription: str | None = option("--subscription ID", "Subscription id [env: AZURE_SUBSCRIPTION_ID]"),
    resource_group: str | None = option("--resource-group NAME", "Resource group [env: AZURE_RESOURCE_GROUP]"),
    config: Path | None = CONFIG,
    screen: Screen,
) -> int:
    """Create the missing hybrid connections of a relay in both namespaces.

    Uses Azure Resource Manager, as the identity that is signed in. Senders need a token. Existing hybrid connections
    are compared and never changed. Needs the extra sbpair[relay].

    Examples:
      sbpair relay provision service --dry-run
      sbpair relay provision service --resource-group relays

    Exit codes: 3 one differs, with --strict; 5 access denied; 6 unreachable; 7 azure-mgmt-relay is not installed
    """
    group = resource_group_of("relay provision", subscription, resource_group)
    relay = selected_relay(name, config, screen)
    found = run(_provision(relay, group, dry_run=dry_run))
    sides = [
        {
            "side": each.side,
            "namespace": each.namespace,
            "path": each.path,
            "outcome": each.outcome,
            "differences": [
                {"property": name, "expected": expected, "actual": actual}
                for name, expected, actual in each.differences
            ],
            "reason": each.error.message if each.error else "",
            "hint": each.error.hint if each.error else "",
        }
        for each in found
    ]
    rows = [
        (each.side, f"{each.path} in {each.namespace}", each.outcome.replace("_", " "), _note(each)) for each in found
    ]
    table = columns([("SIDE", "ENDPOINT", "OUTCOME", "NOTE"), *rows])
    screen.result(SCHEMA, {"relay": relay.name, "dry_run": dry_run, "sides": sides}, table)
    screen.hints(each.error for each in found if each.error)
    if errors := [each.error for each in found if each.error]:
        return errors[0].exit_code
    drifted = any(each.outcome == "drifted" for each in found)
    return ExitCode.PARTIAL_OR_FINDINGS if strict and drifted else ExitCode.DONE


def _note(side: ProvisionedSide) -> str:
    if side.error is not None:
        return side.error.message
    return "; ".join(f"{name} is {actual}, expected {expected}" for name, expected, actual in side.differences)


async def _provision(relay: "ConfiguredRelay", group: "ResourceGroup", *, dry_run: bool) -> list[ProvisionedSide]:
    """Provision one side after the other: an error of one does not keep the other from being tried."""
    from sbpair.azure.arm import HybridDescription, open_relay_arm

    wanted = HybridDescription()
    done = []
    for side, endpoint in relay.endpoints.items():
        path = relay.pair[side].path
        made = ProvisionedSide(side, endpoint.name, path, "failed")
        done.append(made)
        try:
            async with open_relay_arm(endpoint, group) as namespace:
                existing = await namespace.find(path)
                if existing is None and not dry_run:
                    await namespace.create(path, wanted)
        except SbpairError as error:
            made.error = error
            continue
        if existing is None:
            made.outcome = "would_create" if dry_run else "created"
            continue
        actual = asdict(existing)
        names = {"requires_client_authorization": "requiresClientAuthorization", "user_metadata": "userMetadata"}
        made.differences = [
            (names[key], value, actual[key]) for key, value in asdict(wanted).items() if actual[key] != value
        ]
        made.outcome = "drifted" if made.differences else "existing"
    return done
