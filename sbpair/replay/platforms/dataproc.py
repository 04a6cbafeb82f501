"""Dataproc Serverless: a batch and its image. Driver and executors fetch the secrets from Google Secret Manager."""

from __future__ import annotations

from sbpair.replay.platforms.job import COMMANDS, MAIN, PACKAGE, REQUIREMENTS, Files, Job, Platform

RUNTIME = "2.3"  # Spark 3.5 and Java 17, with long-term support


def _files(job: Job) -> Files:
    image = f"REGION-docker.pkg.dev/PROJECT/REPOSITORY/{job.name}:1"
    environment = {**job.environment, **{name: f"gsm://{name}" for name in job.secrets}}
    properties = {
        **job.settings(),
        **{f"spark.dataproc.driverEnv.{name}": value for name, value in environment.items()},
        **{f"spark.executorEnv.{name}": value for name, value in environment.items()},
    }
    batch = {
        "pysparkBatch": {
            "mainPythonFileUri": f"{job.code}/{MAIN}",
            "args": job.arguments(),
            "pythonFileUris": [f"{job.code}/{PACKAGE}"],
        },
        "runtimeConfig": {"version": RUNTIME, "containerImage": image, "properties": properties},
        "environmentConfig": {"executionConfig": {"subnetworkUri": "default"}},
    }
    # Spark and Java come from the runtime, which runs containers as user 1099.
    dockerfile = f"""FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends tini procps \\
    && rm -rf /var/lib/apt/lists/*
ENV PYSPARK_PYTHON=/usr/local/bin/python3
COPY {REQUIREMENTS} /opt/
RUN pip install --no-cache-dir -r /opt/{REQUIREMENTS}
RUN groupadd --gid 1099 spark && useradd --uid 1099 --gid 1099 --create-home spark
USER spark
"""
    create = "".join(
        f"gcloud secrets create {name} --replication-policy=automatic --data-file={name}.txt\n"
        f'gcloud secrets add-iam-policy-binding {name} --member="serviceAccount:$ACCOUNT"'
        " --role=roles/secretmanager.secretAccessor\n"
        for name in job.secrets
    )
    text = f"""# {job.name} on Dataproc Serverless

Put the name of your image in place of `{image}` in `batch.json`, and the
subnetwork in place of `default`. It needs Private Google Access, and a Cloud NAT that leads to Service Bus. `ACCOUNT`
is the service account of the job, by default that of Compute Engine: it must read the image and the secrets, and read
and write the archive's bucket.

{job.secret_files()}```sh
docker build --tag IMAGE . && docker push IMAGE
{create}gcloud storage cp {MAIN} {PACKAGE} {job.code}/
API=https://dataproc.googleapis.com/v1 JOB={job.name}-$(date +%s)
printf 'Authorization: Bearer %s' "$(gcloud auth print-access-token)" | curl --fail-with-body --header @- \\
  --json @batch.json "$API/projects/$PROJECT/locations/$REGION/batches?batchId=$JOB"    # submit
gcloud dataproc batches wait "$JOB" --region "$REGION"      # watch
gcloud dataproc batches cancel "$JOB" --region "$REGION"    # end at once; sbpair replay stop ends it in order
```

The driver and each executor fetch `gsm://NAME`, a secret of the job's own project, with the service account. A secret
of another project is `gsm://projects/PROJECT/secrets/NAME`.
{job.commands()}"""
    return {"batch.json": batch, "Dockerfile": dockerfile, COMMANDS: text}


PLATFORM = Platform(
    "Dataproc Serverless",
    ("gs",),
    r"[a-z][a-z0-9-]{2,50}[a-z0-9]",
    "small letters, digits and -, 4 to 52, such as sbpair-replay",
    _files,
)
