#!/usr/bin/env python3
"""Draws the dashboards as pictures, from what a Prometheus knows now: DIR/NAME.png for each NAME.json.

Not Grafana, but close enough to judge a dashboard: it draws graphs, numbers and tables where the dashboard places them,
with its units, colours, legends and texts. Needs Chromium, and uPlot in a folder of node_modules. The environment tells
where Prometheus is (PROMETHEUS, a URL).
"""

import argparse
import html
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
WIDTH = 1600
# Grafana's size of a unit of the grid, with the gap.
UNIT = 38
# How far back the graphs go, and their resolution, seconds.
RANGE = 90
STEP = 1
VARIABLES = {"__rate_interval": "10s", "__interval": "10s", "__range": f"{RANGE}s"}
COLORS = {"green": "#37872d", "orange": "#e08400", "red": "#c4162a", "text": "#333333"}
LINES = ["#3274d9", "#e0752d", "#37872d", "#a352cc", "#c4162a", "#0a8a8a", "#8f6b00", "#d44a9c", "#5c5c5c", "#7eb26d"]
PREFIXES = {
    "s": [(1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")],
    "bytes": [(2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")],
    "Bps": [(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")],
    "pps": [(1e6, "Mp/s"), (1e3, "kp/s"), (1, "p/s")],
    "cps": [(1e6, "Mc/s"), (1e3, "kc/s"), (1, "c/s")],
    "short": [(1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node-modules", type=Path, required=True, help="the folder that has uplot")
    parser.add_argument("--height", type=int, help="cut the pictures to this height, pixels")
    parser.add_argument("directory", type=Path, help="where to put the pictures")
    arguments = parser.parse_args()
    address = os.environ.get("PROMETHEUS")
    if not address:
        print("PROMETHEUS is not set: use `cargo xtask dashboards --pictures`", file=sys.stderr)
        return 2
    arguments.directory.mkdir(parents=True, exist_ok=True)
    prometheus = Prometheus(address)
    for path in sorted(HERE.glob("*.json")):
        page, height = draw(json.loads(path.read_text()), prometheus, arguments.node_modules / "uplot/dist")
        picture = arguments.directory / f"{path.stem}.png"
        photograph(page, picture, min(height, arguments.height or height))
        print(picture)
    return 0


class Prometheus:
    """The queries that panels make."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.now = time.time()

    def range(self, expr: str) -> list[dict]:
        times = {"start": self.now - RANGE, "end": self.now, "step": STEP}
        return self.ask("query_range", {"query": filled(expr), **times})

    def instant(self, expr: str) -> list[dict]:
        return self.ask("query", {"query": filled(expr), "time": self.now})

    def ask(self, what: str, parameters: dict) -> list[dict]:
        url = f"{self.address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{parameters['query']}: {error.read().decode()}") from None


def filled(expr: str) -> str:
    """With values for Grafana's variables; all values of those that a user can choose."""
    return re.sub(r"\$(\w*[a-z]\w*)", lambda name: VARIABLES.get(name[1], ".*"), expr)


def draw(dashboard: dict, prometheus: Prometheus, uplot: Path) -> tuple[str, int]:
    """The page with all panels, folded rows opened, and its height."""
    boxes, graphs, top = [], [], 0
    for panel in unfolded(dashboard["panels"]):
        place = panel["gridPos"]
        top = max(top, place["y"] + place["h"])
        style = (
            f"left:{place['x'] * WIDTH / 24 + 4:.0f}px;top:{place['y'] * UNIT + 44}px;"
            f"width:{place['w'] * WIDTH / 24 - 8:.0f}px;height:{place['h'] * UNIT - 8}px"
        )
        title = html.escape(panel.get("title") or "")
        if panel["type"] == "row":
            boxes.append(f'<div class="row" style="{style}">{title}</div>')
            continue
        body = {"timeseries": graph, "stat": stat, "table": table}[panel["type"]](panel, prometheus, graphs)
        boxes.append(f'<div class="panel" style="{style}"><h2>{title}</h2>{body}</div>')
    height = top * UNIT + 60
    page = (HERE / "pictures.html").read_text()
    for name, content in {
        "TITLE": html.escape(dashboard["title"]),
        "DESCRIPTION": html.escape(dashboard["description"]),
        "UPLOT_CSS": (uplot / "uPlot.min.css").read_text(),
        "UPLOT_JS": (uplot / "uPlot.iife.min.js").read_text(),
        "GRAPHS": json.dumps(graphs),
        "BOXES": "\n".join(boxes),
    }.items():
        page = page.replace(f"@{name}@", content)
    return page, height


def unfolded(panels: list[dict]) -> list[dict]:
    """All panels, with a folded row's own ones below it; all else moves down, as in Grafana when the row is opened."""
    found, down = [], 0
    for panel in sorted(panels, key=lambda panel: panel["gridPos"]["y"]):
        nested = panel.get("panels") or []
        panel["gridPos"]["y"] += down
        for inner in nested:
            inner["gridPos"]["y"] += down
        found += [panel, *nested]
        bottom = panel["gridPos"]["y"] + panel["gridPos"]["h"]
        down += max((inner["gridPos"]["y"] + inner["gridPos"]["h"] - bottom for inner in nested), default=0)
    return found


def graph(panel: dict, prometheus: Prometheus, graphs: list) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    lines = []
    for target in panel["targets"]:
        for series in prometheus.range(target["expr"]):
            points = {round(float(at)): float(value) for at, value in series["values"]}
            lines.append((legend(target, series["metric"]), points))
    if not lines:
        return f'<div class="nothing">{html.escape(defaults.get("noValue", "No data"))}</div>'
    lines.sort(key=lambda line: -last(line[1]))
    times = sorted({at for _, points in lines for at in points})
    number = len(graphs)
    small = panel["gridPos"]["h"] * UNIT - 8 - 26
    shown = lines[:10]
    rows = "".join(
        f'<tr><td><i style="background:{color}"></i>{html.escape(name)}</td>'
        f"<td>{text(last(points), defaults['unit'])}</td><td>{text(max(points.values()), defaults['unit'])}</td></tr>"
        for (name, points), color in zip(shown, LINES)
    )
    graphs.append({
        "id": f"graph{number}",
        "width": panel["gridPos"]["w"] * WIDTH / 24 - 24,
        "height": small - min(len(shown), 4) * 15 - 22,
        "data": [times] + [[points.get(at) for at in times] for _, points in lines],
        "colors": [LINES[i % len(LINES)] for i in range(len(lines))],
        "prefixes": PREFIXES.get(defaults["unit"], [[0.01, "%"]] if defaults["unit"] == "percentunit" else [[1, ""]]),
        "steps": [
            [step["value"], COLORS[step["color"]]]
            for step in (defaults.get("thresholds") or {}).get("steps", [])
            if step["value"] is not None
        ],
    })
    head = "<tr><th></th><th>Last</th><th>Max</th></tr>"
    return f'<div id="graph{number}"></div><table class="legend">{head}{rows}</table>'


def last(points: dict[int, float]) -> float:
    value = points[max(points)]
    return value if value == value else 0.0


def legend(target: dict, labels: dict) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), target["legendFormat"])


def stat(panel: dict, prometheus: Prometheus, graphs: list) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    found = [
        (legend(target, series["metric"]), float(series["value"][1]))
        for target in panel["targets"]
        for series in prometheus.instant(target["expr"])
    ]
    mode = panel["options"]
    if mode["textMode"] == "name":
        return "".join(f'<div class="name">{html.escape(name)}</div>' for name, _ in found)
    if not found:
        return f'<div class="nothing">{html.escape(defaults.get("noValue", "No data"))}</div>'
    many = len(found) > 1
    cells = "".join(
        f'<div class="number" style="background:{color_of(value, defaults.get("thresholds"))}">'
        f"{f'<small>{html.escape(name)}</small>' if many else ''}{text(value, defaults['unit'])}</div>"
        for name, value in found
    )
    return f'<div class="numbers">{cells}</div>'


def table(panel: dict, prometheus: Prometheus, graphs: list) -> str:
    """A table of instant queries, after Grafana's transformations merge and organize."""
    known = {"merge", "organize"}
    kinds = {step["id"] for step in panel["transformations"]}
    if kinds - known:
        raise SystemExit(f"{panel['title']}: no drawing of {kinds - known}")
    arranged = next(step["options"] for step in panel["transformations"] if step["id"] == "organize")
    answers = {target["refId"]: prometheus.instant(target["expr"]) for target in panel["targets"]}
    labels = [set(series["metric"]) for answer in answers.values() for series in answer]
    keys = sorted(set.intersection(*labels)) if labels else []
    rows: dict[tuple, dict] = {}
    for ref, answer in answers.items():
        for series in answer:
            row = rows.setdefault(tuple(series["metric"][key] for key in keys), {})
            row.update(series["metric"])
            row[f"Value #{ref}"] = float(series["value"][1])
    fields = sorted((f for f in arranged["indexByName"]), key=arranged["indexByName"].get)
    fields = [field for field in fields if not arranged["excludeByName"].get(field)]
    names = {field: arranged["renameByName"].get(field, field) for field in fields}
    settings = {
        override["matcher"]["options"]: {entry["id"]: entry["value"] for entry in override["properties"]}
        for override in panel["fieldConfig"]["overrides"]
    }
    by = panel["options"]["sortBy"][0]["displayName"]
    rank = next(field for field in fields if names[field] == by)
    ordered = sorted(rows.values(), key=lambda row: -row.get(rank, float("-inf")))
    fields = [field for field in fields if not settings.get(names[field], {}).get("custom.hidden")]
    widths = {field: settings.get(names[field], {}).get("custom.width") for field in fields}
    styles = {field: f' style="width:{width}px"' if width else "" for field, width in widths.items()}
    head = "".join(f"<th{styles[field]}>{html.escape(names[field])}</th>" for field in fields)
    body = "".join(
        "<tr>" + "".join(cell(row.get(field), settings.get(names[field], {})) for field in fields) + "</tr>"
        for row in ordered
    )
    return f'<table class="table"><tr>{head}</tr>{body}</table>'


def cell(value: object, settings: dict) -> str:
    if value is None:
        return "<td></td>"
    mapped = [entry["options"] for entry in settings.get("mappings", [])]
    key = f"{value:g}" if isinstance(value, float) else value
    shown = next((options[key] for options in mapped if key in options), None)
    if shown is not None:
        return f'<td style="color:{COLORS[shown["color"]]}">{html.escape(shown["text"])}</td>'
    if isinstance(value, float):
        color = color_of(value, settings["thresholds"]) if "thresholds" in settings else COLORS["text"]
        return f'<td class="value" style="color:{color}">{text(value, settings.get("unit", "short"))}</td>'
    return f"<td>{html.escape(str(value))}</td>"


def color_of(value: float, thresholds: dict | None) -> str:
    color = "green"
    for step in (thresholds or {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return COLORS[color]


def text(value: float, unit: str) -> str:
    """The value with three digits and its unit."""
    if value != value:
        return "NaN"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    prefixes = PREFIXES.get(unit, PREFIXES["short"])
    size, name = next(((size, name) for size, name in prefixes if abs(value) >= size), prefixes[-1])
    shown = value / size
    digits = f"{shown:.0f}" if abs(shown) >= 100 else f"{shown:.3g}"
    return f"{digits} {name}".strip()


def photograph(page: str, picture: Path, height: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "page.html"
        path.write_text(page)
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"]
        size = f"--window-size={WIDTH},{height}"
        command = ["chromium", *options, f"--user-data-dir={directory}/profile", size, f"--screenshot={picture}"]
        done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120)
        if done.returncode != 0 or not picture.is_file():
            raise SystemExit(f"chromium failed:\n{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
