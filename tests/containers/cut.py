"""Cuts the schemas out of larger ones: `python -m tests.containers.cut`, with the packages that schemas/README.md names.

What is left is what the manifests use, without descriptions: whatever else a manifest names is refused, as a slip would be.
"""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).with_name("schemas")
KUBERNETES = "v1.37.0-local-strict"
KINDS = {
    "apps.v1": ("Deployment", "StatefulSet"),
    "core.v1": ("PersistentVolumeClaim", "Service"),
    "networking.v1": ("NetworkPolicy",),
}
VOLUMES = {"name", "configMap", "emptyDir", "persistentVolumeClaim", "secret"}
LEFT_OUT = {  # what no manifest here needs, by definition
    "io.k8s.api.core.v1.PodSpec": {
        "affinity", "ephemeralContainers", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "resourceClaims",
        "schedulingGroup", "evictionResponders", "dnsConfig", "overhead", "readinessGates", "topologySpreadConstraints",
    },
    "io.k8s.api.core.v1.Container": {"lifecycle", "volumeDevices", "envFrom"},
    "io.k8s.api.core.v1.Probe": {"grpc", "httpGet"},
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {"managedFields", "ownerReferences"},
}  # fmt: skip


def without_text(schema: Any) -> Any:
    """The schema without what only people read."""
    if isinstance(schema, list):
        return [without_text(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    texts = {name for name in ("description", "title", "examples") if isinstance(schema.get(name), str | list)}
    kept = {name: part for name, part in schema.items() if name not in texts and not name.startswith("x-kubernetes")}
    return {name: without_text(part) for name, part in kept.items()}


def used(schema: Any) -> set[str]:
    """The definitions that a schema refers to."""
    if isinstance(schema, list):
        return set().union(*map(used, schema))
    if not isinstance(schema, dict):
        return set()
    own = {schema["$ref"].rpartition("/")[2]} if isinstance(schema.get("$ref"), str) else set()
    return own.union(*map(used, schema.values()))


def kubernetes(source: dict[str, Any]) -> dict[str, Any]:
    """A definition for each kind of manifest, under its name, and all that they need."""
    definitions = without_text(source["$defs"])
    for name, left_out in LEFT_OUT.items():
        for word in left_out:
            del definitions[name]["properties"][word]
    volume = definitions["io.k8s.api.core.v1.Volume"]["properties"]
    for word in set(volume) - VOLUMES:
        del volume[word]
    kinds = {kind: f"io.k8s.api.{group}.{kind}" for group, names in KINDS.items() for kind in names}
    for name in ("io.k8s.api.core.v1.PersistentVolumeClaim", *kinds.values()):
        definitions[name]["properties"].pop("status", None)
    tops = {kind: top(kind, name, definitions[name]) for kind, name in kinds.items()}
    wanted, waiting = set[str](), used(list(tops.values()))
    while waiting:
        wanted |= waiting
        waiting = set().union(*(used(definitions[name]) for name in waiting)) - wanted
    kept = {name: definitions[name] for name in sorted(wanted)}
    return {"$schema": source["$schema"], "$defs": kept | tops}


def top(kind: str, name: str, definition: dict[str, Any]) -> dict[str, Any]:
    """The schema of a whole manifest: it says what it is. `name`: io.k8s.api.apps.v1.Deployment, which is apps/v1."""
    group, version = name.split(".")[3:5]
    group = {"core": "", "networking": "networking.k8s.io/"}.get(group, f"{group}/")
    said = {"apiVersion": {"enum": [f"{group}{version}"]}, "kind": {"enum": [kind]}}
    required = ["apiVersion", "kind", "metadata", "spec"]
    return definition | {"type": "object", "properties": definition["properties"] | said, "required": required}


def main() -> None:
    sources = {
        "kubernetes": resources.files("kubernetes_validate") / "kubernetes-json-schema" / KUBERNETES / "_definitions.json",
        "compose": resources.files("check_jsonschema.builtin_schemas.vendor") / "compose-spec.json",
    }
    for name, path in sources.items():
        source = path.read_bytes()
        found = json.loads(source)
        cut = kubernetes(found) if name == "kubernetes" else without_text(found)
        target = SCHEMAS / f"{name}.json"
        target.write_text(json.dumps(cut, separators=(",", ":"), sort_keys=True) + "\n")
        print(f"{target.name}: {target.stat().st_size:,} bytes, from {hashlib.sha256(source).hexdigest()}")


if __name__ == "__main__":
    main()
