"""Microsoft Fabric: a Spark job definition. Driver and executors fetch the secrets from Azure Key Vault.

Fabric's tokens are for Key Vault and storage, but not for Service Bus, and Python finds no identity of Azure there: a
service principal, itself in the vault, opens the archive, and signs in where the pair has no connection strings.
"""

from __future__ import annotations

import base64
import json
from pprint import pformat
from typing import Any

from sbpair.replay.platforms.job import COMMANDS, MAIN, PACKAGE, REQUIREMENTS, Files, Job, Platform
from sbpair.replay.secret_references import PRINCIPAL

MAIN_TEXT = '''"""The file that Spark starts: `main.py replay run ...`, in the words of sbpair's command line."""

import os
import runpy

from pyspark.sql import SparkSession

PACKAGE = {package!r}
ENVIRONMENT = {environment}
SETTINGS = {settings}

if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    executors = {{f"spark.executorEnv.{{name}}": value for name, value in ENVIRONMENT.items()}}
    spark = SparkSession.builder.config(map={{**SETTINGS, **executors}}).getOrCreate()
    spark.sparkContext.addPyFile(PACKAGE)
    runpy.run_module("sbpair", run_name="__main__")
'''
NEEDED = ("pyarrow>=16", "fabric-analytics-notebook-plugin")
FABRIC = "https://api.fabric.microsoft.com"


def _files(job: Job) -> Files:
    named = {variable: variable.replace("_", "-") for variable in job.secrets}
    references = {variable: f"https://{job.vault}.vault.azure.net/secrets/{name}" for variable, name in named.items()}
    main = MAIN_TEXT.format(
        package=f"{job.code}/{PACKAGE}",
        environment=pformat({**job.environment, **references}, width=110, sort_dicts=False),
        settings=pformat(job.settings(), width=110, sort_dicts=False),
    )
    definition: dict[str, Any] = {
        "executableFile": MAIN,
        "defaultLakehouseArtifactId": "",
        "mainClass": "",
        "additionalLakehouseIds": [],
        "retryPolicy": None,
        "commandLineArguments": " ".join(job.arguments()),
        "additionalLibraryUris": [],
        "language": "Python",
        "environmentArtifactId": None,
    }
    parts = {"SparkJobDefinitionV1.json": json.dumps(definition, indent=2), f"Main/{MAIN}": main}
    item = {
        "displayName": job.name,
        "type": "SparkJobDefinition",
        "definition": {"format": "SparkJobDefinitionV2", "parts": [_part(*each) for each in parts.items()]},
    }
    environment = {"referenceType": "ById", "itemId": "ENVIRONMENT", "workspaceId": "WORKSPACE"}
    store = "".join(
        f"az keyvault secret set --output none --vault-name {job.vault} --name {name} --file {variable}.txt\n"
        for variable, name in named.items()
    )
    text = f"""# {job.name} on Microsoft Fabric

Create an Environment with a runtime of Spark 3.5 or later and the public libraries of `{REQUIREMENTS}`. Put the ids of
it and of its workspace in place of those in `run.json`. The user who submits the job needs the role Key Vault Secrets
User in the vault and Storage Blob Data Contributor for the archive, which Spark reads in that user's name. Python opens
the archive as a service principal, which needs the second role, too: its tenant, id and secret are in the vault.
Executors must reach Service Bus.

{job.secret_files()}```sh
{store}az storage fs file upload --auth-mode login --account-name ACCOUNT --file-system CONTAINER \\
  --source {PACKAGE} --path PATH-job/{PACKAGE}    # to {job.code}/{PACKAGE}
API={FABRIC} ITEMS={FABRIC}/v1/workspaces/$WORKSPACE/items
az rest --resource "$API" --method post --url "$ITEMS" --body @item.json
az rest --resource "$API" --method post --url "$ITEMS/$ITEM/jobs/instances?jobType=sparkjob" --body @run.json  # submit
az rest --resource "$API" --method get --url "$ITEMS/$ITEM/jobs/instances"    # watch
az rest --resource "$API" --method post --url "$ITEMS/$ITEM/jobs/instances/$JOB/cancel"    # end at once
```

`commandLineArguments` in `executionData` of `run.json` replaces the words of one run.
{job.commands()}"""
    return {
        MAIN: main,
        "item.json": item,
        "run.json": {"executionData": {"environmentId": environment}},
        COMMANDS: text,
    }


def _part(path: str, text: str) -> dict[str, Any]:
    return {"path": path, "payload": base64.b64encode(text.encode()).decode(), "payloadType": "InlineBase64"}


PLATFORM = Platform(
    "Fabric",
    ("abfss",),
    r"[A-Za-z][A-Za-z0-9_-]{0,99}",
    "letters, digits, _ and -, at most 100",
    _files,
    requirements=NEEDED,
    secrets=PRINCIPAL,
    needs_vault=True,
)
