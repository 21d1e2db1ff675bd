"""The verdict is what `tcpmon report` prints."""

import os
import sys

import pytest
import samples
import tcpmon_trace
from tcpmon_trace import ReportError
from test_many import SAME, rotated


def program(path, body):
    """A program in the place of tcpmon."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\nimport json, sys, time\n{body}\n")
    path.chmod(0o755)
    return str(path)


ARGUMENTS = "print(json.dumps({'format_version': 1, 'by': sys.argv[0], 'arguments': sys.argv[1:]}))"


@pytest.fixture
def trace(tmp_path):
    return tcpmon_trace.read(samples.write(tmp_path / "run.jsonl"))


def test_tcpmon_is_asked_for_the_report_on_the_file(tmp_path, monkeypatch, trace):
    monkeypatch.setenv("TCPMON_BIN", program(tmp_path / "other/mine", ARGUMENTS))
    monkeypatch.setenv("PATH", "")
    verdict = trace.verdict()
    assert verdict["format_version"] == 1
    assert verdict["arguments"] == ["report", "--format", "json", str(tmp_path / "run.jsonl")]
    assert trace.verdict(limit=3)["arguments"][3:5] == ["--limit", "3"]


def test_several_files_are_merged_by_tcpmon_too(tmp_path, monkeypatch):
    monkeypatch.setenv("TCPMON_BIN", program(tmp_path / "other/mine", ARGUMENTS))
    paths = rotated(tmp_path, SAME)
    arguments = tcpmon_trace.read_many(reversed(paths)).verdict()["arguments"]
    assert arguments == ["report", "--format", "json", "--merge", *map(str, paths)]


def test_tcpmon_bin_goes_before_path_and_a_relative_path_stays_a_path(tmp_path, monkeypatch):
    on_path = program(tmp_path / "bin/tcpmon", ARGUMENTS)
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + os.pathsep + os.environ["PATH"])
    monkeypatch.delenv("TCPMON_BIN", raising=False)
    monkeypatch.chdir(tmp_path)
    trace = tcpmon_trace.read(samples.write(tmp_path / "-run.jsonl").name)
    answer = trace.verdict()
    assert answer["by"] == on_path
    assert answer["arguments"][-1] == str(tmp_path / "-run.jsonl")
    mine = program(tmp_path / "other/mine", ARGUMENTS)
    monkeypatch.setenv("TCPMON_BIN", mine)
    assert trace.verdict()["by"] == mine


def test_what_tcpmon_says_against_the_file_is_in_the_error(tmp_path, monkeypatch, trace):
    said = "sys.exit('tcpmon: cannot read run.jsonl: no trace')"
    monkeypatch.setenv("TCPMON_BIN", program(tmp_path / "other/mine", said))
    with pytest.raises(ReportError, match="mine report --format json .* exits with 1: tcpmon: cannot read"):
        trace.verdict()


@pytest.mark.parametrize(
    ("body", "reason"),
    [("print('usage')", "prints no JSON"), ("time.sleep(60)", "cannot run .*timed out")],
)
def test_another_program_is_not_taken_for_tcpmon(tmp_path, monkeypatch, trace, body, reason):
    monkeypatch.setenv("TCPMON_BIN", program(tmp_path / "other/mine", body))
    with pytest.raises(ReportError, match=reason):
        trace.verdict(timeout=1.0)


def test_without_tcpmon_the_error_says_what_to_do(tmp_path, monkeypatch, trace):
    monkeypatch.delenv("TCPMON_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReportError, match="not on PATH; install it, or name its binary in TCPMON_BIN"):
        trace.verdict()
    monkeypatch.setenv("TCPMON_BIN", str(tmp_path / "nowhere"))
    with pytest.raises(ReportError, match="cannot run .*nowhere"):
        trace.verdict()


@pytest.mark.skipif("TCPMON_BIN" not in os.environ, reason="TCPMON_BIN names no tcpmon to ask")
@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz", "run.jsonl.zst", "run.parquet"])
def test_the_real_tcpmon_reads_what_this_package_reads(tmp_path, name):
    trace = tcpmon_trace.read(samples.write(tmp_path / name))
    verdict = trace.verdict()
    assert verdict["format_version"] == 1
    assert verdict["files"][0]["records"] == trace.timeslices.num_rows == 12
    assert verdict["read_bytes"] == 12_000
    assert {"verdict", "caveats", "sockets"} <= set(verdict)
