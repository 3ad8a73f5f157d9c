"""Manifests of ``deploy/kubernetes`` fit the schema of Kubernetes, and what they say of pdctl is so."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.protocol.listen import parse_listen
from pdctl.targets.pods import PodQuery, select_pods

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "kubernetes"
SCHEMA = json.loads((ROOT / "tests" / "data" / "kubernetes-1.32.json").read_text())
PLAIN = ("access.yaml", "preflight.yaml", "agent/service.yaml", "watch/evidence.yaml", "example/servers.yaml")
PATCHES = ("agent/workload.yaml", "export/sidecar.yaml", "watch/sidecar.yaml")


def check(document: dict[str, Any]) -> None:
    """Raise where a document is none of its kind: an unknown field, a wrong type."""
    name = SCHEMA["kinds"][f"{document['apiVersion']}/{document['kind']}"]
    schema = {"$ref": f"#/definitions/{name}", "definitions": SCHEMA["definitions"]}
    jsonschema.Draft202012Validator(schema).validate(document)


def containers(file: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((DEPLOY / file).read_text())["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("file", PLAIN)
def test_manifests_fit_the_schema(file: str) -> None:
    for document in yaml.safe_load_all((DEPLOY / file).read_text()):
        check(document)


@pytest.mark.parametrize("file", PATCHES)
def test_patches_fit_the_schema_where_they_are_put(file: str) -> None:
    [workload] = yaml.safe_load_all((DEPLOY / "example/servers.yaml").read_text())
    patch = yaml.safe_load((DEPLOY / file).read_text())
    for one in patch["spec"]["template"]["spec"]["containers"]:
        one.setdefault("image", "x")
    workload["spec"]["template"]["spec"] = patch["spec"]["template"]["spec"]
    check(workload)


def test_a_wrong_field_does_not_fit() -> None:
    [workload] = yaml.safe_load_all((DEPLOY / "example/servers.yaml").read_text())
    workload["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(jsonschema.ValidationError, match="volumeMount"):
        check(workload)


def test_a_leader_worker_sets_pods_fit_the_schema_of_a_pod() -> None:
    document = yaml.safe_load((DEPLOY / "example/leaderworkerset.yaml").read_text())
    patch = yaml.safe_load((DEPLOY / "agent/leaderworkerset.yaml").read_text())
    for one in patch:
        *path, last = one["path"].strip("/").split("/")
        place: Any = document
        for key in path:
            place = place[int(key)] if key.isdecimal() else place[key]
        if last == "-":
            place.append(one["value"])
        else:
            place[last] = one["value"]
    for template in ("leaderTemplate", "workerTemplate"):
        pod = document["spec"]["leaderWorkerTemplate"][template]
        check({"apiVersion": "v1", "kind": "Pod", **pod})
        assert pod["metadata"]["labels"]["pdctl"] == "agent"


def test_volumes_that_are_mounted_are_there_and_commands_exist() -> None:
    volumes = {
        volume["name"]
        for file in PATCHES
        for volume in yaml.safe_load((DEPLOY / file).read_text())["spec"]["template"]["spec"].get("volumes", ())
    }
    for file in PATCHES:
        for one in containers(file):
            assert {mount["name"] for mount in one.get("volumeMounts", ())} <= volumes
            if "command" in one:
                name = one["command"][1]
                help_text = CliRunner().invoke(app, [name, "--help"]).output
                assert all(word in help_text for word in one["command"] if word.startswith("--")), one["command"]


def test_the_agents_of_the_example_listen_where_its_service_and_kubectl_pdctl_look() -> None:
    [engine] = containers("agent/workload.yaml")
    [listen] = [one["value"] for one in engine["env"] if one["name"] == "PDCTL_LISTEN"]
    assert parse_listen(listen).ports == range(7311, 7319)
    [service] = yaml.safe_load_all((DEPLOY / "agent/service.yaml").read_text())
    assert service["spec"]["ports"][0]["port"] == 7311
    pod = {
        "metadata": {"name": "decode-0"},
        "spec": {"containers": [{**containers("example/servers.yaml")[0], **engine}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "sglang", "state": {"running": {}}}]},
    }
    [found] = select_pods(json.dumps({"items": [pod]}).encode(), PodQuery()).pods
    assert (found.side, found.container, found.ports) == ("decode", "sglang", tuple(range(7311, 7319)))


@pytest.mark.parametrize("file", ["README.md", "docs/install.md", "deploy/kubernetes/Dockerfile"])
def test_what_installs_into_a_serving_image_lets_pip_hold_its_versions(file: str) -> None:
    """The same two commands everywhere. What the README's do is in tests/system/test_install_moves_nothing.py."""
    text = (ROOT / file).read_text().replace("\\\n", " ").replace("python3 -m pip", "pip")
    [held, *others] = re.findall(r"pip list [^\n&]*> (\S+)", text)
    assert not others
    assert f"pip list --format=freeze --exclude-editable --exclude pdctl > {held}" in text
    serving = text.partition("FROM ${ENGINE}")[2].partition("\nFROM ")[0] or text[text.index("pip list ") :]
    [install] = re.findall(r"pip install ([^\n&]*)", serving.partition("```")[0])
    assert f"-c {held} " in install
    assert serving.index("pip list ") < serving.index("pip install ")


def test_kustomize_builds_the_example() -> None:
    """With the real kubectl's own kustomize, where there is one."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    command = ["kubectl", "kustomize", str(DEPLOY / "example")]
    built = list(yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    for document in built:
        if document["kind"] != "LeaderWorkerSet":
            check(document)
    [decode] = [one for one in built if one["kind"] == "StatefulSet"]
    there = {one["name"]: one for one in decode["spec"]["template"]["spec"]["containers"]}
    assert there.keys() == {"sglang", "pdctl-export", "pdctl-watch"}
    assert there["sglang"]["image"] == "your-serving-image:pdctl"
    assert {mount["name"] for mount in there["sglang"]["volumeMounts"]} == {"pdctl", "pdctl-keys"}
    assert decode["spec"]["template"]["metadata"]["labels"] == {"app": "decode", "pdctl": "agent"}
    assert list(specs(built))
    for spec in specs(built):
        assert spec["shareProcessNamespace"] is True


def specs(built: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for document in built:
        if document["kind"] == "StatefulSet":
            yield document["spec"]["template"]["spec"]
        if document["kind"] == "LeaderWorkerSet":
            template = document["spec"]["leaderWorkerTemplate"]
            yield from (template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"])
