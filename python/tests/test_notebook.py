"""The notebook runs on a trace in any format, and is kept without outputs."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import samples

FOLDER = Path(__file__).parents[1] / "notebooks"


def run(folder, trace):
    environment = {**os.environ, "TCPMON_TRACE": trace, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    # Neither a tcpmon of this machine nor a setting of this user changes what the notebook shows.
    environment.update(TCPMON_BIN=str(folder / "nowhere"), IPYTHONDIR=str(folder), MPLCONFIGDIR=str(folder))
    command = [sys.executable, str(FOLDER / "run.py"), "shown.ipynb"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def shown(cell):
    return "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in cell.outputs)


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
    notebook = nbformat.read(tmp_path / "shown.ipynb", as_version=4)
    texts = [shown(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert "300 timeslices" in texts[0]
    assert "no verdict: cannot run" in texts[1]
    assert f"{300 * 1000}" in texts[2]
    picture = (tmp_path / "shown.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000


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
