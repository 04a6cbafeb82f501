"""`sbpair export`: writes the entities of one namespace as infrastructure code, by `sbpair.planning`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from sbpair.cli.commands.management import read_entities
from sbpair.cli.next_command import written_command
from sbpair.cli.options.common import COUNT, PairSelection, argument, flag, option
from sbpair.cli.options.values import selected_pair
from sbpair.cli.render.screen import Screen, clean, plural
from sbpair.config.file import create_file
from sbpair.errors import UsageError
from sbpair.model.document import document
from sbpair.model.pair import Side

if TYPE_CHECKING:
    from sbpair.planning.entity_code import NamespaceCode

STDOUT = "-"
Language = Literal["bicep", "terraform"]


class ExportedEntity(NamedTuple):
    """An entity."""

    kind: Annotated[str, "Its kind", {"enum": ["queue", "topic", "subscription", "rule"]}]
    name: Annotated[str, "Its path", {"examples": ["events/Subscriptions/audit"]}]
    symbol: Annotated[str, "Its name in the code", {"examples": ["subscription_events_audit"]}]


@document("sbpair/export/1")
class ExportResult:
    """Entities of one namespace as infrastructure code. JSON Lines have the document."""

    language: Annotated[Language, "Language of the code"]
    side: Annotated[Side, "Side of the pair"]
    namespace: Annotated[str, "Name of the namespace"]
    backlog_queues: Annotated[int, "Number of backlog queues"]
    entities: Annotated[tuple[ExportedEntity, ...], "The other entities, in the order of their file"]
    needs: Annotated[tuple[str, ...], "Paths of forwarding targets that must exist, and are not described"]
    file: Annotated[str | None, "The written file; null without one"]
    code: Annotated[str | None, "The code; null if a file was written"]


def command(
    *,
    language: Language = argument("LANGUAGE", "bicep or terraform"),
    side: Side = option("--side SIDE", "Namespace: primary or secondary", default="secondary"),
    count: int | None = COUNT,
    entities: Path | None = option("--entities FILE", "Include the entities of this TOML file, as provision does"),
    partitioned: bool = flag("--partitioned", "Partition every queue and topic, as partitioned Premium requires"),
    write: str | None = option("--write FILE", "Write a new file [default: stdout]"),
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Write backlog queues, and entities of a file, as Bicep or Terraform.

    Each has the description that sbpair provision creates. The file is for one namespace: the secondary has the backlog
    queues, and both have the entities of --entities FILE, which shall be there; sbpair entities lists those that are.
    Nothing is contacted. The file holds names, and no secrets.

    Examples:
      sbpair export bicep --entities entities.toml --write secondary.bicep
      sbpair export terraform --side primary --entities entities.toml

    Exit codes: 2 wrong options or entities, or the file exists; 7 the file cannot be written

    See also: sbpair help planning
    """
    if side == "primary" and entities is None:
        raise UsageError(
            "the primary has no backlog queues to export", hint="add --entities FILE, or leave out --side primary"
        )
    if side == "primary" and count is not None:
        raise UsageError("--count goes with --side secondary only", hint="the primary has no backlog queues")
    pair = selected_pair(connection, screen, count=count)
    from sbpair.planning.entity_code import bicep, namespace_code, terraform

    options = {"--side": side, "--count": count, "--entities": entities, "--partitioned": partitioned}
    origin = clean(written_command(("export", language), options))
    code = namespace_code(pair, side, read_entities(entities), partitioned=partitioned, origin=origin)
    text = bicep(code) if language == "bicep" else terraform(code)
    target = None if write in (None, STDOUT) else write
    if target is not None:
        create_file(Path(target), text, options="--write")
    exported = tuple(ExportedEntity(each.entity.kind, each.entity.path, each.symbol) for each in code.resources)
    shown = None if target else text
    made = ExportResult(language, side, code.namespace, code.backlog_queues, exported, code.external, target, shown)
    screen.show(made, text.splitlines() if target is None else [_summary(target, code)])
    if code.external:
        screen.warn(f"forwarding targets that must exist already: {', '.join(code.external)}")
    return 0


def _summary(path: str, code: "NamespaceCode") -> str:
    parts = [plural(code.backlog_queues, "backlog queue")] if code.backlog_queues else []
    kinds = [each.entity.kind for each in code.resources]
    parts += [plural(kinds.count(kind), kind) for kind in dict.fromkeys(kinds)]
    return f"{path}: {', '.join(parts)} of {code.namespace}"
