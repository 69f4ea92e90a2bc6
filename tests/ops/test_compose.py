"""docker-compose.yml and the image's Dockerfile: they are valid, match the rest of the project, and can be scaled."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from services.broker.kafka_jars import kafka_version
from services.broker.registry import API, APICURIO
from services.broker.settings import SINGLE_NODE_SETTINGS
from services.cli import app
from services.lazy_commands import LazyCommand
from services.process.tracing import ENDPOINTS
from tests.broker_fixture import container_environment

ROOT = Path(__file__).resolve().parents[2]
IMAGE_SERVICES = ("worker", "coordinator", "ui", "demo-producer")
SPARK_SERVICES = ("spark-master", "spark-worker")
OBSERVE_SERVICES = ("prometheus", "grafana")
REGISTRY_SERVICES = ("registry",)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


@pytest.fixture(scope="module")
def dockerfile() -> list[str]:
    """The instructions, continuation lines joined."""
    text = (ROOT / "ops/docker/Dockerfile").read_text().replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def compose_command() -> list[str] | None:
    """Docker Compose on this machine: the plug-in, the program of version 1, or none."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            asked = subprocess.run([*command, "version"], capture_output=True, check=False)
            if asked.returncode == 0:
                return command
    return None


def test_compose_accepts_the_file() -> None:
    command = compose_command()
    if command is None:
        pytest.skip("no Docker Compose on this machine")
    environment = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
    checked = subprocess.run(
        [*command, "--project-directory", str(ROOT), "-f", str(ROOT / "docker-compose.yml"), "config", "-q"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_kafka_is_the_release_of_the_development_broker(services: dict[str, dict[str, Any]]) -> None:
    assert services["kafka"]["image"] == f"apache/kafka:{kafka_version()}"


def test_kafka_has_the_settings_of_the_development_broker(services: dict[str, dict[str, Any]]) -> None:
    wanted = container_environment(SINGLE_NODE_SETTINGS)
    environment = services["kafka"]["environment"]
    assert {name: environment.get(name) for name in wanted} == wanted


def test_every_service_can_be_watched_and_waits_for_kafka(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == {"kafka", *IMAGE_SERVICES, *SPARK_SERVICES, *OBSERVE_SERVICES, *REGISTRY_SERVICES}
    assert services["kafka"]["healthcheck"]["test"]
    assert "healthcheck" not in services["worker"]  # the image's own
    for name in (*IMAGE_SERVICES, "spark-master"):
        assert services[name]["depends_on"]["kafka"] == {"condition": "service_healthy"}
    assert services["spark-worker"]["depends_on"]["spark-master"] == {"condition": "service_healthy"}


def test_spark_is_there_when_it_is_asked_for(services: dict[str, dict[str, Any]]) -> None:
    assert {name for name, service in services.items() if service.get("profiles") == ["spark"]} == set(SPARK_SERVICES)
    master, worker = (services[name] for name in SPARK_SERVICES)
    assert master["build"] == {**services["worker"]["build"], "target": "spark"}
    assert "build" not in worker
    assert worker["image"] == master["image"] != services["worker"]["image"]
    assert all("ports" not in service for service in (master, worker))


def test_sparks_parts_find_each_other_and_their_files(services: dict[str, dict[str, Any]]) -> None:
    """`test_spark_cluster` checks that these commands start a Spark on which Weir runs."""
    master, worker = (services[name] for name in SPARK_SERVICES)
    told = dict(zip(master["command"][1::2], master["command"][2::2], strict=True))
    place = f"spark://{told['--host']}:{told['--port']}"
    assert told["--host"] == "spark-master"
    assert place in worker["command"]
    assert master["environment"]["WEIR_SPARK_MASTER"] == place
    assert f"http://127.0.0.1:{told['--webui-port']}/" in master["healthcheck"]["test"][-1]
    share = f"spark-share:{master['environment']['WEIR_SPARK_DIR']}"
    assert worker["volumes"] == [share]
    assert share in master["volumes"]


def test_sparks_health_is_asked_for_without_a_mute_connection(services: dict[str, dict[str, Any]]) -> None:
    """A connection to the master's port that sent nothing was an error in its log every 5 s."""
    check = services["spark-master"]["healthcheck"]["test"]
    assert check[:3] == ["CMD", "python", "-c"]
    compile(check[3], "healthcheck", "exec")
    assert "7077" not in check[3]


def test_prometheus_and_grafana_are_there_when_they_are_asked_for(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        profiles = {"spark": SPARK_SERVICES, "observe": OBSERVE_SERVICES, "registry": REGISTRY_SERVICES}
        assert service.get("profiles", []) == [profile for profile, names in profiles.items() if name in names]
    for name in OBSERVE_SERVICES:
        service = services[name]
        assert re.fullmatch(r"(prom/prometheus:v|grafana/grafana:)\d+\.\d+\.\d+", service["image"])
        assert service["healthcheck"]["test"][0] == "CMD"
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["restart"] == "unless-stopped"
    assert services["grafana"]["depends_on"] == {"prometheus": {"condition": "service_healthy"}}


def test_the_registry_is_the_development_registrys_release(services: dict[str, dict[str, Any]]) -> None:
    """Workers find it, and it finds Kafka."""
    registry = services["registry"]
    assert registry["image"] == f"apicurio/apicurio-registry:{APICURIO.version()}"
    assert registry["profiles"] == ["registry"]
    assert all(port.startswith("127.0.0.1:") for port in registry["ports"])
    assert registry["environment"]["APICURIO_KAFKASQL_BOOTSTRAP_SERVERS"] == "kafka:19092"
    for name in ("worker", "coordinator", "ui", "spark-master"):  # whoever reads the query file
        assert services[name]["environment"]["WEIR_REGISTRY"].endswith(f"http://registry:8080{API}}}")


def test_prometheus_and_grafana_are_published_on_loopback_only(services: dict[str, dict[str, Any]]) -> None:
    assert services["prometheus"]["ports"] == ["127.0.0.1:${PROMETHEUS_PORT:-9090}:9090"]
    assert services["grafana"]["ports"] == ["127.0.0.1:${GRAFANA_PORT:-3000}:3000"]


def test_grafana_can_be_looked_at_and_not_changed(services: dict[str, dict[str, Any]]) -> None:
    """Its image has an administrator with a known password unless that is switched off."""
    environment = services["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"


def test_files_of_prometheus_and_grafana_are_mounted_where_these_look(services: dict[str, dict[str, Any]]) -> None:
    mounts: dict[str, Path] = {}
    for name in OBSERVE_SERVICES:
        for volume in services[name]["volumes"]:
            source, target, *mode = volume.split(":")
            if source.startswith("."):
                assert mode == ["ro"], volume
                mounts[target] = ROOT / source
    assert (mounts["/etc/prometheus"] / "prometheus.yml").is_file()
    assert (mounts["/etc/grafana/provisioning/datasources"] / "prometheus.yml").is_file()
    provided = yaml.safe_load((mounts["/etc/grafana/provisioning/dashboards"] / "weir.yml").read_text())
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert [provider["options"]["path"] for provider in provided["providers"]] == [str(home.parent)]
    assert (mounts[str(home.parent)] / home.name).is_file()


def test_prometheus_asks_the_workers(services: dict[str, dict[str, Any]]) -> None:
    config = yaml.safe_load((ROOT / "ops/observe/prometheus/prometheus.yml").read_text())
    (found,) = config["scrape_configs"][0]["dns_sd_configs"]
    assert found["names"] == ["worker"]
    assert found["port"] == services["worker"]["environment"]["WEIR_HTTP_PORT"]
    source = yaml.safe_load((ROOT / "ops/observe/grafana/provisioning/datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


def test_image_is_built_once(services: dict[str, dict[str, Any]]) -> None:
    """Two concurrent builds of one tag can collide: the image store refuses the second."""
    assert services["worker"]["build"] == {"context": ".", "dockerfile": "ops/docker/Dockerfile"}
    for name in ("coordinator", "demo-producer"):
        assert "build" not in services[name]
        assert services[name]["image"] == services["worker"]["image"]
        assert "worker" in services[name]["depends_on"]  # so the image is built first


def test_how_many_there_are_outlives_one_up(services: dict[str, dict[str, Any]]) -> None:
    """`up` without the `--scale` of the last one removed workers."""
    assert services["worker"]["deploy"] == {"replicas": "${WEIR_WORKERS:-1}"}
    assert services["spark-worker"]["deploy"] == {"replicas": "${SPARK_WORKERS:-1}"}


def test_other_containers_can_ask_a_worker_and_other_machines_cannot(services: dict[str, dict[str, Any]]) -> None:
    """The port is on loopback unless it is configured otherwise."""
    assert services["worker"]["environment"]["WEIR_HTTP_BIND"] == "0.0.0.0"
    assert services["worker"]["expose"] == [str(services["worker"]["environment"]["WEIR_HTTP_PORT"])]
    assert "ports" not in services["worker"]


def test_no_service_keeps_replicas_from_starting(services: dict[str, dict[str, Any]]) -> None:
    """`--scale worker=3` needs no container name and no host port."""
    assert all("container_name" not in service for service in services.values())
    assert "ports" not in services["worker"]


def test_kafka_is_published_on_loopback_only(services: dict[str, dict[str, Any]]) -> None:
    assert all(port.startswith("127.0.0.1:") for port in services["kafka"]["ports"])


def test_state_is_in_named_volumes(compose: dict[str, Any], services: dict[str, dict[str, Any]]) -> None:
    named = set(compose["volumes"])
    mounts = {
        name: [volume.split(":")[0] for volume in services[name]["volumes"]] for name in ("kafka", "worker")
    }
    assert mounts["kafka"] == ["kafka-data"]
    assert "worker-state" in mounts["worker"]
    assert "prometheus-data:/prometheus" in services["prometheus"]["volumes"]
    assert {"kafka-data", "worker-state", "spark-share", "prometheus-data"} == named
    state_dir = services["worker"]["environment"]["WEIR_STATE_DIR"]
    assert f"worker-state:{state_dir}" in services["worker"]["volumes"]


def test_default_query_file_exists(services: dict[str, dict[str, Any]]) -> None:
    for name in ("worker", "coordinator", "spark-master"):
        (mounted,) = (volume for volume in services[name]["volumes"] if "query.sql" in volume)
        default = re.fullmatch(r"\$\{WEIR_QUERY_FILE:-(.+?)\}:(.+):ro", mounted)
        assert default is not None
        assert (ROOT / default.group(1)).is_file()
        assert services[name]["environment"]["WEIR_QUERY_FILE"] == default.group(2)


def _loaded(command: Any) -> Any:
    """The command with its options."""
    return command.load() if isinstance(command, LazyCommand) else command


def test_commands_and_variables_are_known_to_the_command_line(services: dict[str, dict[str, Any]]) -> None:
    weir: Any = typer.main.get_command(app)
    for name in IMAGE_SERVICES:
        command = weir
        for word in services[name]["command"]:
            command = _loaded(command.commands[word])
        variables = {parameter.envvar for parameter in command.params}
        traces = set(ENDPOINTS) if name == "worker" else set[str]()
        assert set(services[name]["environment"]) <= variables | traces


def test_spark_commands_know_the_masters_variables(services: dict[str, dict[str, Any]]) -> None:
    weir: Any = typer.main.get_command(app)
    known = {
        name: {parameter.envvar for parameter in _loaded(weir.commands[name]).params}
        for name in ("cleanup", "backfill", "audit")
    }
    for variable in services["spark-master"]["environment"]:
        wanting = {name for name, variables in known.items() if variable not in variables}
        assert wanting <= ({"cleanup"} if variable in ("WEIR_SPARK_DIR", "WEIR_QUERY_FILE") else set())


def test_image_runs_as_an_ordinary_user_and_is_compiled_ahead(dockerfile: list[str]) -> None:
    """This holds for every target; a stage starts with the user of the stage that it extends."""
    assert dockerfile[0] == "FROM python:3.11-slim AS plain"
    user = dockerfile.index("USER weir")
    last = "USER weir"
    for line in dockerfile[user:]:
        assert not line.startswith("FROM") or last == "USER weir"
        last = line if line.startswith("USER ") else last
    assert last == "USER weir"
    assert dockerfile.index("RUN weir warmup") > user
    assert any("--constraint constraints.txt" in line for line in dockerfile)


def test_stages(dockerfile: list[str], services: dict[str, dict[str, Any]]) -> None:
    """What is built when no target is named has no Spark."""
    stages = [line.split()[1:] for line in dockerfile if line.startswith("FROM")]
    assert stages == [["python:3.11-slim", "AS", "plain"], ["plain", "AS", "spark"], ["plain", "AS", "weir"]]
    assert dockerfile[-1] == "FROM plain AS weir"
    installed = dockerfile[dockerfile.index("FROM plain AS spark") :]
    assert any("'optional-dependencies']['spark']" in line for line in installed)
    assert any("jre-headless" in line for line in installed)


def test_image_checks_its_health(dockerfile: list[str]) -> None:
    (check,) = (line for line in dockerfile if line.startswith("HEALTHCHECK"))
    assert "/healthz" in check
    command = json.loads(check.split("CMD", 1)[1])
    compile(command[2], "healthcheck", "exec")


def test_image_context_has_what_the_dockerfile_copies(dockerfile: list[str]) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [source for line in dockerfile if line.startswith("COPY") for source in line.split()[1:-1]]
    for source in copied:
        assert (ROOT / source).exists(), source
        assert Path(source).parts[0] in allowed, source
