"""docker-compose.yml and deploy/, as far as they can be checked without Docker: form, places, versions, queries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyspark
import pytest
from ruamel.yaml import YAML

import deduper
from deduper.config.load import load_config
from tests.services.jars import BROKER_JARS, KAFKA_VERSION

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
SERVICE_KEYS = {
    *("build", "command", "depends_on", "entrypoint", "environment", "healthcheck", "hostname", "image", "init"),
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
    assert set(COMPOSE) == {"name", "services", "volumes"}
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
            assert set(SERVICES[other].get("profiles", ())) <= set(service.get("profiles", ())), (name, other)
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
    assert image("deduper") == ("deduper", deduper.__version__)
    for name in SERVICES:
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", image(name)[1]), name


def test_the_image_is_made_of_what_is_here() -> None:
    """Every file that is copied exists, and every base is pinned."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert set(bases) == {"python:3.11-slim-bookworm"}
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    extras = re.search(r"'\.\[([a-z,]+)\]'", text)
    assert extras is not None
    assert all(f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text() for extra in extras[1].split(","))


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


@pytest.mark.parametrize("name", ["create-topics.sh", "hdfs/namenode.sh"])
def test_scripts_parse(name: str) -> None:
    """Whatever Bash says of their form."""
    subprocess.run(["bash", "-n", str(DEPLOY / name)], check=True)


@pytest.mark.parametrize("name", ["core-site.xml", "hdfs-site.xml"])
def test_hadoop_reads_its_settings(name: str) -> None:
    """Each with a name and a value; the name node by the name it has here."""
    found = {
        one.findtext("name"): one.findtext("value")
        for one in ElementTree.parse(DEPLOY / "hdfs" / name).getroot().findall("property")
    }
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
    """Each says where to look; the file is mounted beside the one that names it, where the checker looks too."""
    (group,) = loaded(DEPLOY / "alerts.yml")["groups"]
    shown = (ROOT / "deduper/service/metrics.py").read_text(encoding="utf-8")
    asked = {name for rule in group["rules"] for name in re.findall(r"deduper_\w+", rule["expr"])}
    assert len(asked) > 4
    assert [name for name in asked if name not in shown] == []
    assert all(
        "`" in rule["annotations"]["summary"] or "log" in rule["annotations"]["summary"] for rule in group["rules"]
    )
    assert loaded(DEPLOY / "prometheus.yml")["rule_files"] == ["alerts.yml"]
    mounted = {target: source for source, target, *_ in mounts(SERVICES["prometheus"])}
    assert mounted["/etc/prometheus/alerts.yml"].endswith("deploy/alerts.yml")


DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/deduper.json").read_text(encoding="utf-8"))


def test_grafana_finds_its_dashboard() -> None:
    """The provisioned folder is the mounted one, and every panel asks the provisioned source."""
    (provider,) = loaded(DEPLOY / "grafana/provisioning/dashboards/deduper.yaml")["providers"]
    (source,) = loaded(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert provider["options"]["path"] in [target for _, target, *_ in mounts(SERVICES["grafana"])]
    host, port = source["url"].removeprefix("http://").split(":")
    assert SERVICES[host]["ports"] == [f"127.0.0.1:{port}:{port}"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
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
    shown = (ROOT / "deduper/service/metrics.py").read_text(encoding="utf-8")
    asked = {
        name
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
        for name in re.findall(r"deduper_\w+", target["expr"])
    }
    assert len(asked) > 12
    missing = [name for name in asked if re.sub(r"_(bucket|total)$", "", name) not in shown]
    assert missing == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_every_query_of_the_dashboard_is_one(tmp_path: Path) -> None:
    """Prometheus' own checker reads each as the expression of a rule."""
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    queries += [one["expr"] for one in DASHBOARD["annotations"]["list"]]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(queries)} rules found" in done.stdout
