#!/usr/bin/env python3
"""Writes the dashboards as Grafana imports them; with --check, says whether what is committed is what it would write.

Needs Python 3.11, the packages of requirements.txt and, for --check, promtool.
"""

import argparse
import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as models

from fleet import FLEET
from host import HOST
from panels import DATASOURCE, INPUT, Annotation, Dashboard, build
from receivers import RECEIVERS

HERE = Path(__file__).resolve().parent
RUNBOOKS = Path("docs/runbooks")
RESOURCE = HERE.parent / "deploy/kubernetes/prometheusrule.yaml"
DASHBOARDS = {"fleet.json": FLEET, "host.json": HOST, "receivers.json": RECEIVERS}
# How Grafana names the panels that the dashboards use.
PANELS = {"stat": "Stat", "table": "Table", "timeseries": "Time series"}
# Commands in runbooks that `tcpmon doctor` has, too, in this file of it; DEV is a device.
DOCTOR = "../tcpmon-daemon/src/doctor/nic.rs"
DOCTOR_COMMANDS = {"TcpmonRxOverrun": "ethtool -A DEV tx on"}

# Values for Grafana's variables, for a parser that does not know these.
VARIABLES = {"$__rate_interval": "5m", "$instance": "a:1"}
VARIABLES |= dict.fromkeys(("$job", "$cluster", "$process", "$service"), ".*")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something is not in order")
    check = parser.parse_args().check
    register_default_plugins()
    texts = {name: text(dashboard) for name, dashboard in DASHBOARDS.items()}
    if not check:
        for name, content in texts.items():
            (HERE / name).write_text(content)
        RESOURCE.write_text(rule_resource())
        return 0
    faults = [fault for name, content in texts.items() for fault in faults_of(name, content)]
    faults += faults_of_queries({name: json.loads(content) for name, content in texts.items()})
    faults += faults_of_recorded()
    faults += faults_of_alerts()
    if RESOURCE.read_text() != rule_resource():
        faults.append(f"{RESOURCE.name} differs from the rules: run cargo xtask dashboards")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def text(dashboard: Dashboard) -> str:
    """The file's content as generated."""
    board = json.loads(json.dumps(build(dashboard), cls=JSONEncoder))
    return json.dumps(board | for_import(board), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def for_import(board: dict) -> dict:
    """What Grafana's "Export for sharing externally" adds to a dashboard; it is not in the SDK's schema."""
    grafana = importlib.metadata.version("grafana_foundation_sdk").split("!")[1]
    plugin = {"pluginId": "prometheus", "pluginName": "Prometheus"}
    requires = [(kind, "panel", PANELS[kind], "") for kind in {panel["type"] for panel in graphs(board)}]
    requires += [("grafana", "grafana", "Grafana", grafana), ("prometheus", "datasource", "Prometheus", "1.0.0")]
    return {
        "__elements": {},
        "__inputs": [{"name": INPUT, "label": "Prometheus", "description": "", "type": "datasource", **plugin}],
        "__requires": [dict(zip(("id", "type", "name", "version"), required)) for required in sorted(requires)],
    }


def rule_resource() -> str:
    """The recording rules and alerts as a resource of the Prometheus operator."""
    groups = "".join(read(name).split("\ngroups:\n", 1)[1] for name in ("rules.yaml", "alerts.yaml"))
    return f"""# Written by `cargo xtask dashboards` from dashboards/rules.yaml and dashboards/alerts.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: tcpmon
spec:
  groups:
{textwrap.indent(groups, "  ")}"""


def faults_of(name: str, content: str) -> list[str]:
    """Checks the file: it is up to date, the SDK can read it back without loss, and every panel is described."""
    path = HERE / name
    faults = []
    if not path.is_file() or path.read_text() != content:
        faults.append(f"{name} is not what generate.py writes: run generate.py and commit it")
    board = json.loads(content)
    again = json.loads(json.dumps(models.Dashboard.from_json(board), cls=JSONEncoder))
    for annotation in again["annotations"]["list"]:
        annotation.update(Annotation.FORMATS)  # not in the schema
    again |= {key: value for key, value in board.items() if key.startswith("__")}  # nor these
    if again != board:
        faults.append(f"{name} loses a field in the SDK's model: the schema of its version has no such field")
    faults += faults_of_import(name, content)
    titles = [panel.get("title") or f"panel {panel['id']}" for panel in graphs(board)]
    faults += [f"{name}: two panels are called {title}" for title in set(titles) if titles.count(title) > 1]
    for panel, title in zip(graphs(board), titles):
        if not panel.get("description"):
            faults.append(f"{name}: {title} has no description: say how to read it")
        if not panel["fieldConfig"]["defaults"].get("unit"):
            faults.append(f"{name}: {title} has no unit")
        for target in panel["targets"]:
            if not target.get("legendFormat"):
                faults.append(f"{name}: {title} has no legend")
            for family, selector in re.findall(r"((?:\w+:)?\b(?:tcpmon|process)_[\w:]+)(\{[^}]*\})?", target["expr"]):
                if 'instance=~"$instance"' not in selector:
                    faults.append(f'{name}: {title} asks for all hosts: add instance=~"$instance"')
                if not known(family):
                    faults.append(f"{name}: {title} asks for {family}, which neither tcpmon nor rules.yaml has")
    return faults


def faults_of_import(name: str, content: str) -> list[str]:
    """Checks that Grafana can ask for the data source, that everything uses it, and that nothing is of one Grafana."""
    board = json.loads(content)
    variables = board["templating"]["list"]
    users = [*board["annotations"]["list"], *(variable for variable in variables if variable["type"] != "datasource")]
    users += [user for panel in graphs(board) for user in (panel, *panel["targets"])]
    faults = []
    used = [user.get("datasource") == DATASOURCE.to_json() for user in users]
    if not all(used) or content.count('"datasource": ') != len(used):
        faults.append(f"{name} has a panel, query, variable or annotation whose data source is not {DATASOURCE.uid}")
    if set(re.findall(r"\$\{(DS_\w+)\}", content)) != {asked["name"] for asked in board["__inputs"]}:
        faults.append(f"{name} does not have exactly the inputs in __inputs that it uses")
    required = {plugin["id"] for plugin in board["__requires"] if plugin["type"] == "panel"}
    if required != {panel["type"] for panel in graphs(board)}:
        faults.append(f"{name} does not have exactly the types of its panels in __requires")
    if board.get("id") is not None or board["uid"] != f"tcpmon-{Path(name).stem}":
        faults.append(f"{name} has an id, which is of one Grafana only, or not its file's name as uid")
    return faults


def graphs(dashboard: dict) -> list[dict]:
    """The panels, also those in collapsed rows, without the rows."""
    panels = [nested for panel in dashboard["panels"] for nested in (panel, *panel.get("panels", []))]
    return [panel for panel in panels if panel["type"] != "row"]


def known(family: str) -> bool:
    """Whether tcpmon exports this family, or a rule records it."""
    if ":" in family:
        return f"record: {family}\n" in read("rules.yaml")
    return any(f"`{name}`" in read("../docs/metrics.md") for name in (family, re.sub("_(bucket|sum)$", "", family)))


def faults_of_queries(dashboards: dict[str, dict]) -> list[str]:
    """Checks that Prometheus can parse each query, as a recording rule, and that panels show what is expected."""
    queries = {key: filled(expr) for name, board in dashboards.items() for key, expr in queries_of(name, board)}
    # The first group of label_replace is no variable.
    unknown = [key for key, expr in queries.items() if "$" in expr.replace('"$1"', "")]
    faults = [f"{key}: a variable that generate.py does not know: {queries[key]}" for key in unknown]
    rules = [{"record": f"query_{number}", "expr": expr} for number, expr in enumerate(queries.values())]
    cases = read("panels_test.yaml")
    for key, expr in queries.items():
        of_this_query = rf'expr: "{re.escape(key)}([^"]*)"'
        cases = re.sub(of_this_query, lambda found: "expr: " + json.dumps(f"({expr}){found[1]}"), cases)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "queries.json"
        # promtool expects YAML, and JSON is valid YAML.
        path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}, indent=1))
        faults += promtool("check", "rules", str(path))
        path = Path(directory) / "panels_test.yaml"
        path.write_text(cases)
        faults += promtool("test", "rules", str(path))
    return faults


def queries_of(name: str, board: dict) -> list[tuple[str, str]]:
    """The queries of a dashboard, with the names that panels_test.yaml gives them."""
    targets = [(panel, target) for panel in graphs(board) for target in panel["targets"]]
    stem = name.removesuffix(".json")
    return [(f"{stem}: {panel['title']}: {target['legendFormat']}", target["expr"]) for panel, target in targets]


def filled(expr: str) -> str:
    for variable, value in VARIABLES.items():
        expr = expr.replace(variable, value)
    return expr


def faults_of_recorded() -> list[str]:
    """Checks that the recording rules parse and pass their tests, and that each recorded series is tested."""
    faults = promtool("check", "rules", str(HERE / "rules.yaml"))
    faults += promtool("test", "rules", str(HERE / "rules_test.yaml"))
    records = re.findall(r"^ *- record: (\S+)$", read("rules.yaml"), re.M)
    untested = [name for name in records if f"expr: {name}" not in read("rules_test.yaml")]
    return faults + [f"{name} is not in rules_test.yaml" for name in untested]


def faults_of_alerts() -> list[str]:
    """Checks that alerts parse and pass their tests, and that each has all of its tests, its links and a runbook."""
    faults = promtool("check", "rules", str(HERE / "alerts.yaml"))
    faults += promtool("test", "rules", str(HERE / "alerts_test.yaml"))
    alerts = dict(re.findall(r"^ *- alert: (\w+)$(.*?)(?=^ *- (?:alert|name):|\Z)", read("alerts.yaml"), re.M | re.S))
    cases = re.findall(r'^  - name: "([^"]*)"$(.*?)(?=^  - name:|\Z)', read("alerts_test.yaml"), re.M | re.S)
    for name, rule in alerts.items():
        outcomes = re.findall(rf"^ *alertname: {name}\n *exp_alerts:( \[\])?", read("alerts_test.yaml"), re.M)
        if " []" not in outcomes or "" not in outcomes:
            faults.append(f"{name} lacks a test that fires or one that stays quiet: add it to alerts_test.yaml")
        faults += faults_of_links(name, rule)
        for what in disturbances(name, rule):
            if not any(what in title and f'alertname="{name}"' in text for title, text in cases):
                faults.append(f"{name} is in no case of alerts_test.yaml that is called {what}")
    there = {path.stem for path in (HERE.parent / RUNBOOKS).glob("*.md")}
    for name in sorted(there.symmetric_difference(alerts)):
        faults.append(f"{RUNBOOKS / name}.md without its alert, or the alert without it")
    for name, command in DOCTOR_COMMANDS.items():
        if f"`{command}`" not in read(f"../{RUNBOOKS / name}.md") or command.replace("DEV", "{}") not in read(DOCTOR):
            faults.append(f"`{command}` is not in both {RUNBOOKS / name}.md and `tcpmon doctor`: make them agree")
    return faults


def disturbances(name: str, rule: str) -> list[str]:
    """Names of what an alert has to outlive or to end with, according to the tests."""
    if name == "TcpmonAbsent":
        return []  # While it fires, there is nothing that could be disturbed.
    found = ["one scrape missing", "daemon restarts", "counter resets"]
    return found + (["process exits", "sockets double"] if "$labels.process" in rule else [])


def faults_of_links(name: str, rule: str) -> list[str]:
    """Checks that an alert links to its runbook, and to an existing dashboard with variables that this one has."""
    faults = []
    base = r'\{\{ with query "tcpmon:links" \}\}\{\{ \. \| first \| label "%s" \}\}%s\{\{ end \}\}'
    if not re.search(rf"runbook_url: '{base % ('docs', '/')}{RUNBOOKS / name}\.md'\n", rule):
        faults.append(f"{name} does not link to its runbook: see runbook_url of the others")
    link = re.search(rf"dashboard_url: '{base % ('grafana', '')}/d/([\w-]+)(.*)'\n", rule)
    board = next((board for board in DASHBOARDS.values() if link and board.uid == link[1]), None)
    if board is None:
        return [*faults, f"{name} does not link to a dashboard: see dashboard_url of the others"]
    for variable in re.findall(r"[?&]var-(\w+)=", link[2]):
        if variable not in [known.name for known in board.variables]:
            faults.append(f"{name} sets the variable {variable}, which the dashboard {board.uid} does not have")
    return faults


@functools.cache
def read(name: str) -> str:
    return (HERE / name).read_text()


def promtool(*arguments: str) -> list[str]:
    """The faults that promtool reports."""
    try:
        done = subprocess.run([os.environ.get("PROMTOOL", "promtool"), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return ["promtool is not installed: it comes with Prometheus; or name it in PROMTOOL"]
    return [] if done.returncode == 0 else [f"promtool {' '.join(arguments)}:\n{done.stdout}{done.stderr}"]


if __name__ == "__main__":
    sys.exit(main())
