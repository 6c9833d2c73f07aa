"""Dockerfile, compose file and Kubernetes manifests, read by the tools of those who run them."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from ratekeeper import Policy
from ratekeeper.commands.app import app
from tests.real.proxies import DEPLOY, binary

pytestmark = pytest.mark.real
TOOLS = Path(sys.prefix, "tools")


def told(*words, **environment):
    found = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    return found.returncode, found.stdout + found.stderr


def test_hadolint_has_nothing_to_say_about_the_dockerfile():
    # Versions of Debian packages are gone from the mirrors within weeks: pinned, the image could not be built.
    words = [binary("hadolint", TOOLS / "hadolint"), "--no-color", "--ignore", "DL3008", DEPLOY / "Dockerfile"]
    assert told(*words) == (0, "")


def test_compose_reads_its_file():
    words = [binary("docker-compose"), "-f", DEPLOY / "compose/compose.yaml", "config"]
    code, text = told(*words, RATEKEEPER_ADMIN_TOKEN="sesame")
    assert code == 0, text
    found = yaml.safe_load(text)["services"]["ratekeeper"]
    assert found["environment"] == {"RATEKEEPER_ADMIN_TOKEN": "sesame"}
    assert "choose one" in told(*words, RATEKEEPER_ADMIN_TOKEN="")[1]  # nobody starts it with an empty one


@pytest.mark.parametrize("file", ["shared.yaml", "sidecar.yaml"])
def test_kubernetes_knows_every_field(file):
    validate = pytest.importorskip("kubernetes_validate")
    for part in yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text()):
        validate.validate(part, validate.latest_version(), strict=True)
    broken = {**part, "spec": {**part["spec"], "replicaz": 2}}
    with pytest.raises(validate.ValidationError):
        validate.validate(broken, validate.latest_version(), strict=True)


CHART = DEPLOY / "helm" / "ratekeeper"


def helm(*words):
    return told(binary("helm", TOOLS / "helm"), *words)


def rendered(*settings):
    code, text = helm("template", "limits", CHART, *settings)
    assert code == 0, text
    return {part["kind"]: part for part in yaml.safe_load_all(text) if part}


def test_helm_has_nothing_to_say_about_the_chart():
    code, text = helm("lint", "--strict", CHART)
    assert code == 0, text
    assert "0 chart(s) failed" in text
    assert "[WARNING]" not in text


def test_the_chart_renders_what_kubernetes_knows():
    validate = pytest.importorskip("kubernetes_validate")
    every = ("--set=adminTokenSecret=ratekeeper,extraArgs={--workers=2},imagePullSecrets[0].name=mine,drain=3",)
    for settings in ((), every):
        parts = rendered(*settings)
        assert set(parts) == {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget"}
        for part in parts.values():
            validate.validate(part, validate.latest_version(), strict=True)
    container = parts["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "ratekeeper:0.1.0"
    assert container["args"][-1] == "--workers=2"
    assert "--drain=3" in container["args"]
    assert container["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "ratekeeper", "key": "admin-token"}
    assert parts["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 23
    assert "PodDisruptionBudget" not in rendered("--set=replicas=1")
    monitor = rendered("--set=serviceMonitor.enabled=true")["ServiceMonitor"]
    assert monitor["spec"]["endpoints"] == [{"port": "http", "path": "/metrics", "interval": "15s"}]


def test_the_rules_of_the_chart_are_rules_and_its_arguments_are_options():
    policy = Policy.parse(tomllib.loads(rendered()["ConfigMap"]["data"]["rules.toml"]))
    assert [rule.name for rule in policy.rules] == ["per-ip"]
    words = rendered()["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]
    serve = get_command(app).commands["serve"]
    options = {name for parameter in serve.params for name in parameter.opts}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("store=memory://", "each replica would count by itself"),
        ("store=mysql://db", "store"),
        ("replica=3", "replica"),
        ("drain=soon", "drain"),
    ],
)
def test_a_wrong_setting_of_the_chart_is_an_error(setting, reason):
    code, text = helm("template", "limits", CHART, f"--set={setting}")
    assert code != 0
    assert reason in text


def test_grafana_finds_its_board_and_its_data():
    """The compose file mounts what the provisioning files name, and the board asks the source that they make."""
    services = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    for source in mounts:
        assert (DEPLOY / "compose" / source).resolve().exists(), source
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/ratekeeper.yaml").read_text())["providers"]
    assert mounts["../grafana/ratekeeper.json"].startswith(provider["options"]["path"])
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert host in services
    assert f":{port}:" in services[host]["ports"][0]
