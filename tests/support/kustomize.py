"""As much of `kustomize build` as docker/k8s uses; whatever it does not know is refused, never passed over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]
KNOWN = {"apiVersion", "kind", "resources", "components", "patches", "replacements"}
KNOWN |= {"configMapGenerator", "generatorOptions"}


def build(folder: Path) -> list[Resource]:
    """The resources of an overlay, in the order in which they are named."""
    return _build(folder, [])


def _build(folder: Path, found: list[Resource]) -> list[Resource]:
    (kustomization,) = _documents(folder / "kustomization.yaml")
    assert set(kustomization) <= KNOWN, f"{folder}: {set(kustomization) - KNOWN}"
    for name in kustomization.get("resources", []):
        path = folder / name
        found = [*found, *(build(path) if path.is_dir() else _documents(path))]
    for generator in kustomization.get("configMapGenerator", []):
        assert kustomization["generatorOptions"] == {"disableNameSuffixHash": True}
        assert set(generator) == {"name", "namespace", "files"}
        files = dict(file.split("=") for file in generator["files"])
        metadata = {"name": generator["name"], "namespace": generator["namespace"]}
        data = {key: (folder / file).read_text() for key, file in files.items()}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    for name in kustomization.get("components", []):
        found = _build(folder / name, found)
    for patch in kustomization.get("patches", []):
        assert set(patch) == {"target", "patch"}
        for one in selected(found, **patch["target"]):
            for change in yaml.safe_load(patch["patch"]):
                _change(one, **change)
    for replacement in kustomization.get("replacements", []):
        (source,) = selected(found, replacement["source"]["kind"], replacement["source"]["name"])
        value = _at(source, replacement["source"]["fieldPath"].split("."))
        for target in replacement["targets"]:
            for one in selected(found, **target["select"]):
                for path in target["fieldPaths"]:
                    *parents, last = path.split(".")
                    assert last in _at(one, parents), f"{path} is not there to be replaced"
                    _at(one, parents)[last] = value
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(set(names)) == len(names), f"{folder}: something is there twice"
    return found


def selected(resources: list[Resource], kind: str = "", name: str = "", group: str = "") -> list[Resource]:
    """Those of which everything that is given is true."""

    def fits(one: Resource) -> bool:
        own = (one["kind"], one["metadata"]["name"], one["apiVersion"].rpartition("/")[0])
        return all(wanted in ("", is_so) for wanted, is_so in zip((kind, name, group), own, strict=True))

    found = [one for one in resources if fits(one)]
    assert found, f"there is no {kind} {name} {group}"
    return found


def _documents(path: Path) -> list[Resource]:
    return list(yaml.safe_load_all(path.read_text()))


def _at(value: Any, path: list[str]) -> Any:
    for part in path:
        value = value[int(part) if isinstance(value, list) else part]
    return value


def _change(one: Resource, op: str, path: str, value: Any) -> None:
    """JSON patch (RFC 6902)."""
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in path.removeprefix("/").split("/")]
    parent = _at(one, parents)
    assert op in ("add", "replace")
    assert op == "add" or last in parent, f"{path} is not there to be replaced"
    parent[last] = value


def containers(resource: Resource) -> Iterator[tuple[Resource, Resource]]:
    """(pod spec, container) of every pod that a resource starts."""
    for pod in pods(resource):
        for container in pod["spec"]["containers"]:
            yield pod["spec"], container


def pods(resource: Resource) -> list[Resource]:
    """Pod templates of a resource, whatever its kind."""
    spec = resource.get("spec", {})
    if resource["kind"] == "RayService":
        cluster = spec["rayClusterConfig"]
        return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    if resource["kind"] == "CronJob":
        return [spec["jobTemplate"]["spec"]["template"]]
    return [spec["template"]] if "template" in spec else []
