"""A trace that was cut is read up to its cut, and says so."""

import warnings
import zlib

import pyarrow as pa
import pytest
import samples
import tcpmon_trace
from tcpmon_trace import TraceError, TraceWarning


def read_cut(path):
    """A trace that must come with one warning, which is also shown."""
    with pytest.warns(TraceWarning) as shown:
        trace = tcpmon_trace.read(path)
    assert [warning.message for warning in shown] == list(trace.warnings)
    assert [warning.filename for warning in shown] == [__file__]
    assert trace.is_complete is False
    (warning,) = trace.warnings
    assert warning.path == str(path) and str(path) in str(warning)
    return trace, warning


def cuts_of(lines):
    """Bytes around the ends of the lines and in their middle, with the number of whole lines up to each."""
    end, whole = 0, 0
    for line in lines:
        for inside in (1, len(line) // 2, len(line) - 2):
            yield end + inside, whole, end
        end, whole = end + len(line), whole + 1
        # Only the last line end is missing.
        yield end - 1, whole, end - 1
        yield end, whole, end


def test_lines_are_read_up_to_any_byte_of_a_cut(tmp_path):
    lines = samples.lines()
    data, rows = b"".join(lines), samples.rows()
    path = tmp_path / "run.jsonl"
    tried = 0
    for length, whole, offset in cuts_of(lines):
        path.write_bytes(data[:length])
        if whole == 0:
            with pytest.raises(TraceError, match="line 1 at byte 0: the file is cut within its header"):
                tcpmon_trace.read(path)
        elif whole == len(lines):
            assert tcpmon_trace.read(path).is_complete is True
        else:
            trace, warning = read_cut(path)
            expected = min(whole - 1, len(rows))
            assert trace.timeslices.to_pylist() == rows[:expected]
            assert trace.sockets.num_rows == (whole > 13) and trace.threads.num_rows == (whole > 14)
            assert (trace.trailer, trace.lost, warning.kind, warning.offset) == (None, None, "cut", offset)
            assert f"; {expected} records were read" in str(warning).replace(": ", "; ")
            tried += 1
    assert tried > 60


def test_an_empty_file_is_no_trace(tmp_path):
    (tmp_path / "run.jsonl").touch()
    with pytest.raises(TraceError, match="the file is empty; .*trace again"):
        tcpmon_trace.read(tmp_path / "run.jsonl")


def flushed(lines, name):
    """Compressed lines as tcpmon writes them, with the length of the file after each flush."""
    sink, ends = pa.BufferOutputStream(), []
    if name.endswith(".zst"):
        stream = pa.CompressedOutputStream(sink, "zstd")
        for line in lines:
            stream.write(line)
            stream.flush()
            ends.append(sink.tell())
        stream.close()
        return sink.getvalue().to_pybytes(), ends
    compressor, data = zlib.compressobj(wbits=31), b""
    for line in lines:
        data += compressor.compress(line) + compressor.flush(zlib.Z_SYNC_FLUSH)
        ends.append(len(data))
    return data + compressor.flush(), ends


@pytest.mark.parametrize("name", ["run.jsonl.gz", "run.jsonl.zst", "run.csv.gz", "run.csv.zst"])
def test_compressed_text_is_read_up_to_the_last_flush_before_a_cut(tmp_path, name):
    rows = samples.rows()
    lines = samples.csv_bytes(rows).splitlines(keepends=True) if "csv" in name else samples.lines()
    data, ends = flushed(lines, name)
    path = tmp_path / name
    for length in [*ends[:-1], *(end + 1 for end in ends[:-1]), *range(ends[0], ends[-2], 37)]:
        path.write_bytes(data[:length])
        trace, warning = read_cut(path)
        certain = min(sum(end <= length for end in ends) - 1, len(rows))
        assert trace.timeslices.num_rows >= certain, length
        assert trace.timeslices.to_pylist() == rows[: trace.timeslices.num_rows]
        assert warning.kind == "cut"


@pytest.mark.parametrize("name", ["run.jsonl.gz", "run.jsonl.zst"])
def test_no_flushed_record_before_a_cut_is_dropped_however_long_the_text(tmp_path, name):
    some = samples.rows()
    rows = [{**some[number % 12], "read_bytes": number} for number in range(1000)]
    data, ends = flushed(samples.lines(rows), name)
    path = tmp_path / name
    for whole in (300, 777):
        path.write_bytes(data[: ends[whole] + 3])
        trace, _ = read_cut(path)
        assert trace.timeslices["read_bytes"].to_pylist() == list(range(whole))


@pytest.mark.parametrize("length", [2, 5, 12, 40])
@pytest.mark.parametrize("name", ["run.jsonl.gz", "run.jsonl.zst"])
def test_compressed_text_that_is_cut_before_its_header_is_no_trace(tmp_path, name, length):
    path = samples.write(tmp_path / name)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(TraceError, match="run.jsonl"):
        tcpmon_trace.read(path)


def test_csv_is_read_up_to_any_byte_of_a_cut(tmp_path):
    rows = samples.rows()
    rows[3]["comm"] = 'two\nlines "x"'
    encoded = samples.csv_bytes(rows)
    starts = [len(samples.csv_bytes(rows[:number])) for number in range(13)]
    path = tmp_path / "run.csv"
    for length in [starts[0] - 1, *(start + inside for start in starts[:-1] for inside in (1, 100, 200))]:
        path.write_bytes(encoded[:length])
        if length < starts[0]:
            with pytest.raises(TraceError, match="cut within its first row"):
                tcpmon_trace.read(path)
            continue
        trace, warning = read_cut(path)
        whole = sum(start <= length for start in starts) - 1
        assert trace.timeslices.to_pylist() == rows[:whole]
        assert (warning.kind, warning.offset) == ("cut", starts[whole])
    # The cut within a name that has a line end.
    path.write_bytes(encoded[: encoded.index(b"lines")])
    assert read_cut(path)[0].timeslices.to_pylist() == rows[:3]
    # Between two rows, a cut leaves no mark, and completeness is unknown as ever.
    path.write_bytes(encoded[: starts[5]])
    trace = tcpmon_trace.read(path)
    assert (trace.timeslices.num_rows, trace.is_complete, trace.warnings) == (5, None, ())


def test_parquet_is_read_up_to_the_last_footer_before_a_cut(tmp_path):
    rows = samples.rows()
    groups = [rows[:5], rows[5:9], rows[9:]]
    data, ends = samples.running_parquet_bytes(groups)
    path = tmp_path / "run.parquet"
    for whole, end in enumerate(ends, 1):
        until = ends[whole] if whole < 3 else end + 1
        for length in sorted({end, end + 1, end + 8, (end + until) // 2, until - 1}):
            path.write_bytes((data + b"PAR1")[:length])
            trace, warning = read_cut(path)
            assert trace.timeslices.to_pylist() == sum(groups[:whole], []), length
            assert (trace.trailer, trace.lost, warning.kind, warning.offset) == (None, None, "cut", end)
    for length in (4, 100, ends[0] // 2, ends[0] - 1):
        path.write_bytes(data[:length])
        with pytest.raises(TraceError, match="no footer.*trace again"):
            tcpmon_trace.read(path)


def test_a_whole_parquet_file_that_was_cut_has_no_footer_unless_it_has_several_row_groups(tmp_path):
    data = samples.PARQUET.read_bytes()
    path = tmp_path / "run.parquet"
    for length in [4, *range(50, len(data), 997), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(TraceError, match="no footer"):
            tcpmon_trace.read(path)


def test_a_link_to_no_footer_is_damage(tmp_path):
    rows = samples.rows()
    data, _ = samples.running_parquet_bytes([rows[:5], rows[5:]], links=77)
    (tmp_path / "run.parquet").write_bytes(data)
    with pytest.raises(TraceError, match="at byte 77: a damaged Parquet file"):
        tcpmon_trace.read(tmp_path / "run.parquet")


@pytest.mark.parametrize("name", ["run.jsonl", "run.parquet"])
def test_a_trailer_that_tells_of_other_records_is_reported(tmp_path, name):
    path = samples.write(tmp_path / name, samples.rows()[:7], trailer=samples.trailer())
    trace, warning = read_cut(path)
    assert (trace.timeslices.num_rows, warning.kind) == (7, "count")
    assert "tells of 12 records, and the file has 7" in str(warning)


def test_the_corpus_s_own_lines_are_such_a_file():
    trace, warning = read_cut(samples.CORPUS / "jsonl/trace")
    assert (trace.timeslices.num_rows, warning.kind, warning.line) == (6, "count", 10)


def test_a_whole_file_warns_of_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tcpmon_trace.read(samples.write(tmp_path / "run.jsonl"))
