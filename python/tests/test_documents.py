"""The package, its README and docs/trace-format.md agree."""

import doctest
import re
from pathlib import Path

import pyarrow as pa
import pytest
import samples
import tcpmon_trace

PACKAGE = Path(__file__).parents[1]
DOCUMENT = (samples.REPOSITORY / "docs/trace-format.md").read_text()


def parsed(path):
    """A TOML file; Python can read it from 3.11 on."""
    return pytest.importorskip("tomllib").loads(path.read_text())


def documented(heading):
    """Key, type and unit of each row of the first table in a section."""
    section = DOCUMENT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip().replace("`", "") for cell in row] for row in rows]
    return [tuple(row[:3]) for row in cells if row[0] != "type"]


def ours(schema):
    names = {pa.string(): "string", pa.bool_(): "boolean", pa.int64(): "integer", pa.int32(): "integer"}
    return [(field.name, names[field.type], (field.metadata or {}).get(b"unit", b"").decode()) for field in schema]


@pytest.mark.parametrize(
    ("heading", "schema"),
    [
        ("Timeslice", pa.schema(list(tcpmon_trace.TIMESLICES)[3:])),
        ("Socket", tcpmon_trace.SOCKETS),
        ("Thread", tcpmon_trace.THREADS),
    ],
)
def test_each_table_has_the_documented_columns_types_and_units_in_their_order(heading, schema):
    assert len(schema) >= 10
    assert ours(schema) == documented(heading)
    assert not any(field.nullable for field in schema)


def test_the_first_columns_are_those_that_parquet_and_csv_have_before_the_keys():
    section = DOCUMENT.split("\n### Parquet and CSV\n")[1].split("\n### ")[0]
    first = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert first == tcpmon_trace.TIMESLICES.names[:3] == list(samples.OF_HEADER)


def test_the_document_is_of_the_version_that_is_read():
    assert DOCUMENT.startswith(f"# The trace format, version {tcpmon_trace.jsonl.VERSION}\n")


@pytest.mark.filterwarnings("ignore::tcpmon_trace.TraceWarning")
def test_the_example_of_the_readme_does_what_it_says(tmp_path, monkeypatch):
    samples.write(tmp_path / "run.parquet")
    data = samples.lines()
    (tmp_path / "cut.jsonl").write_bytes(b"".join(data)[: len(b"".join(data[:6])) + 20])
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(PACKAGE / "README.md"), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert (found.failed, found.attempted > 5) == (0, True)


def test_the_package_has_the_version_and_licence_of_tcpmon_and_is_typed():
    project = parsed(PACKAGE / "pyproject.toml")["project"]
    workspace = parsed(samples.REPOSITORY / "Cargo.toml")["workspace"]["package"]
    assert (project["version"], project["license"]) == (workspace["version"], workspace["license"])
    assert (Path(tcpmon_trace.__file__).parent / "py.typed").is_file()


def test_dependencies_have_lower_bounds_only():
    project = parsed(PACKAGE / "pyproject.toml")["project"]
    every = project["dependencies"] + sum(project["optional-dependencies"].values(), [])
    assert every and all(re.fullmatch(r"[a-z]+>=[\d.]+", one) for one in every)
