"""The environment variables of sbpair, and the settings that they give. Their secrets are never printed."""

from __future__ import annotations

from sbpair.config.setting import Environment, Layer, Origin, Secret, Setting, conflict, secret_in
from sbpair.model.connection_string import holds_secret
from sbpair.model.pair import SIDES

ENVIRONMENT_KEYS = ("CONNECTION_STRING", "NAMESPACE", "NAME", "ENDPOINT", "CA_FILE", "TRANSPORT", "PROXY")
ADDRESS_KEYS = ("CONNECTION_STRING", "NAMESPACE")
SECRET_KEYS = ("CONNECTION_STRING", "PROXY")
RELAY_KEYS = ("CONNECTION_STRING", "NAMESPACE", "NAME", "PATH", "CA_FILE", "PROXY")
RELAY_VARIABLES = ("SBPAIR_RELAY", *(f"SBPAIR_RELAY_{side.upper()}_{key}" for side in SIDES for key in RELAY_KEYS))
VARIABLES = (
    "SBPAIR_CONFIG",
    "SBPAIR_PAIR",
    *(f"SBPAIR_{side.upper()}_{key}" for side in SIDES for key in ENVIRONMENT_KEYS),
    *RELAY_VARIABLES,
)
PAIR_VARIABLES = ("SBPAIR_PAIR", *(f"SBPAIR_{side.upper()}_{key}" for side in SIDES for key in ADDRESS_KEYS))


def refuse_secrets(environ: Environment) -> None:
    """Raise UsageError for a secret in a variable whose value is printed."""
    printed = [each for each in VARIABLES if not each.endswith(("_CONNECTION_STRING", "_PROXY", "_NAMESPACE"))]
    for variable in printed:
        if holds_secret(environ.get(variable, ""), is_setting=True):
            raise secret_in(variable)


def environment_layer(environ: Environment, prefix: str = "SBPAIR", keys: tuple[str, ...] = ENVIRONMENT_KEYS) -> Layer:
    """Return the settings of `prefix`_PRIMARY_… and `prefix`_SECONDARY_…, each with one of `keys`."""
    layer: dict[str, Setting] = {}
    for side in SIDES:
        variables = {key: f"{prefix}_{side.upper()}_{key}" for key in keys}
        given = {key: environ[variable] for key, variable in variables.items() if environ.get(variable)}
        if "CONNECTION_STRING" in given and "NAMESPACE" in given:
            raise conflict(variables["CONNECTION_STRING"], variables["NAMESPACE"], "the environment")
        for key, text in given.items():
            value = Secret(text) if key in SECRET_KEYS else text
            short = "address" if key in ADDRESS_KEYS else key.lower()
            layer[f"{side}.{short}"] = Setting(value, variables[key], Origin.ENVIRONMENT)
    return layer
