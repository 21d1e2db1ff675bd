"""Runs the notebook on a trace: TCPMON_TRACE=run.parquet python run.py shown.ipynb

The new notebook has all outputs, and `shown.png` beside it is the last figure.
"""

import base64
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).with_name("queue_and_work.ipynb")


def main(shown: Path) -> None:
    if "TCPMON_TRACE" not in os.environ:
        sys.exit("TCPMON_TRACE names no trace; set it to the path of a trace file")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # The kernel runs here, so that a relative path means the same to it.
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": os.getcwd()}}).execute()
    nbformat.write(notebook, shown)
    last = [output.data for output in notebook.cells[-1].outputs if "data" in output][-1]
    shown.with_suffix(".png").write_bytes(base64.b64decode(last["image/png"]))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
