"""Kubernetes: a Job that is the driver, its role and its image; secrets are those of the cluster."""

from __future__ import annotations

from typing import Any

from sbpair.replay.platforms.job import COMMANDS, MAIN, PACKAGE, REQUIREMENTS, Files, Job, Platform


def _files(job: Job) -> Files:
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

{job.secret_files()}```sh
docker build --tag {image} .
{create}kubectl apply --filename job.json         # submit
kubectl logs --follow job/{job.name}         # watch
kubectl delete job {job.name}                # end at once; sbpair replay stop ends it in order
```

A job of that name must be deleted before it is submitted again.
{job.commands()}"""
    manifest = {"apiVersion": "v1", "kind": "List", "items": objects}
    return {"job.json": manifest, "Dockerfile": dockerfile, COMMANDS: text}


PLATFORM = Platform(
    "Kubernetes",
    ("s3", "abfss", "gs"),
    r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?",
    "small letters, digits and -, at most 47, such as sbpair-replay",
    _files,
)
