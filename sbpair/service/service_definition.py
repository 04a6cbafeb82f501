"""Definitions of services that start a syphon: files for systemd, Kubernetes, Container Apps and Compose.

Invariant: a definition names secrets, and has none. Every value is quoted for its language.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Final

from sbpair.errors import UsageError
from sbpair.model.pair import Identity
from sbpair.model.pair_variables import pair_variables

if TYPE_CHECKING:
    from sbpair.model.pair import Pair

STATE: Final = "/var/lib"
"""The parent of `sbpair`, in which a service keeps its state."""

HEALTH_PORT: Final = 8081
MAX_NAME = 32
PROGRAM: Final = "/usr/local/bin/sbpair"

_NAME = re.compile(rf"[a-z]([a-z0-9-]{{0,{MAX_NAME - 2}}}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_CRON_FIELD = re.compile(r"[0-9A-Za-z*/,-]+")
CRON_LIMITS = (59, 23, 31, 12, 7)
"""The largest number of minute, hour, day, month and weekday."""


@dataclass(frozen=True, slots=True)
class ServiceDefinition:
    """A syphon to start. `words` are further options of it; `schedule` is a cron expression, or "" for a watch.

    `origin` is the command that wrote the definition. Raises UsageError.
    """

    pair: Pair
    name: str
    image: str
    program: str
    schedule: str
    words: tuple[str, ...]
    origin: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or "--" in self.name:
            hint = f"use small letters, digits and -, at most {MAX_NAME}, such as sbpair-syphon"
            raise UsageError(f"--name: {self.name!r} is not a name for a service", hint=hint)
        if not _IMAGE.fullmatch(self.image):
            raise UsageError(
                f"--image: {self.image!r} is not an image", hint="write registry.example.com/sbpair:1.0 or sbpair:1.0"
            )
        if self.schedule and not _is_cron(self.schedule):
            hint = "write minute, hour, day, month and weekday, such as '*/15 * * * *'"
            raise UsageError(f"--schedule: {self.schedule!r} is not a cron expression", hint=hint)
        if not self.program.startswith("/") or not self.program.isprintable():
            raise UsageError(f"--program: {self.program!r} is not an absolute path", hint=f"write {PROGRAM}")

    @property
    def environment(self) -> dict[str, str]:
        """Variables that describe the pair, without secrets."""
        return {"XDG_STATE_HOME": STATE, **pair_variables(self.pair)[0]}

    @property
    def secrets(self) -> tuple[str, ...]:
        """The variables whose values the service gets from elsewhere."""
        return pair_variables(self.pair)[1]

    @property
    def needs_identity(self) -> bool:
        """Whether the service signs in as an identity."""
        return any(isinstance(end.credential, Identity) for end in (self.pair.primary, self.pair.secondary))

    def arguments(self, *own: str) -> list[str]:
        """Return the words of the command, without the program."""
        mode = "--once" if self.schedule else "--watch"
        return ["syphon", mode, "--count", str(self.pair.backlog_queues), *own, *self.words]


def _is_cron(text: str) -> bool:
    fields = text.split(" ")
    return len(fields) == len(CRON_LIMITS) and all(
        _CRON_FIELD.fullmatch(field) and all(int(number) <= limit for number in re.findall(r"\d+", field))
        for field, limit in zip(fields, CRON_LIMITS, strict=True)
    )


def definition_text(kind: str, service: ServiceDefinition) -> str:
    """Return the file. Raises UsageError if that kind of service has no schedule."""
    if service.schedule and kind not in SCHEDULED:
        raise UsageError(
            f"--schedule goes with {' and '.join(SCHEDULED)} only", hint="leave it out: a watch moves messages at once"
        )
    return KINDS[kind](service)


# The languages.


def yaml_text(text: str) -> str:
    """Return a string of JSON, which is one of YAML, too."""
    return "".join(
        each if each.isprintable() else f"\\U{ord(each):08x}" for each in json.dumps(text, ensure_ascii=False)
    )


def systemd_word(text: str) -> str:
    """Return a word of a command line or an assignment in a unit."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    text = "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)
    return f'"{text}"' if re.search(r"[^\w@%+=:,./-]", text, re.ASCII) or not text else text


def _fill(template: str, blocks: Mapping[str, Sequence[str]], **values: str) -> str:
    """Return a template from the package's data with values, and with blocks of lines in place of lines `${name}`.

    An empty block leaves no line.
    """
    text = (files("sbpair.service") / "templates" / template).read_text("utf-8")

    def block(line: re.Match[str]) -> str:
        return textwrap.indent("".join(f"{each}\n" for each in blocks[line[2]]), line[1])

    parts = re.split(r"(?m)^( *\$\{\w+\}\n)", text)
    # Lines of blocks are complete: only the others have values.
    is_block = re.compile(r"( *)\$\{(\w+)\}\n")
    return "".join(
        is_block.sub(block, part) if is_block.fullmatch(part) else Template(part).substitute(values) for part in parts
    )


def _list(words: Sequence[str]) -> str:
    return f"[{', '.join(map(yaml_text, words))}]"


# The kinds.


def _systemd(service: ServiceDefinition) -> str:
    remarks = []
    if service.secrets:
        file = f"/etc/sbpair/{service.name}.env"
        remarks = [
            f"# The keys are in {file}, which only root may read (mode 0600):",
            *(f"#   {name}=..." for name in service.secrets),
        ]
    assignments = [f"Environment={systemd_word(f'{name}={value}')}" for name, value in service.environment.items()] + (
        [f"EnvironmentFile=/etc/sbpair/{service.name}.env"] if service.secrets else []
    )
    # A dollar sign begins a variable in a command line, and nowhere else.
    words = [systemd_word(each).replace("$", "$$") for each in (service.program, *service.arguments())]
    return _fill(
        "systemd.service",
        {"remarks": remarks, "environment": assignments},
        origin=service.origin,
        name=service.name,
        command=" ".join(words),
    )


def _kubernetes(service: ServiceDefinition) -> str:
    name, scheduled = service.name, bool(service.schedule)
    environment = _environment(service)
    for secret in service.secrets:
        environment += [f"- name: {secret}", "  valueFrom:", "    secretKeyRef:"]
        environment += [f"      name: {yaml_text(name)}", f"      key: {secret}"]
    remarks = []
    if service.secrets:
        literals = "".join(f" --from-file={each}={each}.txt" for each in service.secrets)
        remarks += [
            "#   Each NAME.txt has the value of that variable: write it with mode 0600, and delete it afterwards.",
            f"#   kubectl create secret generic {name}{literals}",
        ]
    if service.needs_identity:
        remarks.append("#   CLIENT_ID below is that of a workload identity with the roles of the two namespaces.")
    annotations = ["  annotations:", '    azure.workload.identity/client-id: "CLIENT_ID"']
    # A dollar sign and a parenthesis begin a variable.
    words = [each.replace("$(", "$$(") for each in service.arguments(*_container_words(service))]
    same = {"name": name, "identity": json.dumps(service.needs_identity)}
    pod = _fill(
        "kubernetes-pod.yaml",
        {"environment": environment, "probes": [] if scheduled else _lines("kubernetes-probes.yaml")},
        **same,
        image=yaml_text(service.image),
        arguments=_list(words),
    )
    workload = _fill(
        f"kubernetes-{'schedule' if scheduled else 'watch'}.yaml",
        {"pod": pod.splitlines()},
        **same,
        schedule=yaml_text(service.schedule),
    )
    blocks = {
        "remarks": remarks,
        "annotations": annotations if service.needs_identity else [],
        "workload": workload.splitlines(),
    }
    return _fill("kubernetes.yaml", blocks, **same, origin=service.origin)


def _containerapp(service: ServiceDefinition) -> str:
    scheduled = bool(service.schedule)
    stored = {name: name.lower().replace("_", "-") for name in service.secrets}
    environment = _environment(service)
    environment += [line for key, name in stored.items() for line in (f"- name: {key}", f"  secretRef: {name}")]
    if service.needs_identity:
        environment += ["- name: AZURE_CLIENT_ID", "  value: CLIENT_ID"]
    secrets = ["secrets:"] if stored else []
    for name in stored.values():
        secrets += [f"  - name: {name}", f"    keyVaultUrl: https://VAULT.vault.azure.net/secrets/{name}"]
        secrets += [f"    identity: {IDENTITY}"]
    container = _fill(
        "containerapp-container.yaml",
        {"environment": environment, "probes": [] if scheduled else _lines("containerapp-probes.yaml")},
        image=yaml_text(service.image),
        arguments=_list(service.arguments(*_container_words(service))),
    )
    remarks = [f"# The key vault has the keys: {', '.join(stored.values())}."] if stored else []
    return _fill(
        f"containerapp-{'schedule' if scheduled else 'watch'}.yaml",
        {"remarks": remarks, "secrets": secrets, "container": container.splitlines()},
        origin=service.origin,
        name=service.name,
        schedule=yaml_text(service.schedule),
    )


def _compose(service: ServiceDefinition) -> str:
    def escaped(text: str) -> str:
        return yaml_text(text.replace("$", "$$"))

    words = service.arguments(*_container_words(service, str(HEALTH_PORT)))
    environment = [f"{key}: {escaped(value)}" for key, value in service.environment.items()]
    environment += [f"{key}:" for key in service.secrets]
    remarks = [f"# The shell, or a file .env with mode 0600, has {' and '.join(service.secrets)}."]
    return _fill(
        "compose.yaml",
        {"remarks": remarks if service.secrets else [], "environment": environment},
        origin=service.origin,
        name=service.name,
        image=escaped(service.image),
        arguments=f"[{', '.join(map(escaped, words))}]",
    )


def _environment(service: ServiceDefinition) -> list[str]:
    entries = ((f"- name: {key}", f"  value: {yaml_text(value)}") for key, value in service.environment.items())
    return [line for entry in entries for line in entry]


def _container_words(service: ServiceDefinition, health: str = f"0.0.0.0:{HEALTH_PORT}") -> tuple[str, ...]:
    return (*(() if service.schedule else ("--health-port", health)), "--log-format", "json")


def _lines(template: str) -> list[str]:
    return _fill(template, {}).splitlines()


IDENTITY: Final = (
    "/subscriptions/SUBSCRIPTION/resourceGroups/GROUP/providers/Microsoft.ManagedIdentity"
    "/userAssignedIdentities/IDENTITY"
)
KINDS: dict[str, Callable[[ServiceDefinition], str]] = {
    "systemd": _systemd,
    "kubernetes": _kubernetes,
    "containerapp": _containerapp,
    "compose": _compose,
}
SCHEDULED: Final = ("kubernetes", "containerapp")
