"""The image, compose.yaml and the manifests are as their schemas and our rules want them; each kind of slip is found."""

from __future__ import annotations

import copy
import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.main import parser_of
from deploy.config.command_line import given, parse
from deploy.config.files import read_toml
from deploy.config.layers import layers, resolve
from tests.containers.manifests import (
    EXTRAS,
    ROOT,
    SCHEMAS,
    compose_faults,
    dockerfile_faults,
    kubernetes_faults,
    read,
    schema_faults,
    yaml,
)

KUBERNETES = ROOT / "kubernetes"
WHOLE = sorted([*KUBERNETES.glob("base/[!k]*.yaml"), *KUBERNETES.glob("ray/*.yaml")])


def manifest(kind: str, name: str = "") -> Any:
    """A copy of the first one of this kind."""
    found = (each for path in WHOLE for each in read(path.read_text()) if each["kind"] == kind)
    return next(each for each in found if name in ("", each["metadata"]["name"]))


def compose() -> Any:
    (document,) = read((ROOT / "compose.yaml").read_text())
    return document


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.name)
def test_manifests_are_right(path: Path) -> None:
    documents = read(path.read_text())
    assert documents and [fault for each in documents for fault in kubernetes_faults(each)] == []


def test_compose_and_dockerfile_are_right() -> None:
    assert compose_faults(compose()) == [] and dockerfile_faults((ROOT / "Dockerfile").read_text()) == []


def test_every_schema_is_the_one_that_its_page_names() -> None:
    page = (SCHEMAS / "README.md").read_text()
    for path in SCHEMAS.glob("*.json"):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert re.search(rf"`{path.name}`.*\b{digest}\b", page), f"{path.name} is {digest}"


def test_every_file_that_a_kustomization_names_is_there_and_no_other() -> None:
    for path in KUBERNETES.rglob("kustomization.yaml"):
        (found,) = read(path.read_text())
        named = {*found["resources"], *(patch["path"] for patch in found.get("patches", ()))}
        named |= {name for each in found.get("configMapGenerator", ()) for name in each["files"]}
        assert all((path.parent / name).exists() for name in named), path
        assert {entry.name for entry in path.parent.iterdir()} - {path.name} == {name for name in named if "/" not in name}


@pytest.mark.parametrize("overlay", ["cuda"])
def test_overlays_change_what_is_in_the_base(overlay: str) -> None:
    """A patch is a part of a manifest: the base with it is as right as the base alone."""
    (patch,) = read((KUBERNETES / "overlays" / overlay / "trunk.yaml").read_text())
    base = manifest("StatefulSet", "trunk")
    assert kubernetes_faults(merged(base, patch)) == []
    patch["spec"]["template"]["spec"]["containers"][0]["name"] = "headrase"
    assert kubernetes_faults(merged(base, patch)), "a container of another name is not the base's"


def merged(base: Any, patch: Any) -> Any:
    """A strategic merge as kustomize does it: lists of things with a name by their names, volume mounts by their paths."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {key: merged(base[key], part) if key in base else part for key, part in patch.items()}
    if isinstance(base, list) and base and isinstance(base[0], dict):
        key = "mountPath" if "mountPath" in base[0] else "name"
        changed = {part[key]: part for part in patch}
        kept = [merged(part, changed.pop(part[key])) if part[key] in changed else part for part in base]
        return [*kept, *changed.values()]
    return patch


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
@pytest.mark.parametrize("folder", ["base", "overlays/cuda"])
def test_what_kustomize_makes_is_right(folder: str) -> None:
    done = subprocess.run(["kubectl", "kustomize", str(KUBERNETES / folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    documents = [each for each in read(done.stdout) if each["kind"] != "ConfigMap"]
    assert len(documents) == 5 and [fault for each in documents for fault in kubernetes_faults(each)] == []


def test_the_settings_fit_the_manifests() -> None:
    settings = read_toml(KUBERNETES / "base" / "run.toml")
    service, hosts = manifest("Service"), manifest("Deployment")
    address = f"tcp://{settings['deploy']['advertise']}:{settings['deploy']['port']}"
    assert settings["deploy"]["advertise"] == service["metadata"]["name"] and "trunk" in compose()["services"]
    assert (
        address in hosts["spec"]["template"]["spec"]["containers"][0]["args"]
        and address in compose()["services"]["actors"]["command"]
    )
    assert [port["port"] for port in service["spec"]["ports"]] == [settings["deploy"]["port"] + number for number in range(4)]
    tickets = manifest("StatefulSet")["spec"]["template"]["spec"]["initContainers"][0]["args"]
    assert hosts["spec"]["replicas"] <= int(tickets[tickets.index("--hosts") + 1])


def test_the_job_for_ray_types_what_headrace_up_takes() -> None:
    words = shlex.split(shlex.split(manifest("RayJob")["spec"]["entrypoint"])[2])
    typed = words[words.index("up") + 1 :]
    config = resolve(layers(given(parse(parser_of("up", typed), typed, "up"))))
    assert (config.deploy.on, config.deploy.port, config.actors.count) == ("ray", 7701, 8)


def at(path: str, change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A mutation: changes the value at a.b.0.c; a change that returns None removes it."""

    def mutate(document: Any) -> None:
        *parents, last = [int(word) if word.isdigit() else word for word in path.split(".")]
        for word in parents:
            document = document[word]
        new = change(document.get(last) if isinstance(document, dict) else document[last])
        if new is None:
            del document[last]
        else:
            document[last] = new

    return mutate


def renamed(path: str, new: str) -> Callable[[Any], None]:
    """A mutation: another name for the key at a.b.c."""

    def mutate(document: Any) -> None:
        *parents, last = path.split(".")
        for word in parents:
            document = document[int(word) if word.isdigit() else word]
        document[new] = document.pop(last)

    return mutate


POD = "spec.template.spec"
HEAD = "spec.rayClusterSpec.headGroupSpec"
MUTANTS = [
    ("Deployment", renamed("spec.replicas", "replica"), "'replica' was unexpected"),
    ("Deployment", at("spec.replicas", lambda old: "two"), "'two' is not of type"),
    ("Deployment", at("spec.selector", lambda old: None), "'selector' is a required property"),
    ("Deployment", at("spec.selector.matchLabels.part", lambda old: "hosts"), "lack the labels of its selector"),
    ("Deployment", at("apiVersion", lambda old: "apps/v1beta1"), "is not one of"),
    ("Deployment", at("kind", lambda old: "Deploymnet"), "there is no kind"),
    ("Deployment", at(f"{POD}.securityContext.runAsUser", lambda old: 0), "run as root"),
    ("Deployment", at(f"{POD}.securityContext", lambda old: None), "run as root"),
    ("Deployment", at(f"{POD}.containers.0.securityContext.privileged", lambda old: True), "may become root"),
    ("Deployment", at(f"{POD}.containers.0.securityContext", lambda old: None), "keeps rights"),
    ("Deployment", at(f"{POD}.containers.0.resources.limits", lambda old: None), "no limit of memory"),
    ("Deployment", at(f"{POD}.containers.0.volumeMounts.0.name", lambda old: "tickets"), "which the pod does not have"),
    ("Deployment", at(f"{POD}.hostNetwork", lambda old: True), "'hostNetwork' was unexpected"),
    ("StatefulSet", renamed(f"{POD}.containers.0.livenessProbe", "livenessprobe"), "'livenessprobe' was unexpected"),
    ("StatefulSet", at("spec.volumeClaimTemplates.0.spec.accessModes", lambda old: "ReadWriteOnce"), "is not of type"),
    ("Service", at("spec.ports.0.port", lambda old: "7701"), "'7701' is not of type"),
    ("NetworkPolicy", renamed("spec.podSelector", "podselector"), "'podselector' was unexpected"),
    ("PersistentVolumeClaim", at("spec.resources.requests.storage", lambda old: []), "is not valid under any"),
    ("RayJob", renamed("spec.entrypoint", "entryPoint"), "'entryPoint' was unexpected"),
    ("RayJob", renamed(f"{HEAD}.rayStartParams", "rayStartParam"), "'rayStartParam' was unexpected"),
    ("RayJob", at(f"{HEAD}.rayStartParams.num-cpus", lambda old: 0), "0 is not of type 'string'"),
    ("RayJob", at(f"{HEAD}.template.spec.securityContext.runAsUser", lambda old: 0), "run as root"),
    ("RayCluster", at("spec.workerGroupSpecs.0.maxReplicas", lambda old: None), "'maxReplicas' is a required property"),
    ("RayCluster", at("spec.workerGroupSpecs.0.template.spec.containers.0.imagePullpolicy", lambda old: "Always"), "unexpected"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "mutate", "said"), MUTANTS, ids=[f"{kind}-{said}" for kind, _, said in MUTANTS])
def test_a_slip_in_a_manifest_is_found(kind: str, mutate: Callable[[Any], None], said: str) -> None:
    document = manifest(kind)
    mutate(document)
    faults = kubernetes_faults(document)
    assert any(said in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("mutate", "said"),
    [
        (renamed("services.actors.command", "comand"), "'comand' was unexpected"),
        (at("services.trunk.stop_grace_period", lambda old: 120), "120 is not"),
        (at("services.trunk.user", lambda old: "root"), "may run as root"),
        (at("services.trunk.privileged", lambda old: True), "may run as root"),
        (at("services.actors.cap_drop", lambda old: None), "keeps rights"),
        (at("services.actors.volumes.0", lambda old: "tickets:/ticket"), "mounts tickets, which is not declared"),
        (at("services.actors.depends_on", lambda old: {"ticket": {"condition": "service_started"}}), "actors waits for ticket"),
    ],
)
def test_a_slip_in_compose_is_found(mutate: Callable[[Any], None], said: str) -> None:
    document = copy.deepcopy(compose())  # its services share parts
    mutate(document)
    faults = compose_faults(document)
    assert any(said in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ("USER 1000:1000", "", "runs as root"),
        ("USER 1000:1000", "USER root", "runs as root"),
        ("ARG EXTRAS=robot", "ARG EXTRAS=robot,mario", "EXTRAS: mario may bring a ROM"),
        ("ARG EXTRAS=robot", "ARG EXTRAS=video", "EXTRAS: video"),
        ("ARG PACKAGES=", "ARG PACKAGES=nes-py", "PACKAGES: the usual image"),
        ("python:3.11-slim-bookworm", "python", "not pinned"),
        ("python:3.11-slim-bookworm", "python:latest", "not pinned"),
        ("COPY . /opt/headrace", "ADD https://example.org/mario.nes /roms/", "ADD may fetch"),
    ],
)
def test_a_slip_in_the_dockerfile_is_found(line: str, instead: str, said: str) -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert line in text
    faults = dockerfile_faults(text.replace(line, instead))
    assert any(said in fault for fault in faults), faults


def test_nothing_but_the_packages_is_sent_to_the_builder() -> None:
    lines = (ROOT.parent / ".dockerignore").read_text().splitlines()
    assert "*" in lines and lines.index("*") < min(index for index, line in enumerate(lines) if line.startswith("!"))
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert allowed.isdisjoint({"runs", "tests", "benchmarks", ".git", "containers"}) and {"deploy", "pyproject.toml"} <= allowed
    assert {"**/*.nes", "**/*.secret", "**/*.ticket"} <= set(lines)


def test_a_key_that_stands_there_twice_is_an_error() -> None:
    with pytest.raises(yaml.error.YAMLError):
        read("kind: Service\nkind: Deployment\n")


def test_what_may_be_in_an_image_are_extras_of_the_project() -> None:
    pyproject = read_toml(ROOT.parent / "pyproject.toml")
    assert "robot" in EXTRAS and "robot" in pyproject["project"]["optional-dependencies"]
    assert schema_faults({"mode": "token"}, "kuberay.json#/$defs/StartParams") == []
