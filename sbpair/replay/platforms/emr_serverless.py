"""EMR Serverless: the request of a job run, whose secrets are in AWS Secrets Manager."""

from __future__ import annotations

from sbpair.replay.platforms.job import COMMANDS, MAIN, PACKAGE, REQUIREMENTS, Files, Job, Platform


def _files(job: Job) -> Files:
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

The job's role must read the secrets and the archive's bucket, and write there.

{job.secret_files()}```sh
{create}for file in {MAIN} {PACKAGE} environment.tar.gz; do aws s3 cp "$file" {job.code}/; done
aws emr-serverless start-job-run --application-id "$APPLICATION" --execution-role-arn "$ROLE" --cli-input-json file://job-run.json
aws emr-serverless get-job-run --application-id "$APPLICATION" --job-run-id "$JOB"       # watch
aws emr-serverless cancel-job-run --application-id "$APPLICATION" --job-run-id "$JOB"    # end at once
```
{job.commands()}"""
    return {"job-run.json": document, COMMANDS: text}


PLATFORM = Platform(
    "EMR Serverless", ("s3",), r"[A-Za-z0-9._/#-]{1,64}", "letters, digits and ._/#-, at most 64", _files
)
