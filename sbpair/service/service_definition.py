"""Definitions of services that start a syphon or a gateway, a template each: systemd, Kubernetes and others.

Invariant: a definition names secrets, and has none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sbpair.errors import UsageError
from sbpair.model.pair import Identity, Pair, pair_variables
from sbpair.template import filled

KINDS: Final = {
    "systemd": "systemd.service",
    "kubernetes": "kubernetes.yaml",
    "containerapp": "containerapp.yaml",
    "compose": "compose.yaml",
}
"""The templates of a syphon."""

GATEWAY_KINDS: Final = {"systemd": "gateway.service", "kubernetes": "gateway.yaml"}
APPLICATION_USER: Final = "10002"
"""The user of the application beside a gateway, unless --allow-user names one."""

SCHEDULED: Final = ("kubernetes", "containerapp")
STATE: Final = "/var/lib"
"""The parent of `sbpair`, in which a service keeps its state."""

MAX_NAME = 32
PROGRAM: Final = "/usr/local/bin/sbpair"

_NAME = re.compile(rf"[a-z]([a-z0-9-]{{0,{MAX_NAME - 2}}}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_CRON_FIELD = re.compile(r"[0-9A-Za-z*/,-]+")
CRON_LIMITS = (59, 23, 31, 12, 7)
"""The largest number of minute, hour, day, month and weekday."""


@dataclass(frozen=True, slots=True)
class ServiceDefinition:
    """A syphon or a gateway to start. `words` are further options of it.

    `kind` is one of KINDS, or of GATEWAY_KINDS; `schedule` is a cron expression, or "" for a watch. `origin` is the
    command that wrote the definition, `runs` is "syphon" or "gateway". Raises UsageError.
    """

    kind: str
    pair: Pair
    name: str
    image: str
    program: str
    schedule: str
    words: tuple[str, ...]
    origin: str
    runs: str = "syphon"

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
        # All users may write to an emptyDir, and only its own one to a directory in it.
        state = f"{STATE}/sbpair" if self.runs == "gateway" and self.kind == "kubernetes" else STATE
        return {"XDG_STATE_HOME": state, **pair_variables(self.pair, files=self.kind == "systemd")[0]}

    @property
    def secrets(self) -> tuple[str, ...]:
        """The variables whose values the service gets from elsewhere."""
        return pair_variables(self.pair, files=self.kind == "systemd")[1]

    @property
    def allowed_user(self) -> str:
        """The first user of --allow-user."""
        words = " ".join(self.words).replace("--allow-user=", "--allow-user ").split()
        return next((user for name, user in pairwise(words) if name == "--allow-user"), APPLICATION_USER)

    @property
    def has_identity(self) -> bool:
        """Whether the service signs in to a namespace with an identity, without a secret."""
        used = [end.credential for end in (self.pair.primary, self.pair.secondary)]
        return any(isinstance(each, Identity) and not each.secret for each in used)


def _is_cron(text: str) -> bool:
    fields = text.split(" ")
    return len(fields) == len(CRON_LIMITS) and all(
        _CRON_FIELD.fullmatch(field) and all(int(number) <= limit for number in re.findall(r"\d+", field))
        for field, limit in zip(fields, CRON_LIMITS, strict=True)
    )


def definition_text(service: ServiceDefinition) -> str:
    """Return the file. Raises UsageError if that kind of service has no schedule, or does not start a gateway."""
    if service.runs == "gateway" and service.kind not in GATEWAY_KINDS:
        kinds = " and ".join(GATEWAY_KINDS)
        raise UsageError(f"--for gateway goes with {kinds} only", hint="a gateway runs beside its application")
    if service.runs == "gateway" and service.schedule:
        raise UsageError("--schedule and --for gateway exclude each other", hint="leave it out: a gateway runs always")
    if service.schedule and service.kind not in SCHEDULED:
        raise UsageError(
            f"--schedule goes with {' and '.join(SCHEDULED)} only", hint="leave it out: a watch moves messages at once"
        )
    templates = GATEWAY_KINDS if service.runs == "gateway" else KINDS
    return filled("sbpair.service", templates[service.kind], service=service)
