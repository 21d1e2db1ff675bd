"""The notebook runs on a trace in any format and on that of a real transfer, and is kept without outputs."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import nbformat
import pytest
import samples
import tcpmon_trace

FOLDER = Path(__file__).parents[1] / "notebooks"

# What the real transfer carries.
BYTES = 48 << 20

# Receives from a port of this host. After each read, it computes on the data for no, some or more time; then it sleeps,
# so that each read has a timeslice of its own.
RECEIVER = """
import socket, sys, time, zlib
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
reads = 0
while data := connection.recv(65536):
    for _ in range((0, 4, 16)[reads % 3]):
        zlib.crc32(data)
    reads += 1
    time.sleep(0.0005)
"""


def send(server):
    connection, _ = server.accept()
    with connection:
        connection.sendall(bytes(BYTES))


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A trace that tcpmon has made of a transfer over loopback."""
    # `cargo xtask test` sets it, and there this is never left out.
    if "TCPMON_BIN" not in os.environ:
        pytest.skip("TCPMON_BIN names no tcpmon to trace with")
    path = tmp_path_factory.mktemp("real") / "run.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as server:
        # A daemon, because nothing connects if tcpmon fails.
        threading.Thread(target=send, args=[server], daemon=True).start()
        receiver = [sys.executable, "-c", RECEIVER, str(server.getsockname()[1])]
        command = [os.environ["TCPMON_BIN"], "trace", "--output", str(path), "--", *receiver]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return path


def run(folder, trace, tcpmon="nowhere"):
    environment = {**os.environ, "TCPMON_TRACE": str(trace)}
    # Neither a tcpmon of this machine nor a setting of this user changes what the notebook shows.
    environment.update(TCPMON_BIN=str(folder / tcpmon), IPYTHONDIR=str(folder), MPLCONFIGDIR=str(folder))
    environment.update(MPLBACKEND="module://matplotlib_inline.backend_inline")
    command = [sys.executable, str(FOLDER / "run.py"), "shown.ipynb"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def shown(cell):
    return "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in cell.outputs)


def texts_and_figure(folder):
    """What each cell of code shows as text, and the picture beside the notebook."""
    notebook = nbformat.read(folder / "shown.ipynb", as_version=4)
    texts = [shown(cell) for cell in notebook.cells if cell.cell_type == "code"]
    return texts, (folder / "shown.png").read_bytes()


def is_figure(picture):
    return picture.startswith(b"\x89PNG") and len(picture) > 10_000


def test_the_notebook_ends_with_the_figure_of_a_real_transfer(tmp_path, real):
    trace = tcpmon_trace.read(real)
    # A segment that finds the program running costs no byte.
    assert set(trace.lost) <= {"recursion_tcp_probe"}
    assert trace.sockets["read_bytes"].to_pylist() == [BYTES]
    # As many as there were reads, at least.
    assert trace.timeslices.num_rows >= BYTES / 65536
    done = run(tmp_path, real, tcpmon=Path(os.environ["TCPMON_BIN"]).absolute())
    assert done.returncode == 0, done.stderr[-3000:]
    texts, picture = texts_and_figure(tmp_path)
    assert f"{trace.timeslices.num_rows} timeslices" in texts[0]
    assert "'sentence'" in texts[1] and "no verdict" not in texts[1]
    assert str(BYTES) in texts[2]
    # The points of the last figure: one for each third of the timeslices by their work, at least.
    points = [line.split() for line in texts[-1].splitlines() if " to " in line]
    assert len(points) >= 3, texts[-1]
    assert sum(int(point[-2]) for point in points) <= trace.timeslices.num_rows
    assert all(0 <= float(point[-1]) for point in points), texts[-1]
    assert is_figure(picture)


@pytest.mark.parametrize("name", ["run.parquet", "run.csv"])
def test_the_notebook_runs_to_its_figure(tmp_path, name):
    some = samples.rows()
    rows = [
        {
            **some[number % 12],
            "deactivated_ns": some[0]["deactivated_ns"] + number * 1_000_000,
            "on_cpu_ns": 10_000 + number * 1000,
            "deactivation_rmem_bytes": number * 500,
            "deactivation_rcvbuf_bytes": 131_072 << number // 100,
        }
        for number in range(300)
    ]
    samples.write(tmp_path / name, rows)
    done = run(tmp_path, name)
    assert done.returncode == 0, done.stderr[-3000:]
    texts, picture = texts_and_figure(tmp_path)
    assert "300 timeslices" in texts[0]
    assert "no verdict: cannot run" in texts[1]
    assert f"{300 * 1000}" in texts[2]
    assert is_figure(picture)


def test_a_trace_in_which_nothing_was_read_is_refused_in_words(tmp_path):
    samples.write(tmp_path / "run.jsonl", [])
    done = run(tmp_path, "run.jsonl")
    assert done.returncode != 0
    assert "trace a receiver while it receives" in done.stderr


def test_without_a_trace_the_runner_says_what_to_set(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "TCPMON_TRACE"}
    command = [sys.executable, str(FOLDER / "run.py"), str(tmp_path / "shown.ipynb")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "TCPMON_TRACE names no trace" in done.stderr


def test_the_notebook_is_valid_and_kept_without_outputs():
    notebook = nbformat.read(FOLDER / "queue_and_work.ipynb", as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert notebook.nbformat == 4
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 3
    assert [cell for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert 'os.environ["TCPMON_TRACE"]' in code[0].source
