"""The environment variables of sbpair, and the settings that they give. Their secrets are never printed."""

from __future__ import annotations

from sbpair.config.setting import Environment, Layer, Origin, Secret, Setting, conflict, key_file, secret_in
from sbpair.model.connection_string import holds_secret
from sbpair.model.pair import SIDES

ADDRESS_KEYS = ("CONNECTION_STRING", "CONNECTION_STRING_FILE", "NAMESPACE")
IDENTITY_KEYS = ("IDENTITY", "CLIENT_ID", "TENANT", "AUTHORITY", "CLIENT_SECRET")
ENVIRONMENT_KEYS = (*ADDRESS_KEYS, *IDENTITY_KEYS, "NAME", "ENDPOINT", "CA_FILE", "TRANSPORT", "PROXY")
SECRET_KEYS = ("CONNECTION_STRING", "PROXY", "CLIENT_SECRET")
RELAY_KEYS = (*ADDRESS_KEYS, *IDENTITY_KEYS, "NAME", "PATH", "CA_FILE", "PROXY")
RELAY_VARIABLES = ("SBPAIR_RELAY", *(f"SBPAIR_RELAY_{side.upper()}_{key}" for side in SIDES for key in RELAY_KEYS))
VARIABLES = (
    "SBPAIR_CONFIG",
    "SBPAIR_PAIR",
    "SBPAIR_LOST",
    *(f"SBPAIR_{side.upper()}_{key}" for side in SIDES for key in ENVIRONMENT_KEYS),
    *RELAY_VARIABLES,
)
PAIR_VARIABLES = ("SBPAIR_PAIR", *(f"SBPAIR_{side.upper()}_{key}" for side in SIDES for key in ADDRESS_KEYS))


def refuse_secrets(environ: Environment) -> None:
    """Raise UsageError for a secret in a variable whose value is printed."""
    hidden = tuple(f"_{key}" for key in (*SECRET_KEYS, "NAMESPACE"))
    for variable in [each for each in VARIABLES if not each.endswith(hidden)]:
        if holds_secret(environ.get(variable, ""), is_setting=True):
            raise secret_in(variable)


def environment_layer(environ: Environment, prefix: str = "SBPAIR", keys: tuple[str, ...] = ENVIRONMENT_KEYS) -> Layer:
    """Return the settings of `prefix`_PRIMARY_… and `prefix`_SECONDARY_…, each with one of `keys`."""
    layer: dict[str, Setting] = {}
    for side in SIDES:
        variables = {key: f"{prefix}_{side.upper()}_{key}" for key in keys}
        given = {key: environ[variable] for key, variable in variables.items() if environ.get(variable)}
        addresses = [variables[key] for key in ADDRESS_KEYS if key in given]
        if len(addresses) > 1:
            raise conflict(addresses[0], addresses[1], "the environment")
        for key, text in given.items():
            setting = Setting(Secret(text) if key in SECRET_KEYS else text, variables[key], Origin.ENVIRONMENT)
            short = "address" if key in ADDRESS_KEYS else key.lower()
            is_file = key == "CONNECTION_STRING_FILE"
            layer[f"{side}.{short}"] = key_file(text, variables[key]) if is_file else setting
    return layer
