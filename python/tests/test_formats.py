"""A trace is the same whatever its format."""

import json

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
import pytest
import samples
import tcpmon_trace
from tcpmon_trace import SOCKETS, THREADS, TIMESLICES


def awkward_rows():
    """Rows with what a format could spoil."""
    changes = [
        {"comm": "a,b", "cookie": "1e5", "preempted_by": 'say "x"'},
        {"comm": "two\nlines", "preempted_by": "\n"},
        {"comm": "Zürich 中", "cookie": "0", "preempted_by": " x "},
        {"comm": "null", "preempted_by": "NA", "cookie": "ffffffffffffffff"},
        {"comm": "", "preempted_by": "", "end": "unknown"},
        {"family": 6, "local_address": "::1", "remote_address": "2001:db8::1", "remote_port": 65535},
        {"read_bytes": 2**63 - 1, "limited_window_ns": 2**53 + 1, "handed_over": True, "closed": True},
        {"comm": "a\r", "cookie": "12", "preempted_by": "\\"},
    ]
    return [{**row, **change} for row, change in zip(samples.rows(), changes)]


def test_the_writers_of_these_tests_write_what_tcpmon_writes():
    ours = samples.lines()
    of_tcpmon = (samples.CORPUS / "jsonl/trace").read_bytes().splitlines(keepends=True)
    # The corpus has fewer records of this trace as JSON Lines, and a trailer of a later tcpmon.
    assert len(of_tcpmon) == 10
    assert [line for line in of_tcpmon[:-1] if line not in ours] == []


@pytest.mark.parametrize("name", samples.FORMATS)
def test_each_format_gives_the_same_tables(tmp_path, name):
    trace = tcpmon_trace.read(samples.write(tmp_path / name))
    assert trace.timeslices.schema.equals(TIMESLICES, check_metadata=True)
    assert trace.timeslices.to_pylist() == samples.rows()
    assert trace.sockets.schema.equals(SOCKETS, check_metadata=True)
    assert trace.threads.schema.equals(THREADS, check_metadata=True)
    assert trace.paths == (str(tmp_path / name),)
    assert trace.warnings == ()
    if trace.format == "csv":
        assert (trace.header, trace.trailer, trace.is_complete, trace.lost) == ({"hostname": "vm"}, None, None, None)
        assert (trace.sockets.num_rows, trace.threads.num_rows) == (0, 0)
        assert repr(trace).endswith("12 timeslices, 0 sockets, 0 threads, completeness unknown>")
        return
    assert (trace.header, trace.trailer) == (samples.header(), samples.trailer())
    assert (trace.is_complete, trace.lost) == (True, {})
    for found, total in zip([trace.sockets, trace.threads], samples.totals()):
        total.pop("type")
        assert found.to_pylist() == [total]
    assert repr(trace).endswith("12 timeslices, 1 sockets, 1 threads, complete>")


def test_a_file_of_tcpmon_itself_has_the_documented_schema():
    trace = tcpmon_trace.read(samples.PARQUET)
    assert trace.timeslices.schema.equals(TIMESLICES, check_metadata=True)
    assert trace.timeslices.equals(samples.table())


@pytest.mark.parametrize("name", samples.FORMATS)
def test_no_format_spoils_awkward_values(tmp_path, name):
    rows = awkward_rows()
    assert tcpmon_trace.read(samples.write(tmp_path / name, rows)).timeslices.to_pylist() == rows


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.zst", "run.csv", "run.parquet"])
def test_the_content_tells_the_format_and_not_the_name(tmp_path, name):
    path = samples.write(tmp_path / name).rename(tmp_path / "trace.dat")
    trace = tcpmon_trace.read(str(path))
    assert trace.format == name.split(".")[1]
    assert trace.timeslices.num_rows == 12


def test_both_parsers_of_lines_agree(tmp_path, monkeypatch):
    rows = samples.rows() + awkward_rows()
    path = samples.write(tmp_path / "run.jsonl", rows)
    fast = tcpmon_trace.read(path)

    def fails(*_, **__):
        raise pa.ArrowInvalid("no")

    monkeypatch.setattr(pyarrow.json, "read_json", fails)
    slow = tcpmon_trace.read(path)
    assert fast.timeslices.to_pylist() == rows
    assert fast.timeslices.equals(slow.timeslices)


@pytest.mark.parametrize("without", [(), ("limited_", "preempted_by")])
def test_arrow_parses_the_lines_of_each_tcpmon(tmp_path, monkeypatch, without):
    monkeypatch.setattr("tcpmon_trace.jsonl.values_of", None)
    rows = [{key: value for key, value in row.items() if not key.startswith(without)} for row in samples.rows()]
    path = samples.write(tmp_path / "run.jsonl", rows, totals=[])
    assert tcpmon_trace.read(path).timeslices.num_rows == 12


def test_unknown_keys_and_types_are_ignored_and_the_order_of_keys_is_free(tmp_path):
    first, *slices = samples.lines()
    slices[0] = slices[0].replace(b'"cpu":', b'"node":{"id":[1,null]},"cpu":')
    slices[1] = samples.dumped(dict(reversed(json.loads(slices[1]).items())))
    slices[2] = slices[2].replace(b'{"type":', b'{ "type" : ')
    slices.insert(3, b'{"type":"wakeup","at_ns":1}\n')
    path = tmp_path / "run.jsonl"
    path.write_bytes(first + b"".join(slices))
    assert tcpmon_trace.read(path).timeslices.to_pylist() == samples.rows()
    more = samples.table().append_column("node", pa.array([1] * 12))
    pq.write_table(more, tmp_path / "run.parquet")
    assert tcpmon_trace.read(tmp_path / "run.parquet").timeslices.to_pylist() == samples.rows()


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv", "run.parquet"])
def test_keys_that_the_first_files_of_version_1_lack_are_zero_or_empty(tmp_path, name):
    later = [key for key in samples.table().schema.names if key.startswith(("limited_", "waited_", "preempted_by"))]
    assert len(later) == 9
    if name == "run.jsonl":
        rows = [{key: value for key, value in row.items() if key not in later} for row in samples.rows()]
        samples.write(tmp_path / name, rows)
    elif name == "run.csv":
        import csv

        with open(samples.write(tmp_path / name), newline="") as file:
            every = list(csv.DictReader(file))
        with open(tmp_path / name, "w", newline="") as file:
            writer = csv.DictWriter(file, [key for key in every[0] if key not in later], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(every)
    else:
        pq.write_table(samples.table().drop_columns(later), tmp_path / name)
    trace = tcpmon_trace.read(tmp_path / name)
    expected = [{**row, **dict.fromkeys(later, 0), "preempted_by": ""} for row in samples.rows()]
    assert trace.timeslices.to_pylist() == expected


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz", "run.csv.zst"])
def test_a_trace_longer_than_what_is_read_at_a_time_keeps_its_order(tmp_path, name):
    some = samples.rows()
    rows = [{**some[number % 12], "read_bytes": number, "comm": "two\n\nlines"} for number in range(10_000)]
    trace = tcpmon_trace.read(samples.write(tmp_path / name, rows))
    assert trace.timeslices["comm"].unique().to_pylist() == ["two\n\nlines"]
    assert trace.timeslices["read_bytes"].to_pylist() == list(range(10_000))


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv", "run.parquet"])
def test_a_trace_without_timeslices_has_empty_tables_of_the_same_schema(tmp_path, name):
    trace = tcpmon_trace.read(samples.write(tmp_path / name, []))
    assert trace.timeslices.num_rows == 0
    assert trace.timeslices.schema.equals(TIMESLICES, check_metadata=True)
    assert len(trace.to_pandas()) == 0
    assert trace.is_complete is (None if name == "run.csv" else True)


@pytest.mark.parametrize("name", ["run.jsonl", "run.parquet"])
def test_losses_are_told_by_cause(tmp_path, name):
    lost = {"output": 0, "timeslice_record": 3, "write": 1}
    path = samples.write(tmp_path / name, trailer=samples.trailer(lost=lost, complete=False))
    trace = tcpmon_trace.read(path)
    assert (trace.is_complete, trace.lost, trace.warnings) == (False, {"timeslice_record": 3, "write": 1}, ())


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv", "run.parquet"])
def test_pandas_and_polars_get_the_same_table(tmp_path, name):
    trace = tcpmon_trace.read(samples.write(tmp_path / name))
    pandas, polars = trace.to_pandas(), trace.to_polars()
    assert pandas.shape == polars.shape == (12, len(TIMESLICES))
    assert list(pandas.columns) == polars.columns == TIMESLICES.names
    assert pandas["read_bytes"].sum() == polars["read_bytes"].sum() == 12_000
    assert str(pandas["activated_ns"].dtype) == "int64" and str(polars["activated_ns"].dtype) == "Int64"
    times = [row["activated_time"] for row in samples.rows()]
    assert [time.to_pydatetime() for time in pandas["activated_time"]] == times
    assert polars["activated_time"].to_list() == times
