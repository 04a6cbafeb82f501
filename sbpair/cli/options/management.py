"""Through which management side a command works on namespaces: `--via`, and what Resource Manager needs to know."""

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
    """Whom a command asks."""

    via: Annotated[
        Via,
        typer.Option(
            "--via",
            metavar="atom|arm",
            help="Through the namespace itself (atom), or through Azure Resource Manager (arm), signing in as az login"
            " did whatever the namespaces have",
            rich_help_panel=PANEL,
        ),
    ] = Via.ATOM
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription",
            metavar="ID",
            help="With --via arm: the Azure subscription's id [AZURE_SUBSCRIPTION_ID]",
            rich_help_panel=PANEL,
        ),
    ] = None
    resource_group: Annotated[
        str | None,
        typer.Option(
            "--resource-group",
            metavar="NAME",
            help="With --via arm: the resource group of the namespaces [AZURE_RESOURCE_GROUP]",
            rich_help_panel=PANEL,
        ),
    ] = None


def group_of(management: Management, environ: Mapping[str, str] = os.environ) -> ResourceGroup | None:
    """Where Resource Manager finds the namespaces; None for `--via atom`. Raises UsageError for what is missing."""
    said = {"--subscription": management.subscription, "--resource-group": management.resource_group}
    if management.via is Via.ATOM:
        for option, value in said.items():
            if value is not None:
                raise UsageError(f"{option} is for Azure Resource Manager", hint="say --via arm, or leave it out")
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
