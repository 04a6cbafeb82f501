"""Databricks: a bundle with a job cluster, whose secrets are in a secret scope."""

from __future__ import annotations

import re

from sbpair.replay.platforms.job import COMMANDS, MAIN, PACKAGE, Files, Job, Platform


def _files(job: Job) -> Files:
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
databricks bundle deploy                   # again after each change
databricks bundle run {key} --no-wait # submit
databricks jobs list-runs --active-only    # watch
databricks jobs cancel-run RUN_ID          # end at once; sbpair replay stop ends it in order
```

`databricks.yml` is JSON, which is YAML. `--var node_type=...` chooses the machines, `--var spark_version=...` the
runtime. The archive must be reachable with the cluster's own identity.
{job.commands()}"""
    return {"databricks.yml": bundle, COMMANDS: text}


PLATFORM = Platform(
    "Databricks", ("s3", "abfss", "gs"), r"[A-Za-z0-9_-]{1,100}", "letters, digits, _ and -, at most 100", _files
)
