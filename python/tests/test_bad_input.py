"""A file that is no trace, or is damaged, raises one exception that names file, place and remedy."""

import gzip
import random
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import samples
import tcpmon_trace
from tcpmon_trace import TraceError
from test_cut import flushed


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(TraceError) as raised:
        tcpmon_trace.read(path)
    error = raised.value
    assert error.path == str(path)
    assert str(error).startswith(str(path)) and str(error).endswith(f"{error.reason}; {error.remedy}")
    return error


@pytest.mark.parametrize(
    "content",
    [
        b"\n",
        b"[]\n",
        b"{}\n",
        b"tid,comm\n1,x\n",
        b"TIME  CPU  COMM\n",
        b"\x0a\x10perfetto\x00\xff",
        b"\x89PNG\r\n\x1a\n",
        b'{"type":"header"}\n',
        b'{"type":"header","format":"another","format_version":1}\n',
        b"{" + b" " * (1 << 21),
        gzip.compress(b"hello"),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused_at_its_first_line(tmp_path, content):
    error = refused(tmp_path / "x", content)
    assert error.line == 1
    assert "give a file that `tcpmon trace`" in error.remedy or "no header" in error.reason


def test_another_version_names_the_tcpmon_that_wrote_it(tmp_path):
    newer = samples.header(format_version=2, tcpmon_version="3.0.0")
    for content in (samples.lines(header=newer), [samples.parquet_bytes(samples.rows(), header=newer)]):
        error = refused(tmp_path / "x", b"".join(content))
        assert "format version 2, and this package reads version 1" in error.reason
        assert "tcpmon 3.0.0" in error.remedy


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"cpu":1', b'"cpu":x', "not JSON: Expecting value"),
        (b'"cpu":1', b'"cpu":"1"', "key cpu is '1', which does not fit int64"),
        (b'"cpu":1', b'"cpu":1.0', "key cpu is 1.0"),
        (b'"cpu":1', b'"cpu":-1', "key cpu is -1"),
        (b'"cpu":1', b'"cpu":true', "key cpu is True"),
        (b'"cpu":1', b'"cpu":null', "there is no key cpu"),
        (b'"cpu":1,', b"", "there is no key cpu"),
        (b'"cpu":1', b'"cpu":9223372036854775808', "key cpu is 9223372036854775808"),
        (b'"local_port":56243', b'"local_port":4294967296', "does not fit int32"),
        (b'"partial":false', b'"partial":0', "key partial is 0, which does not fit bool"),
        (b'"comm":"python3"', b'"comm":7', "key comm is 7, which does not fit string"),
        (b'"comm":"python3"', b'"comm":"\\ud800"', "does not fit string"),
        (b'"comm":"python3"', b'"comm":"\xff"', "not JSON: 'utf-8' codec"),
        (b'"type":"timeslice"', b'"type":7', "there is no key type"),
        (b'{"type":"timeslice"', b'7{"type":"timeslice"', "not JSON: Extra data"),
        (b'"preempted_by":""}', b'"preempted_by":""}{}', "not JSON: Extra data"),
        (b'"preempted_by":""}', b'"preempted_by":""}\n', "not JSON: Expecting value"),
    ],
)
def test_a_bad_line_is_named_by_number_and_byte(tmp_path, old, new, reason):
    lines = samples.lines()
    assert old in lines[2]
    start = len(lines[0] + lines[1])
    changed = lines[2].replace(old, new, 1)
    error = refused(tmp_path / "run.jsonl", b"".join([*lines[:2], changed, *lines[3:]]))
    assert reason in error.reason
    line = 4 if new.endswith(b"\n") else 3
    assert error.line == line
    assert start <= error.offset <= start + len(changed)
    assert "copy the file again" in error.remedy
    if new == b'"cpu":x':
        assert error.offset == start + changed.index(b"x,")


def test_a_bad_line_far_in_a_long_file_is_named(tmp_path):
    lines = samples.lines(samples.rows() * 1000)
    lines[11_000] = lines[11_000].replace(b'"tid":', b'"tid":"x"')
    error = refused(tmp_path / "run.jsonl.zst", samples.compressed(b"".join(lines), "x.zst"))
    assert error.line == 11_001


@pytest.mark.parametrize(
    ("key", "at", "reason"), [("read_bytes", 13, "socket"), ("tid", 14, "thread"), ("records", 15, "trailer")]
)
def test_totals_and_trailer_are_checked(tmp_path, key, at, reason):
    lines = samples.lines()
    assert f'"type":"{reason}"'.encode() in lines[at]
    lines[at] = lines[at].replace(f'"{key}":'.encode(), f'"{key}":"x","y":'.encode())
    error = refused(tmp_path / "run.jsonl", b"".join(lines))
    assert error.line == at + 1 and key in error.reason
    for lost in ({"write": "x"}, [1], None):
        error = refused(tmp_path / "run.jsonl", b"".join(samples.lines(trailer=samples.trailer(lost=lost))))
        assert (error.line, error.reason) == (16, "the trailer has no valid lost")


@pytest.mark.parametrize("key", ["hostname", "start_monotonic_ns", "start_realtime_ns"])
@pytest.mark.parametrize("value", [None, -1, 2**64, [7]])
def test_a_header_without_host_or_clocks_is_refused(tmp_path, key, value):
    error = refused(tmp_path / "run.jsonl", b"".join(samples.lines(header=samples.header(**{key: value}))))
    assert error.reason == f"the header has no valid {key}"


def test_two_traces_in_one_file_are_refused_at_the_second(tmp_path):
    lines = samples.lines()
    whole = b"".join(lines)
    error = refused(tmp_path / "run.jsonl", whole + whole)
    assert (error.line, error.offset) == (len(lines) + 1, len(whole))
    assert f"head -c {len(whole)}" in error.remedy
    error = refused(tmp_path / "run.jsonl", b"".join(lines[:3]) + whole)
    assert (error.line, error.reason) == (4, "a second header")


@pytest.mark.parametrize("name", ["run.jsonl.gz", "run.jsonl.zst"])
def test_damaged_compression_is_no_cut(tmp_path, name):
    data, ends = flushed(samples.lines(), name)
    damaged = data[: ends[5]] + b"\xff" * 20 + data[ends[5] + 20 :]
    assert "cannot be decompressed" in refused(tmp_path / name, damaged).reason


def test_two_records_on_a_line_are_refused(tmp_path):
    lines = samples.lines()
    error = refused(tmp_path / "run.jsonl", b"".join([*lines[:2], lines[2].rstrip(), *lines[3:]]))
    assert (error.line, error.offset) == (3, len(b"".join(lines[:3])) - 1)
    assert "Extra data" in error.reason


def test_a_bad_row_of_csv_is_named(tmp_path):
    rows = samples.csv_bytes(samples.rows()).split(b"\n")
    rows[4] = rows[4].replace(b",blocked,", b",blocked,maybe")
    error = refused(tmp_path / "run.csv", b"\n".join(rows))
    assert "Row #5" in error.reason and "maybe" in error.reason
    rows = samples.csv_bytes(samples.rows()).split(b"\n")
    rows[7] = rows[7].replace(b",4,127.0.0.1,", b",4,")
    assert "Row #8: Expected 48 columns, got 47" in refused(tmp_path / "run.csv", b"\n".join(rows)).reason
    rows = samples.csv_bytes(samples.rows()).split(b"\n")
    rows[2] = rows[2].removesuffix(b",0,") + b",,"
    assert "Row #3" in refused(tmp_path / "run.csv", b"\n".join(rows)).reason
    missing = samples.csv_bytes(samples.rows()).replace(b",netns,", b",nets,")
    assert "there is no column netns" in refused(tmp_path / "run.csv", missing).reason


def test_parquet_that_is_no_trace_or_damaged_is_refused(tmp_path):
    path = tmp_path / "run.parquet"

    def written(table):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        return sink.getvalue().to_pybytes()

    table = samples.table()
    error = refused(path, written(table.replace_schema_metadata(None)))
    assert "without the key tcpmon.header" in error.reason
    assert "there is no column netns" in refused(path, written(table.drop_columns(["netns"]))).reason
    nulls = pa.table([*table.columns[:-2], pa.array([None] * 12, pa.int64()), table.columns[-1]], table.schema.names)
    nulls = nulls.set_column(5, "cpu", pa.array([None] * 12, pa.int64())).replace_schema_metadata(table.schema.metadata)
    assert "column cpu has 12 nulls" in refused(path, written(nulls)).reason
    for name in ("overflow", "negative-offset"):
        assert "damaged" in refused(path, (samples.CORPUS / "parquet" / name).read_bytes()).reason
    refused(path, b"PAR1, but nothing else")
    refused(path, b"PAR1")


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv", "run.jsonl.gz", "run.parquet"])
def test_changed_bytes_raise_nothing_else(tmp_path, name):
    data = samples.write(tmp_path / name).read_bytes()
    draw = random.Random(name)
    refusals = 0
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(draw.randint(1, 3)):
            changed[draw.randrange(len(changed))] = draw.choice(b'{}[]",:0123456789eE-.\n\\ \x00\x80\xff')
        (tmp_path / name).write_bytes(changed[: draw.randint(0, len(changed))] if draw.random() < 0.3 else changed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tcpmon_trace.read(tmp_path / name)
            except TraceError:
                refusals += 1
    assert 0 < refusals < 300


def test_a_file_that_cannot_be_opened_is_the_system_s_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing.jsonl"):
        tcpmon_trace.read(tmp_path / "missing.jsonl")
    with pytest.raises(IsADirectoryError):
        tcpmon_trace.read(tmp_path)
