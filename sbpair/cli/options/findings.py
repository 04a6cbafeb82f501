"""The findings of --fail-on, and the warning that names those an exit code is for."""

from collections.abc import Collection, Mapping

from sbpair.cli.render.screen import Screen
from sbpair.errors import UsageError
from sbpair.management.audit_findings import AuditFinding

ALL, NONE = "all", "none"


def findings_of(text: str, known: Collection[AuditFinding]) -> frozenset[AuditFinding]:
    """Return the findings of a list such as `missing,extra`. Raises UsageError."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in (*known, ALL, NONE)]
    if unknown or not names:
        what = f"--fail-on: {unknown[0]!r} is not a finding" if unknown else "--fail-on names no finding"
        raise UsageError(what, hint=f"expected one or more of {', '.join((*known, ALL, NONE))}, separated by commas")
    if NONE in names and len(set(names)) > 1:
        raise UsageError(f"--fail-on {NONE} cannot be combined with others", hint="leave it out, or the others")
    return frozenset(known) if ALL in names else frozenset(AuditFinding(name) for name in names if name != NONE)


def failed_on(
    screen: Screen, found: Mapping[AuditFinding, Collection[object]], kinds: Collection[AuditFinding]
) -> bool:
    """Return whether a kind of --fail-on was found, and warn of all that were, with how many there are."""
    failing = [f"{kind} ({len(each)})" for kind, each in found.items() if each and kind in kinds]
    if failing:
        screen.warn(f"exit code 3 for {', '.join(failing)}")
    return bool(failing)
