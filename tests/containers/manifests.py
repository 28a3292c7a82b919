"""What is wrong with a manifest or a Dockerfile: by its schema, and by the rules of this project that no schema knows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# PyYAML is not used in this project, as it can build objects of any type; this one also refuses a key that stands there twice.
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: extra dev")
yaml = pytest.importorskip("ruamel.yaml", reason="ruamel.yaml is not installed: extra dev")
from referencing import Registry, Resource  # noqa: E402

ROOT = Path(__file__).resolve().parents[2] / "containers"
SCHEMAS = Path(__file__).with_name("schemas")
EXTRAS = {"robot", "ray"}  # what may be in an image: no ROM, and no Python package under the GPL
USER = 1000
BASE = re.compile(r"[\w./-]+(:[\w.-]+|@sha256:[0-9a-f]{64})")  # pinned by tag or digest


def read(text: str) -> list[Any]:
    """The documents of a file. Raises ruamel.yaml.error.YAMLError."""
    return list(yaml.YAML(typ="safe", pure=True).load_all(text))


@cache
def registry() -> Any:
    """All schemas, by the name of their file."""
    files = {path.name: json.loads(path.read_bytes()) for path in SCHEMAS.glob("*.json")}
    return Registry().with_resources([(name, Resource.from_contents(schema)) for name, schema in files.items()])


def schema_faults(document: Any, reference: str) -> list[str]:
    """`reference`: a schema, such as kubernetes.json#/$defs/Service."""
    checker = jsonschema.Draft202012Validator({"$ref": reference}, registry=registry())
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in checker.iter_errors(document)]


def kubernetes_faults(document: Any) -> list[str]:
    """Of a manifest for Kubernetes or KubeRay."""
    kind = document.get("kind") if isinstance(document, dict) else None
    known = {name: file for file in ("kubernetes.json", "kuberay.json") for name in registry().contents(file)["$defs"]}
    if not isinstance(kind, str) or "." in kind or kind not in known:
        return [f"there is no kind {kind!r}"]
    faults = schema_faults(document, f"{known[kind]}#/$defs/{kind}")
    return faults or [*selector_faults(document), *(fault for pod in pods(document) for fault in pod_faults(pod))]


def pods(part: Any) -> Iterator[dict[str, Any]]:
    """The specs of all pods in a manifest."""
    if isinstance(part, dict):
        if "containers" in part:
            yield part
        else:
            for inner in part.values():
                yield from pods(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from pods(inner)


def selector_faults(document: dict[str, Any]) -> list[str]:
    """A selector of pods that its own pods do not have leaves them without an owner."""
    spec = document["spec"]
    labels = spec.get("template", {}).get("metadata", {}).get("labels", {})
    wanted = spec.get("selector", {}).get("matchLabels", {}) if "template" in spec else {}
    return [] if wanted.items() <= labels.items() else [f"its pods lack the labels of its selector, {wanted}"]


def pod_faults(pod: dict[str, Any]) -> list[str]:
    context, faults = pod.get("securityContext") or {}, []
    if context.get("runAsNonRoot") is not True or context.get("runAsUser") != USER:
        faults.append(f"a pod may run as root: runAsNonRoot, and runAsUser {USER}")
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        own = container.get("securityContext") or {}
        if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities") != {"drop": ["ALL"]}:
            faults.append(f"{container['name']} keeps rights that it does not need")
        if own.get("privileged") or own.get("runAsUser", USER) != USER:
            faults.append(f"{container['name']} may become root")
        if "memory" not in (container.get("resources") or {}).get("limits", {}):
            faults.append(f"{container['name']} has no limit of memory")
        # A claim's template makes a volume of that name.
        missing = {mount["name"] for mount in container.get("volumeMounts", ())} - volumes - {"runs"}
        faults += [f"{container['name']} mounts {name}, which the pod does not have" for name in sorted(missing)]
    return faults


def compose_faults(document: Any) -> list[str]:
    """Of a compose.yaml."""
    if faults := schema_faults(document, "compose.json"):
        return faults
    found = []
    for name, service in document["services"].items():
        if service.get("user") != f"{USER}:{USER}" or service.get("cap_drop") != ["ALL"] or service.get("privileged"):
            found.append(f"{name} may run as root, or keeps rights")
        named = {mount.partition(":")[0] for mount in service.get("volumes", ())}
        found += [f"{name} mounts {volume}, which is not declared" for volume in sorted(named - set(document["volumes"]))]
        found += [f"{name} waits for {other}" for other in service.get("depends_on", ()) if other not in document["services"]]
    return found


def dockerfile_faults(text: str) -> list[str]:
    """Of the Dockerfile."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    given = dict(line.split(" ", 1)[1].split("=", 1) for line in lines if line.startswith("ARG "))
    faults = [f"{line}: ADD may fetch or unpack" for line in lines if line.startswith("ADD ")]
    if not BASE.fullmatch(given.get("BASE", "")) or given["BASE"].endswith(":latest"):
        faults.append("its base is not pinned")
    if more := set(filter(None, given.get("EXTRAS", "").split(","))) - EXTRAS:
        faults.append(f"EXTRAS: {', '.join(sorted(more))} may bring a ROM or a package under the GPL")
    if given.get("PACKAGES"):
        faults.append("PACKAGES: the usual image has the packages of its extras alone")
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    if not users or users[-1] != f"{USER}:{USER}":
        faults.append("it runs as root")
    return faults
