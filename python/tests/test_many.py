"""The files of a rotated trace are one trace."""

import pytest
import samples
import tcpmon_trace
from tcpmon_trace import TraceError, TraceWarning

BEGIN = samples.header()["start_monotonic_ns"]
PARTS = [(0, 5), (5, 9), (9, 12)]


def rotated(folder, names, **changes):
    """Writes the corpus trace as several files; `changes` has those of a file's header or trailer by its number."""
    rows, paths = samples.rows(), []
    clocks = [BEGIN, *(rows[end - 1]["deactivated_ns"] for _, end in PARTS)]
    for number, (name, (begin, end)) in enumerate(zip(names, PARTS)):
        last = number == len(PARTS) - 1
        header = samples.header(start_monotonic_ns=clocks[number])
        # The same distance between both clocks in each file.
        header["start_realtime_ns"] += clocks[number] - BEGIN
        trailer = samples.trailer(
            records=end - begin, end_monotonic_ns=clocks[number + 1], reason="duration" if last else "rotated"
        )
        header.update(changes.get(f"header{number}", {}))
        trailer.update(changes.get(f"trailer{number}", {}))
        parts = {"header": header, "trailer": trailer, "totals": None if last else []}
        paths.append(samples.write(folder / name, rows[begin:end], **parts))
    return paths


SAME = ["a.1.jsonl", "a.2.jsonl", "a.3.jsonl"]
MIXED = ["c.jsonl.zst", "b.parquet", "a.jsonl"]


@pytest.mark.parametrize("names", [SAME, MIXED])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_the_files_in_any_order_and_format_are_the_whole_trace(tmp_path, names, order):
    paths = rotated(tmp_path, names)
    trace = tcpmon_trace.read_many(paths[number] for number in order)
    whole = tcpmon_trace.read(samples.write(tmp_path / "whole.jsonl"))
    assert trace.paths == tuple(map(str, paths))
    assert trace.timeslices.equals(whole.timeslices, check_metadata=True)
    assert trace.sockets.equals(whole.sockets) and trace.threads.equals(whole.threads)
    assert trace.header["start_monotonic_ns"] == BEGIN
    assert (trace.trailer["records"], trace.trailer["reason"]) == (12, "duration")
    assert (trace.is_complete, trace.lost, trace.warnings) == (True, {}, ())
    assert f"{names[0]} and 2 more files: 12 timeslices" in repr(trace)


def test_rows_of_csv_files_are_in_the_order_of_their_times(tmp_path):
    paths = rotated(tmp_path, ["x.csv", "y.csv", "z.csv.gz"])
    trace = tcpmon_trace.read_many(reversed(paths))
    assert trace.timeslices.to_pylist() == samples.rows()
    assert (trace.header, trace.trailer, trace.is_complete) == ({"hostname": "vm"}, None, None)


def test_losses_of_the_files_are_added_up(tmp_path):
    some = {"lost": {"output": 2, "write": 0}, "complete": False}
    paths = rotated(tmp_path, SAME, trailer0=some, trailer2={"lost": {"output": 1, "timeslice_edge": 4}})
    trace = tcpmon_trace.read_many(paths)
    assert trace.lost == {"output": 3, "timeslice_edge": 4}
    assert trace.is_complete is False


def test_a_missing_last_file_and_a_cut_one_are_reported(tmp_path):
    paths = rotated(tmp_path, SAME)
    with pytest.warns(TraceWarning, match="a.2.jsonl: the trace continues in another file"):
        trace = tcpmon_trace.read_many(paths[:2])
    assert ([warning.kind for warning in trace.warnings], trace.is_complete) == (["continued"], False)
    paths[1].write_bytes(paths[1].read_bytes()[:-100])
    with pytest.warns(TraceWarning, match="a.2.jsonl: line 6 .*no trailer"):
        trace = tcpmon_trace.read_many(paths)
    assert (trace.timeslices.num_rows, trace.trailer, trace.lost, trace.is_complete) == (12, None, None, False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"header1": {"hostname": "other"}}, "its hostname is other, and that of .*a.1.jsonl is vm"),
        ({"header0": {"boot_id": "a"}, "header1": {"boot_id": "b"}}, "its boot_id is b"),
        ({"trailer0": {"end_monotonic_ns": 2**62}}, "at the same time as .*a.1.jsonl, so records would count twice"),
    ],
)
def test_files_of_different_traces_are_refused(tmp_path, changes, reason):
    with pytest.raises(TraceError, match=f"a.2.jsonl: .*{reason}.*; read each trace by itself"):
        tcpmon_trace.read_many(rotated(tmp_path, SAME, **changes))


def test_a_host_that_got_another_name_is_known_by_its_boot(tmp_path):
    changes = {f"header{number}": {"boot_id": "a", "hostname": f"name{number}"} for number in range(3)}
    assert tcpmon_trace.read_many(rotated(tmp_path, SAME, **changes)).timeslices.num_rows == 12


def test_a_file_given_twice_is_refused(tmp_path):
    paths = rotated(tmp_path, SAME)
    with pytest.raises(TraceError, match="at the same time"):
        tcpmon_trace.read_many([*paths, paths[0]])


def test_no_files_are_no_trace():
    with pytest.raises(ValueError, match="give at least one path"):
        tcpmon_trace.read_many([])
