#!/usr/bin/env python3
"""Measures how long the queries of the dashboards take on many hosts: makes the data of 200 hosts with 200 groups each,
starts a Prometheus with them, and asks each query as Grafana would for one hour. Prints the slowest, and how long the
recording rules take. Needs prometheus and promtool, 5 GB of disk in a temporary folder, and some minutes.
"""

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TextIO

HERE = Path(__file__).resolve().parent
HOSTS = 200
GROUPS = 200
# One host has all that a page has; of the others, what the recording rules read.
PERIOD = 3600
STEP = 30
CAUSES = ("upstream", "application", "scheduler", "window", "memory")
PLACES = ("ring", "softnet", "socket", "listener")
SHOWN = 12


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        end = int(time.time()) // STEP * STEP
        with open(folder / "data.om", "w") as file:
            write(file, end)
        blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
        subprocess.run([*blocks, str(folder / "data.om"), str(folder / "data")], check=True)
        (folder / "data.om").unlink()
        (folder / "prometheus.yaml").write_text("{}")
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        files = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
        command = ["prometheus", *files, f"--web.listen-address={address}", "--log.level=error"]
        command.append("--storage.tsdb.retention.time=10y")
        prometheus = subprocess.Popen(command)
        try:
            report(f"http://{address}", end)
        finally:
            prometheus.terminate()
            prometheus.wait()
    return 0


def write(file: TextIO, end: int) -> None:
    """The data, family by family, as OpenMetrics text wants them."""
    times = range(end - PERIOD, end + 1, STEP)
    recent = range(end - 600, end + 1, 60)
    hosts = [f"host{number:03}:10793" for number in range(HOSTS)]

    def family(name: str, series: list[tuple[str, range, float]]) -> None:
        file.write(f"# TYPE {name.removesuffix('_total')} {'counter' if name.endswith('_total') else 'gauge'}\n")
        for labels, when, slope in series:
            for at in when:
                value = slope * (at - end + PERIOD) if name.endswith("_total") else slope
                file.write(f"{name}{{{labels}}} {value:.6g} {at}\n")

    def groups(host: str) -> list[str]:
        base = f'job="tcpmon",instance="{host}"'
        return [f'{base},process="process{number:03}",service="local:{number + 1000}"' for number in range(GROUPS)]

    def of_groups(name: str, label: str = "", values: tuple[str, ...] = ("",), full: bool = False) -> None:
        more = [f',{label}="{value}"' if label else "" for value in values]
        family(name, [
            (group + label, times if host == hosts[0] else recent, 1 + position % 7 / 10)
            for host in hosts[: 1 if full else None]
            for position, group in enumerate(groups(host))
            for label in more
        ])

    of_groups("tcpmon_receive_limited_seconds_total", "cause", CAUSES)
    of_groups("tcpmon_receive_bytes_total")
    of_groups("tcpmon_receive_read_bytes_total")
    of_groups("tcpmon_receive_queue_bytes")
    for name in (
        "tcpmon_socket_seconds_total", "tcpmon_receive_queue_byte_seconds_total", "tcpmon_receive_segments_total",
        "tcpmon_receive_buffer_growths_total", "tcpmon_timeslice_read_bytes_total", "tcpmon_sockets",
        "tcpmon_receive_buffer_used_bytes", "tcpmon_receive_buffer_limit_bytes", "tcpmon_receive_window_bytes",
        "tcpmon_receive_out_of_order_bytes", "tcpmon_receive_backlog_bytes", "tcpmon_reader_cpu_seconds_total",
        "tcpmon_reader_run_queue_seconds_total",
    ):
        of_groups(name, full=True)
    of_groups("tcpmon_receive_wait_byte_seconds_total", "reason", ("application", "scheduler"), full=True)
    of_groups("tcpmon_timeslices_total", "end", ("blocked", "preempted", "exited"), full=True)
    of_groups("tcpmon_timeslice_arrived_bytes_total", "context", ("on_cpu", "off_cpu", "no_reader"), full=True)
    bounds = (*(f"{2.0**power:g}" for power in range(-20, 4)), "+Inf")
    for name in ("tcpmon_receive_buffer_fill_ratio", "tcpmon_timeslice_seconds", "tcpmon_reader_run_queue_wait_seconds"):
        file.write(f"# TYPE {name} histogram\n")
        for group in groups(hosts[0]):
            for at in times:
                for position, bound in enumerate(bounds):
                    file.write(f'{name}_bucket{{{group},le="{bound}"}} {(position + 1) * (at - end + PERIOD)} {at}\n')
                file.write(f"{name}_count{{{group}}} {len(bounds) * (at - end + PERIOD)} {at}\n")
                file.write(f"{name}_sum{{{group}}} {at - end + PERIOD} {at}\n")
    # What the rules have recorded.
    each = [f'job="tcpmon",instance="{host}"' for host in hosts]
    for name, label, values in (
        ("instance_cause:tcpmon_receive_limited:rate5m", "cause", CAUSES[1:]),
        ("instance_process_service_cause:tcpmon_receive_limited:topk3", "process", ("a", "b", "c")),
        ("instance_place:tcpmon_packets_lost:rate5m", "place", PLACES),
        ("instance:tcpmon_receivers_stuck:count", "x", ("",)),
        ("instance:tcpmon_receive_bytes:rate5m", "x", ("",)),
        ("instance:tcpmon_lost:rate5m", "x", ("",)),
        ("tcpmon_build_info", "version", ("1",)),
        ("tcpmon_scrape_duration_seconds", "x", ("",)),
        ("process_cpu_seconds_total", "x", ("",)),
    ):
        family(name, [
            (f'{base},{label}="{value}"', times, number + 0.5) for number, base in enumerate(each) for value in values
        ])
    file.write("# EOF\n")


def report(address: str, end: int) -> None:
    """Asks all queries, three times each, and prints the slowest."""
    wait_for(f"{address}/-/ready")
    found = []
    for path in sorted(HERE.glob("*.json")):
        board = json.loads(path.read_text())
        nested = [panel for row in board["panels"] for panel in row.get("panels") or []]
        for panel in board["panels"] + nested:
            for target in panel.get("targets", []):
                expr = filled(target["expr"], path.stem)
                if target.get("instant"):
                    parameters = {"query": expr, "time": end}
                    seconds = min(took(f"{address}/api/v1/query", parameters) for _ in range(3))
                else:
                    # As many points as a panel is wide.
                    parameters = {"query": expr, "start": end - PERIOD, "end": end, "step": 15}
                    seconds = min(took(f"{address}/api/v1/query_range", parameters) for _ in range(3))
                found.append((seconds, path.stem, panel["title"]))
    found.sort(reverse=True)
    print("| dashboard | panel | time, ms |\n|---|---|---|")
    for seconds, board, title in found[:SHOWN]:
        print(f"| {board} | {title} | {seconds * 1000:.0f} |")
    rules = re.findall(r"^      - record: (\S+)\n        expr: (?:\|\n((?: {10}.*\n)+)|(.*)\n)", rules_text(), re.M)
    total = sum(took(f"{address}/api/v1/query", {"query": block or line, "time": end}) for _, block, line in rules)
    print(f"\n{len(found)} queries; all {len(rules)} recording rules once: {total:.1f} s")


def rules_text() -> str:
    return (HERE / "rules.yaml").read_text()


def filled(expr: str, board: str) -> str:
    """For one host where the dashboard is for one, and all hosts where it is for many."""
    instance = ".*" if board == "fleet" else "host000:10793"
    expr = expr.replace("$__rate_interval", "2m").replace("$instance", instance)
    return re.sub(r"\$[a-z]\w*", ".*", expr)


def took(url: str, parameters: dict) -> float:
    begin = time.monotonic()
    with urllib.request.urlopen(url, data=urllib.parse.urlencode(parameters).encode(), timeout=120) as answer:
        answer.read()
    return time.monotonic() - begin


def wait_for(url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=5).read()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit("Prometheus does not become ready")


if __name__ == "__main__":
    sys.exit(main())
