"""Workflows, the action, the Azure template and issue forms: published schemas, linters, and rules of ours."""

import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_jsonschema
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from tests.kit.command import run_program

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
ACTION = GITHUB / "actions" / "sbpair"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
JOB = ROOT / ".azure" / "sbpair-job.yml"
SCRIPTS = [ACTION / "install.sh", *(ROOT / ".ci" / name for name in ("run", "release", "check-commits"))]
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-actions": [ACTION / "action.yml"],
    "github-issue-forms": [GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug", "feature", "question")],
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "dependabot": [GITHUB / "dependabot.yml"],
}

PINS = {
    "actions/attest": ("1e69f48acb82d1966a394da916b4c1698aa569d6", "v4.2.2"),
    "actions/checkout": ("3d3c42e5aac5ba805825da76410c181273ba90b1", "v7.0.1"),
    "actions/download-artifact": ("3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c", "v8.0.1"),
    "actions/setup-python": ("5fda3b95a4ea91299a34e894583c3862153e4b97", "v7.0.0"),
    "actions/upload-artifact": ("bbbca2ddaa5d8feaa63e36b76fdaad77386f024f", "v7.0.0"),
    "azure/login": ("f5d393ae46f8fde4be8b75f32e3fc50e654ad0ca", "v3.0.1"),
    "pypa/gh-action-pypi-publish": ("dc37677b2e1c63e2034f94d8a5b11f265b73ba33", "v1.14.2"),
}
"""The commits of the tags of all actions in use."""


def load(path: Path) -> Any:
    return YAML(typ="safe").load(path)


def violations(schema: str, *words: Path | str) -> str:
    """Check files against a published schema; return the beginning of the findings."""
    done = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", f"vendor.{schema}", *map(str, words)])
    return "" if done.exit_code == 0 else done.output[:2000]


def installed(program: str) -> str:
    """Return the path of a program that a package of the environment brings."""
    return str(Path(sysconfig.get_path("scripts")) / program)


def all_steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each step of the workflows and of the action, with the name of its file."""
    for path in WORKFLOWS:
        for job in load(path)["jobs"].values():
            yield from ((path.name, step) for step in job["steps"])
    yield from (("action.yml", step) for step in load(ACTION / "action.yml")["runs"]["steps"])


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_file_follows_the_published_schema(schema: str) -> None:
    assert violations(schema, *SCHEMAS[schema]) == ""


def test_the_azure_template_follows_the_published_schema(tmp_path: Path) -> None:
    """The schema is that of a pipeline, in which the name of a job is a name: an expression stands for one."""
    pipeline = tmp_path / "pipeline.yml"
    pipeline.write_text(JOB.read_text().replace("${{ parameters.job }}", "audit"))
    assert violations("azure-pipelines", pipeline, "--data-transform", "azure-pipelines") == ""


def test_the_linter_of_workflows_finds_nothing() -> None:
    done = run_program(installed("zizmor"), "--offline", "--quiet", GITHUB)
    assert done.returncode == 0, done.stdout


def test_the_linter_of_shell_scripts_finds_nothing(tmp_path: Path) -> None:
    steps = [tmp_path / f"{file}-{number}.sh" for number, (file, step) in enumerate(all_steps()) if "run" in step]
    for path, script in zip(steps, [step["run"] for _, step in all_steps() if "run" in step], strict=True):
        path.write_text(f"#!/usr/bin/env bash\n{script}\n")
    done = run_program(installed("shellcheck"), *SCRIPTS, *steps)
    assert done.returncode == 0, done.stdout
    assert [path.name for path in SCRIPTS if not os.access(path, os.X_OK)] == []


def test_each_action_is_pinned_by_the_commit_of_its_version() -> None:
    text = "".join(path.read_text() for path in [*WORKFLOWS, ACTION / "action.yml"])
    used = re.findall(r"uses: (\S+)(?: # (\S+))?", text)
    assert {each for each in used if not each[0].startswith("./")} == {
        (f"{name}@{commit}", version) for name, (commit, version) in PINS.items()
    }


def test_no_script_of_a_step_holds_an_expression() -> None:
    """Values reach scripts as environment variables: text of an expression would be parsed by the shell."""
    assert [(file, step["run"]) for file, step in all_steps() if "${{" in step.get("run", "")] == []
    scripts = re.findall(r"(?:bash|inlineScript): (.*)", JOB.read_text())
    assert [script for script in scripts if "${{" in script or "$(" in script] == []
    assert len(scripts) == 4


def test_permissions_are_none_but_those_that_a_job_names() -> None:
    for path in WORKFLOWS:
        workflow = load(path)
        assert workflow["permissions"] == {}
        assert all("permissions" in job and "timeout-minutes" in job for job in workflow["jobs"].values())
    jobs = load(GITHUB / "workflows" / "release.yml")["jobs"]
    writing = {
        name: {key for key, value in job["permissions"].items() if value == "write"} for name, job in jobs.items()
    }
    assert {name: written for name, written in writing.items() if written} == {
        "attest": {"attestations", "id-token"},
        "publish": {"id-token"},
        "release": {"contents"},
    }
    assert jobs["publish"]["environment"] == "pypi"


def test_a_release_uses_no_cache_and_keeps_no_credentials() -> None:
    text = (GITHUB / "workflows" / "release.yml").read_text()
    assert "cache:" not in text
    checkouts = [step for _, step in all_steps() if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert [step["with"]["persist-credentials"] for step in checkouts] == [False] * len(checkouts)


def test_what_a_job_of_the_release_needs_has_been_tested() -> None:
    jobs = load(GITHUB / "workflows" / "release.yml")["jobs"]
    assert {name: job.get("needs") for name, job in jobs.items()} == {
        "build": None,
        "test": "build",
        "attest": "test",
        "publish": ["test", "attest"],
        "release": "publish",
    }


def test_examples_name_inputs_and_parameters_that_exist() -> None:
    text = (ACTION / "README.md").read_text()
    inputs = load(ACTION / "action.yml")["inputs"]
    parameters = {each["name"] for each in load(JOB)["parameters"]}
    blocks = [YAML(typ="safe").load(block) for block in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)]
    used = [
        step for block in blocks for job in as_jobs(block) for step in job.get("steps", []) if "sbpair" in str(step)
    ]
    assert used
    assert all(set(step.get("with", {})) <= set(inputs) for step in used)
    templates = [job for block in blocks for job in as_jobs(block) if "template" in job]
    assert templates
    assert all(set(job["parameters"]) <= parameters for job in templates)
    assert [name for name in (*inputs, *parameters) if f"`{name}`" not in text] == []


def as_jobs(block: dict[str, Any]) -> list[dict[str, Any]]:
    jobs = block["jobs"]
    return list(jobs.values()) if isinstance(jobs, dict) else jobs
