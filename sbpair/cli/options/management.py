"""The management API that a command uses, and what Azure Resource Manager needs to find the namespaces."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from sbpair.errors import UsageError
from sbpair.model.pair import ResourceGroup

PANEL = "Management"


class Via(StrEnum):
    ATOM = "atom"
    ARM = "arm"


@dataclass(frozen=True, slots=True)
class Management:
    """The management API of a command."""

    via: Annotated[
        Via,
        typer.Option(
            "--via",
            metavar="API",
            help="atom: the namespace's own API; arm: Azure Resource Manager",
            rich_help_panel=PANEL,
        ),
    ] = Via.ATOM
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription",
            metavar="ID",
            help="Subscription id, with --via arm [env: AZURE_SUBSCRIPTION_ID]",
            rich_help_panel=PANEL,
        ),
    ] = None
    resource_group: Annotated[
        str | None,
        typer.Option(
            "--resource-group",
            metavar="NAME",
            help="Resource group, with --via arm [env: AZURE_RESOURCE_GROUP]",
            rich_help_panel=PANEL,
        ),
    ] = None


def group_of(management: Management, environ: Mapping[str, str] = os.environ) -> ResourceGroup | None:
    """Return where Resource Manager finds the namespaces; None for `--via atom`. Raises UsageError."""
    given = {"--subscription": management.subscription, "--resource-group": management.resource_group}
    if management.via is Via.ATOM:
        for option, value in given.items():
            if value is not None:
                raise UsageError(f"{option} is for Azure Resource Manager", hint="add --via arm, or leave it out")
        return None
    subscription = _found(management.subscription, "--subscription", "AZURE_SUBSCRIPTION_ID", environ)
    return ResourceGroup(
        subscription, _found(management.resource_group, "--resource-group", "AZURE_RESOURCE_GROUP", environ)
    )


def _found(flag: str | None, option: str, variable: str, environ: Mapping[str, str]) -> str:
    found = environ.get(variable) if flag is None else flag
    if not found:
        raise UsageError(f"--via arm needs {option}", hint=f"give it, or set {variable}")
    return found
