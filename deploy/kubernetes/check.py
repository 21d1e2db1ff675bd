"""Checks what `kustomize build` makes of this folder.

Arguments: the kustomize program, the folder with the CRDs of the Prometheus operator, the tcpmon program.
Each resource is checked against the schema of its kind, in which no unknown field is allowed; the flags are checked by
tcpmon itself, and the capabilities against docs/operating.md.
"""

import pathlib
import re
import subprocess
import sys

import jsonschema
import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# A release that is supported today.
KUBERNETES = "1.33"
CRDS = ["monitoring.coreos.com_podmonitors.yaml", "monitoring.coreos.com_prometheusrules.yaml"]

# YAML 1.1 gives `=`, which the CRDs list as a value, a type of its own.
yaml.SafeLoader.add_constructor("tag:yaml.org,2002:value", yaml.SafeLoader.construct_yaml_str)


def closed(schema):
    """The schema of a CRD, with unknown fields refused, as the API server would drop them."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(part) for key, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        schema.setdefault("additionalProperties", False)
    # Go allows this flag anywhere.
    if "(?i)" in str(schema.get("pattern", "")):
        schema["pattern"] = "(?i)" + schema["pattern"].replace("(?i)", "")
    if schema.pop("x-kubernetes-int-or-string", False):
        schema.pop("type", None)
    return schema


def schemas(folder: pathlib.Path) -> dict:
    """The schema of each kind of the operator."""
    found = {}
    for name in CRDS:
        crd = yaml.safe_load((folder / name).read_text())
        for version in crd["spec"]["versions"]:
            schema = closed(version["schema"]["openAPIV3Schema"])
            # The API server itself checks the metadata.
            schema["properties"]["metadata"] = {"type": "object"}
            kind = crd["spec"]["names"]["kind"]
            found[f"{crd['spec']['group']}/{version['name']}", kind] = schema
    return found


def complaints(kustomize: str, crds: pathlib.Path, tcpmon: str) -> list[str]:
    """What is wrong, a sentence each."""
    found = []
    built = subprocess.run([kustomize, "build", HERE], check=True, capture_output=True, text=True).stdout
    of_operator = schemas(crds)
    resources = list(yaml.safe_load_all(built))
    for resource in resources:
        name = f"{resource['kind']} {resource['metadata']['name']}"
        schema = of_operator.get((resource["apiVersion"], resource["kind"]))
        try:
            if schema:
                jsonschema.validate(resource, schema)
            else:
                kubernetes_validate.validate(resource, KUBERNETES, strict=True)
        except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
            path = ".".join(str(part) for part in error.path)
            found.append(f"{name}: {path}: {error.message}")
    (pod,) = [r["spec"]["template"]["spec"] for r in resources if r["kind"] == "DaemonSet"]
    (container,) = pod["containers"]
    arguments = container["args"]
    run = subprocess.run([tcpmon, *arguments, "--print-config"], capture_output=True, text=True)
    if run.returncode != 0:
        found.append(f"tcpmon refuses {arguments}: {run.stderr.strip()}")
    port = container["ports"][0]["containerPort"]
    if f'":{port}"' not in run.stdout:
        found.append(f"tcpmon does not listen on the port of the container, {port}")
    table = (ROOT / "docs/operating.md").read_text().split("| capability | for |")[1].split("\n\n")[0]
    documented = set(re.findall(r"`CAP_(\w+)`", re.sub(r"\| [^|]*\|$", "", table, flags=re.M)))
    added = set(container["securityContext"]["capabilities"]["add"])
    if added != documented:
        found.append(f"the container has {sorted(added)}, and docs/operating.md names {sorted(documented)}")
    selectors = [r["spec"]["selector"] for r in resources if r["kind"] in ("DaemonSet", "PodMonitor")]
    labels = [selector.get("matchLabels") for selector in selectors]
    if len(labels) != 2 or labels[0] != labels[1] or not labels[0]:
        found.append(f"the PodMonitor selects other pods than those of the DaemonSet: {labels}")
    ((rule,),) = [group["rules"] for group in yaml.safe_load((HERE / "join.yaml").read_text())["groups"]]
    if rule["expr"].strip() not in (ROOT / "docs/kubernetes.md").read_text():
        found.append("docs/kubernetes.md shows another join than join.yaml, which is tested")
    return found


def main() -> int:
    kustomize, crds, tcpmon = sys.argv[1:]
    found = complaints(kustomize, pathlib.Path(crds), tcpmon)
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


sys.exit(main())
