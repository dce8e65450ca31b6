"""Files in examples/deploy fit each other, and the server that they start."""

from __future__ import annotations

import configparser
import importlib.util
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.serving import Client, run

from paceline.cli.options import spread_options
from paceline.cli.serve import serve
from paceline.serving.settings import Settings

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "examples" / "deploy"
OPTIONS = {
    f"--{name.replace('_', '-')}" for name in inspect.signature(spread_options(serve)).parameters
}


def objects(name: str) -> dict[str, Any]:
    text = (DEPLOY / "kubernetes" / name).read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def options(arguments: list[str]) -> dict[str, str | None]:
    following = [*arguments[1:], None]
    return {a: b for a, b in zip(arguments, following, strict=True) if a and a.startswith("--")}


def test_the_pods_options_are_the_servers_and_their_times_fit() -> None:
    pod = objects("paceline.yaml")["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = options(container["args"])
    assert set(given) <= OPTIONS
    [_, wait] = container["lifecycle"]["preStop"]["exec"]["command"]
    drain = float(given["--shutdown-timeout"] or 0)
    assert int(wait) + drain + 10 <= pod["terminationGracePeriodSeconds"]
    assert container["startupProbe"]["httpGet"]["path"] == "/health"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    assert "tcpSocket" in container["livenessProbe"]  # /health is 503 in a drain


def test_labels_ports_and_names_fit() -> None:
    found = objects("paceline.yaml") | objects("autoscaling.yaml") | objects("inferencepool.yaml")
    deployment = found["Deployment"]
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    [container] = template["spec"]["containers"]
    [port] = container["ports"]
    pool = found["InferencePool"]["spec"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert pool["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert pool["targetPorts"] == [{"number": port["containerPort"]}]
    assert port["containerPort"] == Settings().port
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(Settings().port)
    assert found["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    [rule] = found["HTTPRoute"]["spec"]["rules"]
    assert rule["backendRefs"][0]["name"] == found["InferencePool"]["metadata"]["name"]


def test_metrics_that_are_named_are_there() -> None:
    async def page(client: Client) -> str:
        return (await client.http.get("/metrics")).text

    text = run(page, vllm_metrics=True)
    [trigger] = objects("autoscaling.yaml")["ScaledObject"]["spec"]["triggers"]
    pool = (DEPLOY / "kubernetes" / "inferencepool.yaml").read_text()
    [named] = re.findall(r"--vllm-metrics gives: (.*)\.", pool)
    names = [re.findall(r"vllm:(\w+)", trigger["metadata"]["query"])[0], *named.split(", ")]
    assert len(names) == 4
    for name in names:
        assert re.search(rf"^vllm:{name} ", text, re.MULTILINE)


def test_systemd_starts_the_server_and_waits_for_its_drain() -> None:
    unit = configparser.ConfigParser(strict=False)  # which keeps the last of repeated keys
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "systemd" / "paceline.service")
    service = unit["Service"]
    [_, command, *arguments] = shlex.split(service["ExecStart"])
    assert command == "serve"
    assert set(options(arguments)) <= OPTIONS
    assert service["KillSignal"] == "SIGTERM"
    assert int(service["TimeoutStopSec"]) > Settings().shutdown_timeout


def test_ray_takes_the_application() -> None:
    pytest.importorskip("ray.serve", reason="ray is not installed: pip install 'ray[serve]'")
    spec = importlib.util.spec_from_file_location("ray_serve", DEPLOY / "ray_serve.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert type(module.deployment).__name__ == "Application"
