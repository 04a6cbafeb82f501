"""Job definitions of managed platforms: files to submit a replay there, with commands to watch and stop it.

Invariant: a definition names secrets, and has none. A platform that shows the keys of a job to its readers is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from sbpair.errors import MachineLacks, UsageError
from sbpair.model.connection_string import holds_secret
from sbpair.model.pair import Identity, Transport
from sbpair.replay.package import build_package
from sbpair.replay.spark import PLATFORM, SETTINGS

if TYPE_CHECKING:
    from sbpair.model.pair import Pair
    from sbpair.replay.package import Contents

NAME = "sbpair-replay"
MAIN, PACKAGE, REQUIREMENTS, COMMANDS = "main.py", "sbpair.zip", "requirements.txt", "README.md"
NEEDED = ("pandas>=2.2,<3", "pyarrow>=15")

MAIN_TEXT = '''"""The file that Spark starts: `main.py replay run ...`, in the words of sbpair's command line."""

import runpy
import sys

if __name__ == "__main__":
    if "--package" in sys.argv:
        sys.path.insert(0, sys.argv[sys.argv.index("--package") + 1])
    runpy.run_module("sbpair", run_name="__main__")
'''

VISIBLE = {"dataproc": "Dataproc Serverless", "synapse": "Synapse", "fabric": "Fabric"}
"""Platforms where a key would be shown, and where tasks cannot sign in with an identity of Azure either."""

REDACTED = "(?i)secret|password|token|access[.]?key|connection_string|proxy"
"""The names of settings whose values Spark hides in its pages and logs."""


@dataclass(frozen=True, slots=True)
class Job:
    """A replay to define. `environment` is open; `secrets` are variables whose values the platform keeps."""

    name: str
    archive: str
    environment: Mapping[str, str]
    secrets: tuple[str, ...]
    requirements: tuple[str, ...]
    queues: int

    @property
    def code(self) -> str:
        """The URL of the job's files, beside the archive."""
        return f"{self.archive}-job"

    def arguments(self, package: str | None = None) -> list[str]:
        """Return the words of the command line."""
        words = ["replay", "run", "--archive", self.archive, "--master", PLATFORM, "--count", str(self.queues)]
        words += ["--output", "json", "--quiet"]
        return [*words, "--package", package] if package else words

    def settings(self) -> dict[str, str]:
        """Return Spark's settings, which are also in force where Spark starts before the job does."""
        return {**SETTINGS, "spark.redaction.regex": REDACTED}

    def commands(self) -> str:
        """Return the commands that are the same everywhere."""
        return COMMON.format(archive=self.archive, requirements=REQUIREMENTS)


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform: the names and archives that it accepts, and its files by name, as text or as a document."""

    title: str
    schemes: tuple[str, ...]
    name: str
    name_rule: str
    files: Callable[[Job], dict[str, str | dict[str, Any]]]


def define_job(
    directory: Path, platform: str, pair: Pair, archive: str, name: str = NAME
) -> tuple[list[str], tuple[str, ...]]:
    """Write the directory. Returns its files, and the secrets to store. Raises UsageError, MachineLacks."""
    found = _platform(platform)
    _check(found, directory, archive, name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        contents, _ = build_package(directory / PACKAGE)
        job = _job(pair, archive.rstrip("/"), name, contents)
        texts: dict[str, str | dict[str, Any]] = {
            MAIN: MAIN_TEXT,
            REQUIREMENTS: "".join(f"{each}\n" for each in job.requirements),
            **found.files(job),
        }
        for file, content in texts.items():
            text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
            (directory / file).write_text(text)
    except OSError as error:
        raise MachineLacks(
            f"{directory} cannot be written: {error.strerror}", hint="choose a writable directory"
        ) from error
    return sorted([PACKAGE, *texts]), job.secrets


def _platform(name: str) -> Platform:
    if name in VISIBLE:
        raise UsageError(
            f"--for: {VISIBLE[name]} has no secrets for executors, only settings that its readers see",
            hint=f"choose one of {', '.join(PLATFORMS)}, or a cluster with sbpair replay run --print-submit",
        )
    if name not in PLATFORMS:
        raise UsageError(f"--for: {name!r} is not a platform", hint=f"expected one of {', '.join(PLATFORMS)}")
    return PLATFORMS[name]


def _check(platform: Platform, directory: Path, archive: str, name: str) -> None:
    if not re.fullmatch(platform.name, name):
        raise UsageError(f"--name: {platform.title} does not allow {name!r}", hint=f"use {platform.name_rule}")
    if holds_secret(archive, is_setting=True) or "?" in archive:
        raise UsageError(
            "--archive has parameters or a password", hint="name the bucket and the path alone: the job has an identity"
        )
    scheme, separator, rest = archive.partition("://")
    if not separator or scheme not in platform.schemes or not PurePosixPath(rest.partition("/")[2]).name:
        raise UsageError(
            f"--archive: {platform.title} does not reach {archive}",
            hint=f"name a directory of a bucket, such as {platform.schemes[0]}://bucket/backlog",
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} exists and is not an empty directory", hint="choose another, or remove it")


def _job(pair: Pair, archive: str, name: str, contents: Contents) -> Job:
    environment, secrets = {"XDG_STATE_HOME": "/tmp/sbpair"}, []  # noqa: S108  of the driver's own container
    for side, endpoint in (("PRIMARY", pair.primary), ("SECONDARY", pair.secondary)):
        environment[f"SBPAIR_{side}_NAME"] = endpoint.name
        if isinstance(endpoint.credential, Identity):
            environment[f"SBPAIR_{side}_NAMESPACE"] = endpoint.authority
        else:
            secrets.append(f"SBPAIR_{side}_CONNECTION_STRING")
        if endpoint.transport is not Transport.TCP:
            environment[f"SBPAIR_{side}_TRANSPORT"] = endpoint.transport.value
    native = tuple(f"{each}=={version}" for each, version in contents.native.items())
    return Job(name, archive, environment, tuple(secrets), (*NEEDED, *native), pair.backlog_queues)


COMMON = """
The job archives the backlog, sends it and proves the result. From any machine that reads the archive:

```sh
sbpair replay list --archive {archive}
sbpair replay status RUN --archive {archive}
sbpair replay stop RUN --archive {archive}      # its tasks finish the messages they hold
sbpair replay verify RUN --archive {archive}
```

To continue a stopped run, replace the words `replay run` of the definition by `replay resume RUN`, leave out `--count`,
and submit it again. Other options of `sbpair replay run` are words of the definition, too.
`{requirements}` has the packages that `sbpair.zip` cannot have.
"""


def _databricks(job: Job) -> dict[str, str | dict[str, Any]]:
    key = re.sub(r"\W", "_", job.name)
    secrets = {name: f"{{{{secrets/{job.name}/{name}}}}}" for name in job.secrets}
    cluster = {
        "spark_version": "${var.spark_version}",
        "node_type_id": "${var.node_type}",
        "num_workers": 2,
        "data_security_mode": "SINGLE_USER",
        "spark_conf": job.settings(),
        "spark_env_vars": {**job.environment, **secrets},
    }
    task = {
        "task_key": "replay",
        "job_cluster_key": "replay",
        "max_retries": 0,
        "spark_python_task": {
            "python_file": f"./{MAIN}",
            "parameters": job.arguments(f"${{workspace.file_path}}/{PACKAGE}"),
        },
        "libraries": [{"pypi": {"package": each}} for each in job.requirements],
    }
    bundle = {
        "bundle": {"name": job.name},
        "variables": {
            "spark_version": {"description": "A runtime with Python 3.11 or later", "default": "16.4.x-scala2.12"},
            "node_type": {"description": "The machines of the cluster", "default": "i3.xlarge"},
        },
        "resources": {
            "jobs": {
                key: {
                    "name": job.name,
                    "max_concurrent_runs": 1,
                    "job_clusters": [{"job_cluster_key": "replay", "new_cluster": cluster}],
                    "tasks": [task],
                }
            }
        },
        "targets": {"default": {"default": True}},
    }
    put = "".join(f"databricks secrets put-secret {job.name} {name}\n" for name in job.secrets)
    scope = f"databricks secrets create-scope {job.name}\n" if put else ""
    text = f"""# {job.name} on Databricks

```sh
{scope}{put}databricks bundle validate
databricks bundle deploy
databricks bundle run {key} --no-wait # submit
databricks jobs list-runs --active-only    # watch
databricks jobs cancel-run RUN_ID          # end at once; sbpair replay stop ends it in order
```

`databricks.yml` is JSON, which is YAML. `--var node_type=...` chooses the machines, `--var spark_version=...` the
runtime. The archive must be reachable with the cluster's own identity.
{job.commands()}"""
    return {"databricks.yml": bundle, COMMANDS: text}


def _emr(job: Job) -> dict[str, str | dict[str, Any]]:
    references = {name: f"EMR.secret@{name}" for name in job.secrets}
    environment = {**job.environment, **references}
    python = "./environment/bin/python"
    driver = {**environment, "PYSPARK_DRIVER_PYTHON": python, "PYSPARK_PYTHON": python}
    properties = {
        **job.settings(),
        **{f"spark.emr-serverless.driverEnv.{name}": value for name, value in driver.items()},
        **{f"spark.executorEnv.{name}": value for name, value in {**environment, "PYSPARK_PYTHON": python}.items()},
    }
    document = {
        "name": job.name,
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": f"{job.code}/{MAIN}",
                "entryPointArguments": job.arguments(),
                "sparkSubmitParameters": f"--py-files {job.code}/{PACKAGE}"
                f" --archives {job.code}/environment.tar.gz#environment",
            }
        },
        "configurationOverrides": {
            "applicationConfiguration": [{"classification": "spark-defaults", "properties": properties}],
            "monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": f"{job.code}/logs/"}},
        },
    }
    create = "".join(
        f"aws secretsmanager create-secret --name {name} --secret-string file://{name}.txt\n" for name in job.secrets
    )
    text = f"""# {job.name} on EMR Serverless

The application needs a release with Spark 3.5 or later, and outbound access to Service Bus. Build `environment.tar.gz`
on the operating system and architecture of that release, with Python 3.11 or later, once:

```sh
python3.11 -m venv --copies environment
environment/bin/pip install -r {REQUIREMENTS} venv-pack
environment/bin/venv-pack -p environment -o environment.tar.gz
```

The job's role must read the secrets and the archive's bucket, and write there:

```sh
{create}for file in {MAIN} {PACKAGE} environment.tar.gz; do aws s3 cp "$file" {job.code}/; done
aws emr-serverless start-job-run --application-id "$APPLICATION" --execution-role-arn "$ROLE" --cli-input-json file://job-run.json
aws emr-serverless get-job-run --application-id "$APPLICATION" --job-run-id "$JOB"       # watch
aws emr-serverless cancel-job-run --application-id "$APPLICATION" --job-run-id "$JOB"    # end at once
```
{job.commands()}"""
    return {"job-run.json": document, COMMANDS: text}


def _kubernetes(job: Job) -> dict[str, str | dict[str, Any]]:
    image, place = f"{job.name}:1", "/opt/sbpair"
    settings = {
        **job.settings(),
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.namespace": "$(POD_NAMESPACE)",
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.executor.podNamePrefix": job.name,
        "spark.driver.host": "$(POD_IP)",
        "spark.executor.instances": "2",
        **{f"spark.executorEnv.{name}": value for name, value in job.environment.items()},
        **{f"spark.kubernetes.executor.secretKeyRef.{name}": f"{job.name}:{name}" for name in job.secrets},
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    own = {"POD_NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name", "POD_IP": "status.podIP"}
    environment: list[dict[str, Any]] = [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in own.items()),
        *({"name": name, "value": value} for name, value in job.environment.items()),
        *({"name": each, "valueFrom": {"secretKeyRef": {"name": job.name, "key": each}}} for each in job.secrets),
    ]
    master = ["--master", "k8s://https://kubernetes.default.svc", "--deploy-mode", "client"]
    container = {
        "name": "driver",
        "image": image,
        "command": ["/opt/spark/bin/spark-submit"],
        "args": [*master, *conf, f"{place}/{MAIN}", *job.arguments(f"{place}/{PACKAGE}")],
        "env": environment,
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
    }
    pod = {"serviceAccountName": job.name, "restartPolicy": "Never", "containers": [container]}
    verbs = ["create", "get", "list", "watch", "delete", "deletecollection"]
    named = {"metadata": {"name": job.name}}
    access = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["pods", "configmaps", "services"], "verbs": verbs}]
    objects = [
        {"apiVersion": "v1", "kind": "ServiceAccount", **named},
        {"apiVersion": f"{access}/v1", "kind": "Role", **named, "rules": rules},
        {
            "apiVersion": f"{access}/v1",
            "kind": "RoleBinding",
            **named,
            "roleRef": {"apiGroup": access, "kind": "Role", "name": job.name},
            "subjects": [{"kind": "ServiceAccount", "name": job.name}],
        },
        {"apiVersion": "batch/v1", "kind": "Job", **named, "spec": {"backoffLimit": 0, "template": {"spec": pod}}},
    ]
    dockerfile = f"""FROM apache/spark:4.0.1 AS spark
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends tini procps && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 185 --create-home spark
COPY --from=spark /opt /opt
ENV JAVA_HOME=/opt/java/openjdk SPARK_HOME=/opt/spark PYSPARK_PYTHON=python3 PYSPARK_DRIVER_PYTHON=python3
COPY {REQUIREMENTS} {PACKAGE} {MAIN} {place}/
RUN pip install --no-cache-dir -r {place}/{REQUIREMENTS}
USER 185
WORKDIR /opt/spark/work-dir
ENTRYPOINT ["/opt/entrypoint.sh"]
"""
    literals = "".join(f" --from-file={name}={name}.txt" for name in job.secrets)
    create = f"kubectl create secret generic {job.name}{literals}\n" if literals else ""
    text = f"""# {job.name} on Kubernetes

Push the image where the cluster pulls from, and put that name in place of `{image}` in `job.json`. An archive on S3
also needs `spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION` there, with the version of Spark's Hadoop.

```sh
docker build --tag {image} .
{create}kubectl apply --filename job.json         # submit
kubectl logs --follow job/{job.name}         # watch
kubectl delete job {job.name}                # end at once; sbpair replay stop ends it in order
```
{job.commands()}"""
    manifest = {"apiVersion": "v1", "kind": "List", "items": objects}
    return {"job.json": manifest, "Dockerfile": dockerfile, COMMANDS: text}


PLATFORMS = {
    "databricks": Platform(
        "Databricks",
        ("s3", "abfss", "gs"),
        r"[A-Za-z0-9_-]{1,100}",
        "letters, digits, _ and -, at most 100",
        _databricks,
    ),
    "emr-serverless": Platform(
        "EMR Serverless", ("s3",), r"[A-Za-z0-9._/#-]{1,64}", "letters, digits and ._/#-, at most 64", _emr
    ),
    "kubernetes": Platform(
        "Kubernetes",
        ("s3", "abfss", "gs"),
        r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?",
        "small letters, digits and -, at most 47, such as sbpair-replay",
        _kubernetes,
    ),
}
