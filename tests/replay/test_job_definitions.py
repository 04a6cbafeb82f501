"""Job definitions of managed platforms, and the command of --print-submit: complete, valid, and free of secrets."""

import ast
import base64
import json
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from sbpair.azure.fetched_secrets import PRINCIPAL
from sbpair.replay import package
from sbpair.replay.package import PLATFORMS
from tests.cli.test_replay import NAMESPACES, sbpair
from tests.kit.golden import check_golden
from tests.kit.installed import outside
from tests.kit.secret_managers import secret_managers
from tests.replay.cluster import standalone
from tests.replay.world import VARIABLES, World, world

GOLDEN = Path(__file__).parent / "golden"
INSTALLED = re.compile(r'(?m),\s*\{\s*"pypi": \{\s*"package": "[\w-]+==.*"\s*\}\s*\}|^[\w-]+==.*\n')
"""A package of this environment in a list of requirements."""

ARCHIVE = "s3://bucket/backlog"
ABFSS = "abfss://container@account.dfs.core.windows.net/backlog"
ARCHIVES = {**dict.fromkeys(PLATFORMS, ARCHIVE), "dataproc": "gs://bucket/backlog", "fabric": ABFSS}
DEFINITIONS = {
    "airflow": "dag.py",
    "databricks": "databricks.yml",
    "dataproc": "batch.json",
    "emr-serverless": "job-run.json",
    "fabric": "item.json",
    "kubernetes": "job.json",
    "spark-operator": "spark-application.json",
}
HOSTILE = "a\",'$(x)`%é\U0001f600"
VAULT = {**dict.fromkeys(PLATFORMS, ()), "fabric": ("--vault", "orders-kv")}
FABRIC_CREDENTIALS = """
import json, os, urllib.request
class FabricAnalyticsTokenCredentials:
    def get_token(self, scope):
        assert scope == "https://vault.azure.net/.default", scope
        url = os.environ["IDENTITY_ENDPOINT"] + "?resource=https://vault.azure.net"
        request = urllib.request.Request(url, headers={"X-IDENTITY-HEADER": os.environ["IDENTITY_HEADER"]})
        self.token = json.loads(urllib.request.urlopen(request).read())["access_token"]
        return self
"""
DOCUMENTS = """
import json, sys
documents = [json.load(open(each)) for each in sys.argv[1:]]
"""
DATAPROC_MESSAGES = """
from google.cloud.dataproc_v1.types import Batch
Batch.from_json(json.dumps(documents[0]))
"""
FABRIC_MODELS = """
from microsoft_fabric_api.generated.core.models import CreateItemRequest
from microsoft_fabric_api.generated.sparkjobdefinition.models import RunSparkJobDefinitionRequest
for model, document in zip((CreateItemRequest, RunSparkJobDefinitionRequest), documents):
    found = model.deserialize(document).serialize()
    assert found == document, found
"""
DATABRICKS_CLASSES = """
from databricks.sdk.service.jobs import JobSettings
[job] = documents[0]["resources"]["jobs"].values()
found = JobSettings.from_dict(job).as_dict()
assert found == job, found
"""
OPERATOR_MODELS = """
from kubeflow_spark_api.models import SparkV1beta2SparkApplication
found = SparkV1beta2SparkApplication.from_dict(documents[0]).to_dict()
assert found == documents[0], found
"""
AIRFLOW_OPERATOR = """
import runpy, sys
task = runpy.run_path(sys.argv[1])["dag"].get_task("replay")
task.render_template_fields({"run_id": "manual__2026-12-01T10:00:00.5+00:00_a~b"})
words = task.application_args
assert words[words.index("--run") + 1] == "manual__2026-12-01T100000.5-0000_a-b", words
assert task.retries == 2
"""
READ = """
from pyspark.sql import SparkSession
import sys
spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("sbpair").load(sys.argv[1]).select("message_id", "body")
assert rows.count() == 40, rows.count()
rows.selectExpr("concat('again-', message_id) AS message_id", "body").write.format("sbpair").option(
    "destination", sys.argv[2]).option("ledger", sys.argv[3]).mode("append").save()
"""


@pytest.fixture(scope="module", autouse=True)
def built_once() -> Iterator[None]:
    """Build the package once: it is the same for every platform."""
    build, built = package.build_package, list[Any]()

    def write(path: Path) -> Any:
        if not built:
            built.extend((build(path), path.read_bytes()))
        path.write_bytes(built[1])
        return built[0]

    with patch.object(package, "build_package", write):
        yield


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the job of each platform into its directory."""
    directory = tmp_path_factory.mktemp("jobs")
    for platform in PLATFORMS:
        assert write_job(directory / platform, platform)["secrets"][-2:] == [*VARIABLES]
    return directory


def write_job(directory: Path, platform: str, more: str = "", **environ: str) -> dict[str, Any]:
    """Write a job, whose archive may be in a further directory; return what the command printed."""
    archive = ("--archive", f"{ARCHIVES[platform]}/{more}")
    done = sbpair("package", str(directory), "--for", platform, *archive, *VAULT[platform], "-o", "json", **environ)
    assert done.returncode == 0, done.stderr
    printed = dict(json.loads(done.stdout))
    assert printed["schema"] == "sbpair/replay-job/1"
    assert printed["files"] == sorted(each.name for each in directory.iterdir())
    return printed


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def definition(jobs: Path, platform: str, name: str = "") -> dict[str, Any]:
    """Return the document, and in place of Fabric's encoded parts their text."""
    document = dict(json.loads((jobs / platform / (name or DEFINITIONS[platform])).read_text()))
    for part in document.get("definition", {}).get("parts", []):
        part["payload"] = base64.b64decode(part["payload"]).decode()
    return document


def test_a_job_is_as_it_was_last_agreed_and_has_no_secret(jobs: Path, platform: str) -> None:
    for path in (each for each in (jobs / platform).iterdir() if each.name != "sbpair.zip"):
        text = path.read_text()
        if path.name == DEFINITIONS[platform] != "dag.py":
            text = json.dumps(definition(jobs, platform), indent=2) + "\n"
        assert "c2VjcmV0" not in text
        assert "SharedAccessKey" not in text
        is_common = path.name == "main.py" and platform != "fabric"
        folder = GOLDEN / ("common" if is_common else platform)
        check_golden(folder / path.name.replace(".py", ".py.txt"), INSTALLED.sub("", text))
    assert "\ncryptography==" in (jobs / platform / "requirements.txt").read_text()


def test_the_emr_job_is_valid_by_the_service_model(jobs: Path) -> None:
    loaders = pytest.importorskip("botocore.loaders", reason="no model of EMR Serverless: pip install botocore")
    from botocore.model import ServiceModel
    from botocore.validate import ParamValidator

    model = ServiceModel(loaders.Loader().load_service_model("emr-serverless", "service-2"))
    given = {"applicationId": "x", "clientToken": "x", "executionRoleArn": "arn:aws:iam::123456789012:role/replay"}
    shape = model.operation_model("StartJobRun").input_shape
    report = ParamValidator().validate({**given, **definition(jobs, "emr-serverless")}, shape)
    assert report.generate_report() == ""


def test_the_kubernetes_objects_are_valid_by_the_published_schema(jobs: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no schemas: pip install kubernetes-validate")
    for each in definition(jobs, "kubernetes")["items"]:
        validate.validate(each, "1.30", strict=True)


def test_a_directory_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        done = sbpair("package", str(path), "--for", "kubernetes", "--archive", ARCHIVE)
        assert (done.returncode, "exists and is not an empty directory" in done.stderr) == (2, True)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_an_odd_archive_is_quoted_and_identities_need_no_secret(platform: str, tmp_path: Path) -> None:
    named = {"SBPAIR_PRIMARY_NAMESPACE": "contoso", "SBPAIR_SECONDARY_NAMESPACE": "contoso-dr"}
    printed = write_job(tmp_path / "job", platform, HOSTILE, **dict.fromkeys(NAMESPACES, ""), **named)
    assert printed["secrets"] == [*(PRINCIPAL if platform == "fabric" else ())]
    texts = {each.name: each.read_text() for each in (tmp_path / "job").iterdir() if each.suffix != ".zip"}
    found = "\n".join(texts.values())
    assert not any(name in found for name in VARIABLES)
    assert "contoso.servicebus.windows.net" in found
    assert platform == "fabric" or not ("NAME.txt" in found or "ecretKeyRef" in found)

    archive = f"{ARCHIVES[platform]}/{HOSTILE}"
    [listed] = re.findall("^sbpair replay list .*", texts["README.md"], re.MULTILINE)
    assert shlex.split(listed)[-1] == archive
    if platform == "airflow":
        words = (each.value for each in ast.walk(ast.parse(texts["dag.py"])) if isinstance(each, ast.Constant))
        assert archive in words
        return
    document = definition(tmp_path, "job", DEFINITIONS[platform])
    if platform == "fabric":
        [package] = re.findall("^PACKAGE = (.*)", texts["main.py"], re.MULTILINE)
        assert ast.literal_eval(package) == f"{archive}-job/sbpair.zip"
        command = json.loads(document["definition"]["parts"][0]["payload"])["commandLineArguments"]
        assert f" {archive} " in command
    else:
        assert f"{json.dumps(archive)}," in json.dumps(document)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "program", "files", "field"),
    [
        ("apache-airflow-providers-apache-spark", AIRFLOW_OPERATOR, ("airflow/dag.py",), "application_args"),
        ("databricks-sdk", DOCUMENTS + DATABRICKS_CLASSES, ("databricks/databricks.yml",), "max_retries"),
        ("google-cloud-dataproc", DOCUMENTS + DATAPROC_MESSAGES, ("dataproc/batch.json",), "pythonFileUris"),
        (
            "kubeflow-spark-api",
            DOCUMENTS + OPERATOR_MODELS,
            ("spark-operator/spark-application.json",),
            "onFailureRetries",
        ),
        ("microsoft-fabric-api", DOCUMENTS + FABRIC_MODELS, ("fabric/item.json", "fabric/run.json"), "environmentId"),
    ],
)
def test_a_job_is_valid_by_the_published_models(
    jobs: Path, tmp_path: Path, package: str, program: str, files: tuple[str, ...], field: str
) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path / "installed"), package]
    subprocess.run(install, check=True, capture_output=True)
    environment = outside({}) | {"PYTHONPATH": str(tmp_path / "installed"), "AIRFLOW_HOME": str(tmp_path)}

    def mistakes(field: str, changed: str) -> str:
        given = [tmp_path / Path(each).name for each in files]
        for each, path in zip(files, given, strict=True):
            path.write_text((jobs / each).read_text().replace(field, changed))
        command = [sys.executable, "-c", program, *map(str, given)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""

    assert mistakes(field, field) == ""
    assert mistakes(field, f"{field}X") != ""


def submit(python: Path, words: list[str], environment: dict[str, str], package: Path | None = None, **own: str) -> str:
    """Run a file by spark-submit with a Python that has Spark's packages alone. Return its output."""
    [pyspark] = python.parents[1].glob("lib/python3*/site-packages/pyspark")
    own |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "SPARK_HOME": str(pyspark)}
    files = ["--py-files", str(package)] if package else []
    done = subprocess.run(
        [str(pyspark / "bin" / "spark-submit"), "--master", "local[2,4]", *files, *words],
        env={**outside(environment), **own},
        cwd=python.parent,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return done.stdout


def receipt_of_all(place: World, output: str) -> dict[str, Any]:
    """Return the receipt. Every message arrived unaltered, and none is left."""
    receipt = dict(json.loads(output))
    assert (receipt["acknowledged"], receipt["balanced"]) == (len(place.sent), True)
    place.check_arrived()
    return receipt


@pytest.mark.java
@pytest.mark.slow
def test_driver_and_workers_fetch_the_secrets_that_a_job_names(jobs: Path, tmp_path: Path) -> None:
    """Use the words and settings of the definition, where only Secret Manager has the keys. Then read the archive."""
    package, batch = jobs / "dataproc" / "sbpair.zip", definition(jobs, "dataproc")
    archive, head = tmp_path / "archive", "spark.dataproc.driverEnv."
    here = {ARCHIVES["dataproc"]: str(archive), "10": "2"}
    words = [here.get(word, word) for word in batch["pysparkBatch"]["args"]]
    events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(tmp_path / "events")}
    properties = {**batch["runtimeConfig"]["properties"], **events}
    named = {name.removeprefix(head): value for name, value in properties.items() if name.startswith(head)}
    conf = [word for name, value in properties.items() if head not in name for word in ("--conf", f"{name}={value}")]
    (tmp_path / "events").mkdir()
    python = bare_python(tmp_path / "bare")
    with world(queues=2) as place, place.running.entered(secret_managers(dict(place.environment))) as managers:
        place.strand_many(40)
        environment = {**place.shell(tmp_path), **named, "XDG_STATE_HOME": str(tmp_path / "state")}
        main = [*conf, str(package.with_name("main.py")), *words, "--shared-archive"]
        receipt = receipt_of_all(place, submit(python, main, environment | managers.environment, package))
        assert len(managers.requests) > len(VARIABLES), "workers fetch them too"
        keys = [each.rpartition("SharedAccessKey=")[2].partition(";")[0].encode() for each in managers.secrets.values()]
        for path in (each for each in (*archive.rglob("*"), *(tmp_path / "events").rglob("*")) if each.is_file()):
            assert not any(key in path.read_bytes() for key in keys), path
        if find_spec("pyspark.sql.datasource") is not None:  # Spark 3.5 does not have it
            (tmp_path / "read.py").write_text(READ)
            where = (str(archive / receipt["run"]), place.destinations[0], str(tmp_path / "ledger"))
            own = place.shell(tmp_path)
            submit(python, [str(tmp_path / "read.py"), *where], own, package, PYTHONPATH=str(package))
            assert len(place.ids()) == 80


@pytest.mark.java
@pytest.mark.slow
def test_the_fabric_job_reads_its_secrets_from_key_vault(jobs: Path, tmp_path: Path) -> None:
    """Fabric's own package of tokens runs there alone: another one with its interface takes its place."""
    [description, program] = definition(jobs, "fabric")["definition"]["parts"]
    words = json.loads(description["payload"])["commandLineArguments"].split()
    here = {ABFSS: str(tmp_path / "archive"), "10": "2"}
    python, package = bare_python(tmp_path / "bare"), jobs / "fabric" / "sbpair.zip"
    [site] = python.parents[1].glob("lib/python3*/site-packages")
    module = site / "fabric" / "analytics" / "environment" / "credentials.py"
    module.parent.mkdir(parents=True)
    module.write_text(FABRIC_CREDENTIALS)
    main = tmp_path / "main.py"
    text = program["payload"].replace(f"{ABFSS}-job/sbpair.zip", str(package))
    main.write_text(text.replace("/tmp/sbpair", str(tmp_path / "state")))  # noqa: S108  not the one of a container
    with world(queues=2) as place:
        values = {**place.environment, **dict.fromkeys(PRINCIPAL, "x")}
        secrets = {name.replace("_", "-"): value for name, value in values.items()}
        with place.running.entered(secret_managers(secrets)) as managers:
            place.strand_many(40)
            environment = {name: value for name, value in place.shell(tmp_path).items() if name not in VARIABLES}
            command = [str(main), *(here.get(word, word) for word in words), "--shared-archive"]
            receipt_of_all(place, submit(python, command, environment | managers.environment))
            assert {request.partition("?")[0].rpartition("/")[2] for request in managers.requests} == secrets.keys()
            assert len(managers.requests) > len(secrets), "workers fetch them too"


WORKERS_HAVE = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "dateutil", "pytz", "tzdata", "six")


def bare_python(directory: Path) -> Path:
    """Create a Python with the packages of a Spark worker, without sbpair."""
    venv.create(directory, symlinks=True)
    here = Path(sysconfig.get_path("purelib"))
    [there] = directory.glob("lib/python3*/site-packages")
    for name in WORKERS_HAVE:
        for path in (here / name, here / f"{name}.py", here / f"{name}.libs"):
            if path.exists():
                (there / path.name).symlink_to(path)
    python = directory / "bin" / "python"
    done = subprocess.run([python, "-c", "import pyarrow, pandas, pyspark"], env=outside({}), check=False)
    assert done.returncode == 0
    done = subprocess.run(
        [python, "-c", "import sbpair"], env=outside({}), cwd="/", stderr=subprocess.PIPE, check=False
    )
    assert b"No module named 'sbpair'" in done.stderr
    return python


@pytest.mark.java
@pytest.mark.slow
def test_the_printed_command_gives_workers_sbpair_from_the_package(tmp_path: Path) -> None:
    """It runs with --quiet: spark-submit joins both streams."""
    package, python = str(tmp_path / "sbpair.zip"), bare_python(tmp_path / "bare")
    assert sbpair("package", package).returncode == 0
    with world(queues=1) as place, standalone(tmp_path / "cluster", outside(place.shell(tmp_path)), 1) as cluster:
        place.strand_many(20)
        # In a process of its own: the command to print is read from its arguments.
        run = [sys.executable, "-m", "sbpair", "replay", "run", "--archive", str(tmp_path / "archive"), "--quiet"]
        run += ["--master", cluster.url, "--shared-archive", "--conf", f"spark.pyspark.python={python}"]
        without = subprocess.run(run, env=place.shell(tmp_path), capture_output=True, text=True, check=False)
        assert without.returncode == 7
        assert ": sbpair is missing: No module named 'sbpair' in " in without.stderr
        run += ["--output", "json", "--package", package, "--print-submit"]
        printed = subprocess.run(run, env=place.shell(tmp_path), stdout=subprocess.PIPE, check=True).stdout
        command = shlex.join(json.loads(printed)["command"])
        for secret in place.environment.values():
            assert secret.rpartition("SharedAccessKey=")[2] not in command
        done = subprocess.run(["bash", "-c", command], env=place.shell(tmp_path), stdout=subprocess.PIPE, check=True)
        receipt_of_all(place, done.stdout.decode())


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_job_to_the_secondary_knows_the_name_of_the_primary_alone(platform: str, tmp_path: Path) -> None:
    with world() as place:
        pair = place.pair
    vault = "orders-kv" if PLATFORMS[platform].needs_vault else None
    secrets = package.define_job(
        tmp_path, platform, pair, ARCHIVES[platform], vault=vault, to="secondary", renamed=["orders=orders-v2"]
    ).secrets
    assert secrets == (*PLATFORMS[platform].secrets, VARIABLES[1])
    texts = "".join(each.read_text() for each in tmp_path.iterdir() if each.name != package.PACKAGE)
    texts += "".join(base64.b64decode(each).decode() for each in re.findall(r'"payload": "(.*?)"', texts))
    assert VARIABLES[0] not in texts
    assert {"SBPAIR_PRIMARY_NAME", "--to", "secondary", "--map", "orders=orders-v2"} <= {*re.split(r"[^\w=-]+", texts)}
