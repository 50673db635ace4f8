"""docker-compose.yml and deploy/, as far as they can be checked without Docker: form, places, versions, queries."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import kubernetes_validate
import pyspark
import pytest
from kubeflow_spark_api.models import SparkV1beta2SparkApplication
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import ValidationError
from ruamel.yaml import YAML

import deduper
from deduper.config.load import load_config
from deduper.errors import NO_RESTART
from deduper.spark.installed import heap_bytes
from deduper.spark_promises import JVM_PROPERTIES
from tests.services.draw_dashboard import filled
from tests.services.jars import BROKER_JARS, KAFKA_VERSION

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
SERVICE_KEYS = {
    *(
        "build",
        "command",
        "depends_on",
        "entrypoint",
        "environment",
        "healthcheck",
        "hostname",
        "image",
        "init",
        "logging",
    ),
    *("ports", "profiles", "restart", "shm_size", "stop_grace_period", "volumes"),
}
HEALTH_KEYS = {"test", "interval", "timeout", "retries", "start_period"}
CONDITIONS = {"service_healthy", "service_completed_successfully"}
DURATION = re.compile(r"\d+(ms|s|m|h)")


def loaded(path: Path) -> Any:
    """A YAML file; a key that appears twice is an error."""
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


COMPOSE = loaded(ROOT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LASTING = {name: service for name, service in SERVICES.items() if service.get("restart") != "no"}


def image(name: str) -> tuple[str, str]:
    """Repository and tag of a service's image."""
    repository, _, tag = SERVICES[name]["image"].rpartition(":")
    return repository, tag


def mounts(service: dict[str, Any]) -> list[list[str]]:
    """Source, target and options of each volume."""
    return [volume.split(":") for volume in service.get("volumes", ())]


def test_the_file_has_the_form_that_compose_reads() -> None:
    """Known keys only, values of their types, no volume that nobody has declared, none that nobody uses."""
    assert set(COMPOSE) == {"name", "services", "volumes", "x-logging"}
    used = set()
    for name, service in SERVICES.items():
        assert set(service) <= SERVICE_KEYS, name
        assert "image" in service, name
        for key in ("command", "entrypoint"):
            assert all(isinstance(word, str) for word in service.get(key, [])), name
        assert all(isinstance(value, str | int) for value in service.get("environment", {}).values()), name
        assert not any(isinstance(value, bool) for value in service.get("environment", {}).values()), name
        assert DURATION.fullmatch(service.get("stop_grace_period", "1s")), name
        assert service["restart"] in ("no", "unless-stopped") or service["restart"].startswith("on-failure:"), name
        for source, target, *options in mounts(service):
            assert target.startswith("/"), name
            assert options in ([], ["ro"]), name
            if not source.startswith("."):
                used.add(source)
    assert used == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", LASTING)
def test_every_service_says_whether_it_is_well(name: str) -> None:
    """A health check with its times; of what runs once, its end tells."""
    health = LASTING[name]["healthcheck"]
    assert set(health) <= HEALTH_KEYS
    assert health["test"][0] == "CMD"
    assert all(isinstance(word, str) for word in health["test"])
    assert all(DURATION.fullmatch(health[key]) for key in ("interval", "timeout"))
    assert health["retries"] > 0


def test_what_is_waited_for_can_come_true() -> None:
    """Healthy is what has a check, completed what ends; nothing waits in a circle, or for what is not started."""
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] in CONDITIONS
            assert (how["condition"] == "service_healthy") == (other in LASTING), (name, other)
            # Without a profile a service is started by any; with some, by each that starts the one that waits for it.
            started_by = SERVICES[other].get("profiles")
            assert started_by is None or set(service.get("profiles", [None])) <= set(started_by), (name, other)
    order: list[str] = []
    while len(order) < len(SERVICES):
        ready = [
            name for name in SERVICES if name not in order and set(SERVICES[name].get("depends_on", ())) <= {*order}
        ]
        assert ready, f"a circle beyond {order}"
        order += ready


def test_nobody_outside_reaches_a_port() -> None:
    """Bound to the loopback address, each once."""
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def test_every_mounted_file_is_there() -> None:
    """Docker would make a folder in its place."""
    for service in SERVICES.values():
        for source, *_ in mounts(service):
            assert not source.startswith("/"), "of no machine in particular"
            assert not source.startswith(".") or (ROOT / source).exists(), source
    build = SERVICES["deduper"]["build"]
    assert (ROOT / build["dockerfile"]).is_file()


def test_versions_are_those_that_the_tests_run() -> None:
    """Kafka as in the list of jars, Hadoop as PySpark's client, the service as this one; no `latest` anywhere."""
    jars = {jar.artifact: jar.version for jar in BROKER_JARS}
    assert image("kafka") == image("topics") == ("apache/kafka", jars["kafka_2.13"])
    assert jars["kafka_2.13"] == KAFKA_VERSION
    (client,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    assert image("namenode") == image("datanode") == ("apache/hadoop", client.stem.rpartition("-")[2])
    for name in ("deduper", *OF_CLUSTER):
        assert image(name) == ("deduper", deduper.__version__)
    for name in SERVICES:
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", image(name)[1]), name


OF_CLUSTER = ("spark-master", "spark-worker-1", "spark-worker-2", "deduper-cluster")


def test_the_job_of_the_cluster_uses_what_its_profile_starts() -> None:
    """Store, ports, brokers and master are services at their ports; executors fit into the workers."""
    config = load_config(DEPLOY / "cluster.yaml", environment={})
    hdfs = loaded_properties("core-site.xml")["fs.defaultFS"]
    assert config.store.url.startswith(f"{hdfs}/")
    assert all(sink.url.startswith(f"{hdfs}/") for sink in config.file_ports.values())
    source: Any = config.source
    assert source.bootstrap_servers == SERVICES["topics"]["environment"]["BROKER"]
    master = str(config.spark["spark.master"])
    host, port = master.removeprefix("spark://").split(":")
    words = SERVICES[host]["command"]
    assert words[words.index("--host") + 1] == SERVICES[host]["hostname"] == host == "spark-master"
    assert words[words.index("--port") + 1] == port
    for worker in ("spark-worker-1", "spark-worker-2"):
        words = SERVICES[worker]["command"]
        assert words[-1] == master
        # Spark adds at least 384 MiB to the heap of an executor.
        assert gigabytes(words[words.index("--memory") + 1]) > gigabytes(str(config.spark["spark.executor.memory"]))
        assert config.store.memory < gigabytes(SERVICES[worker]["shm_size"]) * 2**30
    job = SERVICES["deduper-cluster"]
    assert config.spark["spark.driver.host"] == job["hostname"] == "deduper-cluster"
    user = job["environment"]["HADOOP_USER_NAME"]
    assert config.spark["spark.executorEnv.HADOOP_USER_NAME"] == user
    assert {*OF_CLUSTER, "namenode", "datanode"} == {
        name for name, service in SERVICES.items() if "cluster" in service.get("profiles", ())
    }
    classes = [SERVICES[name]["entrypoint"][1] for name in OF_CLUSTER[:-1]]
    assert [name.rpartition(".")[2] for name in classes] == ["Master", "Worker", "Worker"]
    assert {SERVICES[name]["entrypoint"][0] for name in OF_CLUSTER[:-1]} == {f"{SPARK_HOME}/bin/spark-class"}


def gigabytes(text: str) -> int:
    """Of a size such as 2g."""
    (number,) = re.fullmatch(r"(\d+)gb?", text).groups()  # type: ignore[union-attr]
    return int(number)


DOCKERFILE = DEPLOY / "Dockerfile"
(SPARK_HOME,) = re.findall(r"SPARK_HOME=(\S+)", DOCKERFILE.read_text(encoding="utf-8"))


ENTRY = DEPLOY / "entrypoint.sh"
ASKED_OF_EXECUTORS = {
    "SPARK_EXECUTOR_MEMORY": "2g",
    "SPARK_DRIVER_URL": "spark://d:1",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "pod-3",
    "SPARK_JAVA_OPT_10": "-Dten=x y",
    "SPARK_JAVA_OPT_9": "-Dnine",
}


def entered(tmp_path: Path, *words: str, **more: str) -> list[str]:
    """The command that the image's entry starts, word by word."""
    for name in ("java", "deduper", "spark/bin/spark-submit"):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text('#!/bin/bash\nprintf "%s\\n" "$(basename "$0")" "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SPARK_HOME": str(tmp_path / "spark"), **more}
    done = subprocess.run([str(ENTRY), *words], env=variables, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_image_is_the_service_and_the_pods_of_spark(tmp_path: Path) -> None:
    """Other words go to `deduper`; executors have the driver's options in their order, each one word."""
    assert entered(tmp_path, "run", "a b.yaml") == ["deduper", "run", "a b.yaml"]
    assert entered(tmp_path) == ["deduper"]
    executor = entered(tmp_path, "executor", HADOOP_CONF_DIR="/conf", **ASKED_OF_EXECUTORS)
    assert executor[:5] == ["java", "-Dnine", "-Dten=x y", "-Xms2g", "-Xmx2g"]
    assert executor[5:7] == ["-cp", f"/conf:{tmp_path}/spark/jars/*"]
    backend = executor[7]
    asked = dict(zip(executor[8::2], executor[9::2], strict=True))
    assert asked == {
        "--driver-url": "spark://d:1",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "app",
        "--hostname": "10.0.0.1",
        "--resourceProfileId": "0",
        "--podName": "pod-3",
    }
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as found:
        assert f"{backend.replace('.', '/')}.class" in found.namelist()
    driver = entered(tmp_path, "driver", "--class", "C", "app.py", SPARK_DRIVER_BIND_ADDRESS="10.0.0.2")
    assert driver[:3] == ["spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.2"]
    assert driver[3:] == ["--deploy-mode", "client", "--class", "C", "app.py"]


def test_the_image_is_made_of_what_is_here() -> None:
    """Every file that is copied exists and reaches the builder, every base is one exact version, the user a number."""
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert re.findall(r"^ARG BASE=(.*)$", text, re.MULTILINE) == re.findall(
        r"python:3\.11\.\d+-slim-bookworm$", text, re.M
    )
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    kept = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(Path(source).match(pattern) for pattern in kept), source
    assert re.search(r"^USER (\d+):\1$", text, re.MULTILINE)


@pytest.mark.slow
def test_linters_are_content() -> None:
    """hadolint with the Dockerfile, the schema of Compose with docker-compose.yml."""
    done = subprocess.run(
        [tool("hadolint"), "--no-color", str(DOCKERFILE)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    schema = [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(ROOT / "docker-compose.yml")]
    done = subprocess.run(schema, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def tool(name: str) -> str:
    """A program that is installed beside this Python."""
    return str(Path(sys.executable).with_name(name))


def locked(name: str) -> dict[str, Version]:
    """The versions of a lock file; every one has a hash."""
    text = (DEPLOY / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) for line in lines for word in line[1:])
    assert all(len(line) > 1 for line in lines)
    pinned = (line[0].partition("==") for line in lines)
    return {canonicalize_name(package): Version(number) for package, _, number in pinned}


def test_the_image_installs_what_the_project_asks_for() -> None:
    """Both lock files satisfy pyproject.toml, and lack nothing that their packages need. Else: scripts/lock.sh."""
    described = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = described["project"]
    versions = locked("requirements.txt")
    of_image = [project["optional-dependencies"][extra] for extra in ("hdfs", "kafka", "objects")]
    wanted = [Requirement(line) for lines in (project["dependencies"], *of_image) for line in lines]
    installed = {canonicalize_name(one.name): one for one in metadata.distributions()}
    for package, version in versions.items():
        if package in installed and installed[package].version == str(version):
            needed = (Requirement(line) for line in installed[package].requires or ())
            wanted += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert len(wanted) > len(project["dependencies"]) + 5
    for requirement in wanted:
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, str(requirement)
    build = locked("requirements-build.txt")
    for requirement in map(Requirement, described["build-system"]["requires"]):
        assert build[canonicalize_name(requirement.name)] in requirement.specifier, str(requirement)


def test_a_container_has_room_for_the_tables() -> None:
    """`shm_size` is above `store.memory` of the mounted config, and the log of each service is bounded."""
    memory = load_config(DEPLOY / "deduper.yaml", environment={}).store.memory
    (gigabytes,) = re.findall(r"(\d+)gb", SERVICES["deduper"]["shm_size"])
    assert int(gigabytes) * 2**30 > memory
    assert all(service["logging"]["options"].keys() == {"max-size", "max-file"} for service in SERVICES.values())


def test_the_health_check_asks_the_job_for_its_health() -> None:
    """A 503 of /healthz makes it fail, so the container turns unhealthy; an answer of 200 passes."""
    name, flag, code = SERVICES["deduper"]["healthcheck"]["test"][1:]
    assert "http://127.0.0.1:9108/healthz" in code
    for status in (200, 503):
        with Answering(status) as port:
            asked = [sys.executable, flag, code.replace("9108", str(port))]
            assert (subprocess.run(asked, capture_output=True, check=False).returncode == 0) == (status == 200), name


class Answering:
    """A server on this machine that answers one status to everything."""

    def __init__(self, status: int) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> int:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self.server.server_port

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


UNIT = DEPLOY / "deduper@.service"


def of_unit() -> dict[str, str]:
    """The settings of the unit."""
    return dict(line.split("=", 1) for line in UNIT.read_text(encoding="utf-8").splitlines() if re.match(r"\w+=", line))


def test_what_is_made_ahead_of_a_start_lies_where_the_unit_looks() -> None:
    """Commands of the page that run as the job's user name the unit's cache, and its folders are the user's."""
    unit, page = of_unit(), (ROOT / "docs/how-to/systemd.md").read_text(encoding="utf-8")
    cache = dict(word.split("=", 1) for word in unit["Environment"].split())["XDG_CACHE_HOME"]
    commands = re.findall(r"^ *runuser -u (\S+) -- (.*)$", page, re.MULTILINE)
    program = Path(unit["ExecStart"].split()[0]).parent
    assert len(commands) == 3
    for user, command in commands:
        assert user == unit["User"]
        assert re.match(rf"env XDG_CACHE_HOME={cache} {program}/\w+ ", command), command
    (made,) = re.findall(r"^ *install -d -o deduper -g deduper (.*)$", page, re.MULTILINE)
    folders = [f"/var/lib/{unit['StateDirectory']}", f"/var/cache/{unit['CacheDirectory']}"]
    assert made.split() == [folder.replace("%i", "clicks") for folder in folders]
    assert (unit["WorkingDirectory"], cache) == tuple(folders)


def test_compiled_code_is_made_by_one_program() -> None:
    """It has the kernels of all jobs, which no import compiles: in the image, in an archive, on a host."""
    for name in ("deploy/Dockerfile", "scripts/archive.sh", "docs/how-to/systemd.md", "docs/how-to/cluster.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "-m deduper.service.kernels" in text, name
        assert not re.search(r"import\W+deduper\.", text), name


def test_systemd_restarts_what_a_restart_may_mend() -> None:
    """Not after the exit codes that need a person; the job gets SIGTERM and the time to finish a window."""
    unit = of_unit()
    assert {int(code) for code in unit["RestartPreventExitStatus"].split()} == NO_RESTART
    assert (unit["Restart"], unit["KillMode"]) == ("on-failure", "mixed")
    assert int(unit["TimeoutStopSec"]) >= 120


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say, once the program exists."""
    text = UNIT.read_text(encoding="utf-8").replace("/opt/deduper/bin/deduper", "/bin/true")
    (tmp_path / "deduper@clicks.service").write_text(text, encoding="utf-8")
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "deduper@clicks.service")]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if "deduper@clicks" in line]
    assert (done.returncode, told) == (0, []), done.stderr


MANIFEST = DEPLOY / "kubernetes" / "deduper.yaml"


CLUSTER, APPLICATION = MANIFEST.with_name("cluster.yaml"), MANIFEST.with_name("spark-application.yaml")


def documents_of(manifest: Path) -> dict[str, dict[str, Any]]:
    """The documents of a manifest by their kind."""
    return {one["kind"]: one for one in YAML(typ="safe").load_all(manifest.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("manifest", [CLUSTER, MANIFEST])
def test_kubernetes_reads_the_manifest(manifest: Path) -> None:
    """Every document has the form of the API, strictly; an unknown field is refused."""
    for document in YAML(typ="safe").load_all(manifest.read_text(encoding="utf-8")):
        kubernetes_validate.validate(document, "1.36", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**document, "spec": {**document["spec"], "replica": 1}}, "1.36", strict=True)


def test_kubernetes_runs_one_pod_with_room(tmp_path: Path) -> None:
    """The config is one of ours; shared memory is above `store.memory`, the limit above that; probes ask its port."""
    documents = {one["kind"]: one for one in YAML(typ="safe").load_all(MANIFEST.read_text(encoding="utf-8"))}
    (tmp_path / "clicks.yaml").write_text(documents["ConfigMap"]["data"]["clicks.yaml"], encoding="utf-8")
    config = load_config(tmp_path / "clicks.yaml", environment={})
    spec = documents["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    (shared,) = [one["emptyDir"]["sizeLimit"] for one in pod["volumes"] if "emptyDir" in one]
    assert config.store.memory < int(shared.removesuffix("Gi")) * 2**30
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Gi"))
    assert heap_bytes(config.spark) + config.store.memory <= limit * 2**30, "a start would warn"
    assert limit >= int(shared.removesuffix("Gi")) + 3
    assert spec["replicas"] == 1
    assert config.metrics is not None
    assert container["ports"] == [{"name": "metrics", "containerPort": config.metrics.port}]
    assert config.metrics.host == "0.0.0.0"
    probes = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/healthz",
    }
    assert {probe["port"] for probe in probes.values()} == {"metrics"}
    assert any(config.store.path.is_relative_to(one["mountPath"]) for one in container["volumeMounts"])
    user = re.findall(r"^USER (\d+)", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [str(pod["securityContext"]["runAsUser"])] == user
    assert documents["Service"]["spec"]["selector"] == spec["selector"]["matchLabels"] == pod_labels(spec)


def test_executors_on_kubernetes_reach_their_driver_and_have_room(tmp_path: Path) -> None:
    """The names and ports of the config are those of the pod and its service, which answers before the job is ready."""
    documents = documents_of(CLUSTER)
    (tmp_path / "clicks.yaml").write_text(documents["ConfigMap"]["data"]["clicks.yaml"], encoding="utf-8")
    config = load_config(tmp_path / "clicks.yaml", environment={})
    name = documents["StatefulSet"]["metadata"]["name"]
    service, pod = documents["Service"]["spec"], documents["StatefulSet"]["spec"]["template"]["spec"]
    assert config.spark["spark.kubernetes.driver.pod.name"] == f"{name}-0"
    place = f"{documents['Service']['metadata']['name']}.{config.spark['spark.kubernetes.namespace']}.svc"
    assert config.spark["spark.driver.host"] == place
    assert service["publishNotReadyAddresses"]
    assert service["selector"] == pod_labels(documents["StatefulSet"]["spec"])
    ports = {one["port"] for one in service["ports"]}
    assert ports >= {config.spark["spark.driver.port"], config.spark["spark.driver.blockManager.port"]}
    assert config.spark["spark.kubernetes.container.image"] == pod["containers"][0]["image"]
    account = documents["ServiceAccount"]["metadata"]["name"]
    assert pod["serviceAccountName"] == account == documents["RoleBinding"]["subjects"][0]["name"]
    assert config.spark["spark.kubernetes.authenticate.executor.serviceAccountName"] == account
    assert documents["RoleBinding"]["roleRef"]["name"] == documents["Role"]["metadata"]["name"]
    shared = str(config.spark["spark.kubernetes.executor.volumes.emptyDir.shm.options.sizeLimit"])
    overhead = str(config.spark["spark.executor.memoryOverhead"])
    assert config.store.memory < int(shared.removesuffix("Gi")) * 2**30 < gigabytes(overhead) * 2**30
    limit = int(pod["containers"][0]["resources"]["limits"]["memory"].removesuffix("Gi"))
    assert heap_bytes(config.spark) + 2**30 <= limit * 2**30, "the driver's Java and Python"
    assert not config.store.url.startswith(("rocksdb:", "file:"))
    assert config.store.shards % (3 * int(str(config.spark["spark.executor.cores"]))) == 0


def test_the_spark_operator_reads_its_resource(tmp_path: Path) -> None:
    """By the operator's own models: nothing is unknown to them, and the image is the one that they start."""
    documents = documents_of(APPLICATION)
    kubernetes_validate.validate(documents["ConfigMap"], "1.36", strict=True)
    resource = documents["SparkApplication"]
    read = SparkV1beta2SparkApplication.from_dict(resource)
    assert read is not None
    # What a model does not have it leaves out.
    assert read.to_dict() == resource
    with pytest.raises(ValidationError):
        SparkV1beta2SparkApplication.from_dict({**resource, "spec": {**resource["spec"], "restartPolicy": 1}})
    spec = resource["spec"]
    assert spec["sparkVersion"] == pyspark.__version__
    packages = str(Path(SPARK_HOME).parent)
    main = spec["mainApplicationFile"].removeprefix(f"local://{packages}/")
    assert (ROOT / main).is_file()
    (tmp_path / "clicks.yaml").write_text(documents["ConfigMap"]["data"]["clicks.yaml"], encoding="utf-8")
    config = load_config(tmp_path / "clicks.yaml", environment={})
    # The operator sets the names of pods, and executors; a job's own would win.
    assert set(config.spark) == {"spark.master"}
    command, place, *_ = spec["arguments"]
    assert command == "run"
    (mounted,) = spec["driver"]["volumeMounts"]
    assert place == f"{mounted['mountPath']}/clicks.yaml"
    named = {one["name"]: one for one in spec["volumes"]}
    assert named[mounted["name"]]["configMap"]["name"] == documents["ConfigMap"]["metadata"]["name"]
    assert spec["driver"]["serviceAccount"] == documents_of(CLUSTER)["ServiceAccount"]["metadata"]["name"]
    options = spec["sparkConf"]["spark.driver.extraJavaOptions"].split()
    assert options == [f"-D{name}={value}" for name, value in JVM_PROPERTIES.items()]


def pod_labels(spec: dict[str, Any]) -> dict[str, str]:
    """The labels of a stateful set's pods."""
    labels: dict[str, str] = spec["template"]["metadata"]["labels"]
    return labels


def test_the_example_is_scraped_where_it_serves() -> None:
    """The Prometheus file of examples/kafka points at the example's port, and at the alerts."""
    folder = ROOT / "examples" / "kafka"
    metrics = load_config(folder / "deduper.yaml", environment={}).metrics
    assert metrics is not None
    prometheus = loaded(folder / "prometheus.yml")
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == [f"{metrics.host}:{metrics.port}"]
    rules = [(folder / name).resolve() for name in prometheus["rule_files"]]
    assert rules == [DEPLOY / "rules/*.yml", DEPLOY / "alerts.yml"]


def test_the_mounted_config_is_one_of_ours() -> None:
    """It validates, writes where a volume is, and its topics are made before it starts."""
    config = load_config(DEPLOY / "deduper.yaml", environment={})
    targets = [target for _, target, *_ in mounts(SERVICES["deduper"])]
    assert any(config.store.path.is_relative_to(target) for target in targets if not target.endswith(".yaml"))
    assert config.metrics is not None
    assert f"127.0.0.1:{config.metrics.port}:{config.metrics.port}" in SERVICES["deduper"]["ports"]
    made = subprocess.run(
        ["bash", "-c", f"kafka() {{ :; }}; {topics_script()}"], capture_output=True, text=True, check=True
    ).stdout.split()
    source: Any = config.source
    sinks: list[Any] = [sink for _, sink in config.sinks.items()]
    assert {*source.topics, *(sink.topic for sink in sinks)} == set(made)
    assert source.bootstrap_servers == SERVICES["topics"]["environment"]["BROKER"]
    assert source.bootstrap_servers in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert "/etc/deduper/deduper.yaml" in SERVICES["deduper"]["command"]


def topics_script() -> str:
    """The script with its tool acted out: it prints the topics that it would make."""
    text = (DEPLOY / "create-topics.sh").read_text(encoding="utf-8")
    acted, count = re.subn(r"topic\(\) \{.*?\n\}", 'topic() { echo "$1"; }', text, flags=re.DOTALL)
    assert count == 1
    return acted


@pytest.mark.parametrize("name", ["create-topics.sh", "entrypoint.sh", "hdfs/namenode.sh", "../scripts/archive.sh"])
def test_scripts_parse(name: str) -> None:
    """Whatever Bash says of their form."""
    subprocess.run(["bash", "-n", str(DEPLOY / name)], check=True)


def loaded_properties(name: str) -> dict[str, str]:
    """A file of Hadoop's settings."""
    properties = ElementTree.parse(DEPLOY / "hdfs" / name).getroot().findall("property")
    return {one.findtext("name", ""): one.findtext("value", "") for one in properties}


@pytest.mark.parametrize("name", ["core-site.xml", "hdfs-site.xml"])
def test_hadoop_reads_its_settings(name: str) -> None:
    """Each with a name and a value; the name node by the name it has here."""
    found = loaded_properties(name)
    assert found
    assert all(found.values())
    assert found.get("fs.defaultFS", "hdfs://namenode:8020") == "hdfs://namenode:8020"


def test_prometheus_scrapes_what_runs() -> None:
    """Every target is a service of the file, at its port; Prometheus' own checker agrees where it is installed."""
    path = DEPLOY / "prometheus.yml"
    config = loaded(path)
    assert set(config) <= {"global", "scrape_configs", "rule_files"}
    targets = {
        target for job in config["scrape_configs"] for group in job["static_configs"] for target in group["targets"]
    }
    metrics = load_config(DEPLOY / "deduper.yaml", environment={}).metrics
    assert metrics is not None
    assert f"deduper:{metrics.port}" in targets
    assert {target.split(":")[0] for target in targets} <= {*SERVICES, "127.0.0.1"}
    promtool = shutil.which("promtool")
    if promtool is not None:
        subprocess.run([promtool, "check", "config", str(path)], check=True, capture_output=True)


def test_alerts_ask_for_metrics_that_there_are() -> None:
    """Or by rules that are recorded; both files are mounted beside the one that names them, where the checker looks."""
    (alerts,) = loaded(DEPLOY / "alerts.yml")["groups"]
    (recording,) = loaded(DEPLOY / "rules/recording.yml")["groups"]
    recorded = {rule["record"] for rule in recording["rules"]}
    asked = {name for rule in (*alerts["rules"], *recording["rules"]) for name in names_in(rule["expr"])}
    assert len(asked) > 40
    assert [name for name in asked if name not in recorded and not is_shown(name)] == []
    assert recorded <= asked | {name for query in queries() for name in names_in(query)}, "a rule that nobody uses"
    assert loaded(DEPLOY / "prometheus.yml")["rule_files"] == ["rules/*.yml", "alerts.yml"]
    mounted = {target: source for source, target, *_ in mounts(SERVICES["prometheus"])}
    assert mounted["/etc/prometheus/alerts.yml"].endswith("deploy/alerts.yml")
    assert mounted["/etc/prometheus/rules"].endswith("deploy/rules")


@pytest.mark.skipif(shutil.which("amtool") is None, reason="Alertmanager is not installed")
def test_alertmanager_takes_its_example() -> None:
    """Critical alerts reach the person on call, warnings the channel; each alert that it names is one."""
    file = DEPLOY / "alertmanager.yml"
    subprocess.run(["amtool", "check-config", str(file)], check=True, capture_output=True)
    for severity, receiver in (("critical", "on-call"), ("warning", "channel")):
        command = ["amtool", "config", "routes", "test", f"--config.file={file}", f"severity={severity}", "job=deduper"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert done.stdout.split() == [receiver]
    named = set(re.findall(r"Deduper\w+", file.read_text(encoding="utf-8")))
    assert named <= {rule["alert"] for rule in loaded(DEPLOY / "alerts.yml")["groups"][0]["rules"]}


def names_in(query: str) -> list[str]:
    """The metrics of a query, and the rules that are recorded."""
    return re.findall(r"(?:[a-z]+:)?deduper_\w+(?::\w+)?", query)


def is_shown(name: str) -> bool:
    """Whether the job's page has a metric of this name."""
    base = re.sub(r"_(bucket|sum|count|total)$", "", name)
    estimate = re.sub(r"_estimate(_low|_high)?_", "_estimate{name}_", name)
    return any(f'"{one}"' in SHOWN for one in (name, base, estimate))


SHOWN = "".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "deduper/service").glob("*.py")))
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/deduper.json").read_text(encoding="utf-8"))


def queries() -> list[str]:
    """Every query of the dashboard."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def test_grafana_finds_its_dashboard() -> None:
    """The provisioned folder is the mounted one, and every panel asks the provisioned source."""
    (provider,) = loaded(DEPLOY / "grafana/provisioning/dashboards/deduper.yaml")["providers"]
    (source,) = loaded(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert provider["options"]["path"] in [target for _, target, *_ in mounts(SERVICES["grafana"])]
    host, port = source["url"].removeprefix("http://").split(":")
    assert SERVICES[host]["ports"] == [f"127.0.0.1:{port}:{port}"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == panel["datasource"]["uid"] == source["uid"], panel["title"]


def test_panels_lie_side_by_side() -> None:
    """No two over each other, none beyond the edge, each with an id of its own."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + column, place["y"] + row) for column in range(place["w"]) for row in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_panels_ask_for_metrics_that_there_are() -> None:
    """Each name is one that the job shows; of a histogram its parts."""
    recorded = {rule["record"] for rule in loaded(DEPLOY / "rules/recording.yml")["groups"][0]["rules"]}
    asked = {name for query in queries() for name in names_in(query)}
    assert len(asked) > 12
    assert [name for name in asked if name not in recorded and not is_shown(name)] == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_every_query_of_the_dashboard_is_one(tmp_path: Path) -> None:
    """Prometheus' own checker reads each as the expression of a rule."""
    asked = [filled(query) for query in (*queries(), *(one["expr"] for one in DASHBOARD["annotations"]["list"]))]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(asked)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(asked)} rules found" in done.stdout


def test_the_dashboard_is_the_one_that_its_script_writes() -> None:
    """A change by hand would be lost."""
    script = [sys.executable, str(ROOT / "scripts/dashboard.py"), "--check"]
    assert subprocess.run(script, check=False).returncode == 0, "run `python scripts/dashboard.py`"


def test_every_panel_says_what_it_shows() -> None:
    """A description, a unit, and queries for the chosen job and instance; rows from health to runtime."""
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Healthy?", "Duplicates?", "Lateness?", "Throughput?", "Topics?", "Store?", "Runtime?"]
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["job", "instance"]
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            assert len(panel["description"]) > 10, panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
    asked = [*queries(), *(one["expr"] for one in DASHBOARD["annotations"]["list"])]
    for query in asked:
        selectors = re.findall(r"(?:deduper_\w+(?::\w+)?|process_\w+|ALERTS|\bup)({[^}]*})?", query)
        assert selectors, query
        assert all('job=~"$job",instance=~"$instance"' in one for one in selectors), query
