"""Opens trace files in any format."""

from __future__ import annotations

import os
import warnings
from typing import Any, Iterable, Optional, Union

import pyarrow as pa
import pyarrow.compute as pc

from .csv import read_csv
from .errors import Place, TraceError, TraceWarning
from .jsonl import NOT_A_TRACE, read_jsonl
from .parquet import MAGIC, read_parquet
from .text import Text
from .trace import Trace

AnyPath = Union[str, "os.PathLike[str]"]


def read(path: AnyPath) -> Trace:
    """Reads a trace: JSON Lines or CSV, also compressed with gzip or zstd, or Parquet.

    The content of the file tells its format, whatever its name. A file that was cut is read up to its cut, with a
    `TraceWarning` in `Trace.warnings`. The whole trace is kept in memory: about 400 bytes per timeslice.

    Raises:
        TraceError: the file is not a trace, or is damaged.
        OSError: the file cannot be opened or read.
    """
    trace = _read(path)
    _show(trace)
    return trace


def read_many(paths: Iterable[AnyPath]) -> Trace:
    """Reads the files of a rotated trace, in any order and format, as one.

    They have to come from one host without a reboot in between, and must not overlap. `Trace` says how headers and
    trailers are merged.

    Raises:
        TraceError: as in `read`, or the files are not of one trace.
        OSError: a file cannot be opened or read.
    """
    traces = sorted((_read(path) for path in paths), key=_start)
    if not traces:
        raise ValueError("there are no files: give at least one path")
    for before, after in zip(traces, traces[1:]):
        _check_pair(before, after)
    found = [warning for trace in traces for warning in trace.warnings]
    trailer = _merged([trace.trailer for trace in traces])
    if trailer is not None and trailer.get("reason") == "rotated":
        place = Place(traces[-1].paths[0])
        found.append(TraceWarning("continued", place, "the trace continues in another file; give that, too"))
    merged = Trace(
        tuple(trace.paths[0] for trace in traces),
        traces[0].format,
        traces[0].header,
        trailer,
        pa.concat_tables([trace.timeslices for trace in traces]),
        pa.concat_tables([trace.sockets for trace in traces]),
        pa.concat_tables([trace.threads for trace in traces]),
        tuple(found),
    )
    _show(merged)
    return merged


def _read(path: AnyPath) -> Trace:
    name = os.fspath(path)
    with open(name, "rb") as file:
        begin = file.read(len(MAGIC))
    if begin == MAGIC:
        return read_parquet(name)
    first = next(Text(name, begin).pieces(), b"").split(b"\n", 1)[0]
    if first.startswith(b"{") or not first:
        return read_jsonl(Text(name, begin))
    if b"activated_ns" in first.split(b","):
        return read_csv(Text(name, begin))
    raise TraceError(Place(name, 1, 0), "neither JSON Lines, CSV nor Parquet of a trace", NOT_A_TRACE)


def _show(trace: Trace) -> None:
    for warning in trace.warnings:
        warnings.warn(warning, stacklevel=3)


def _start(trace: Trace) -> int:
    """When a file begins, ns of the monotonic clock. CSV does not tell, so its first record has to do."""
    edge = pc.min(trace.timeslices["deactivated_ns"]).as_py()
    return int(trace.header.get("start_monotonic_ns", edge or 0))


def _check_pair(before: Trace, after: Trace) -> None:
    """Refuses files of different traces: cookies are unique, and clocks comparable, within one boot only."""
    place = Place(after.paths[0])
    # A host may get another name at any time, so its name decides only where a header has no boot id.
    for key in ("boot_id", "hostname"):
        first, second = before.header.get(key), after.header.get(key)
        if first and second and first != second:
            reason = f"its {key} is {second}, and that of {before.paths[0]} is {first}"
            raise TraceError(place, reason, "read each trace by itself")
        if first and second:
            break
    end = (before.trailer or {}).get("end_monotonic_ns")
    start = after.header.get("start_monotonic_ns")
    if end is not None and start is not None and start < end:
        reason = f"it was written at the same time as {before.paths[0]}, so records would count twice"
        raise TraceError(place, reason, "read each trace by itself")


def _merged(trailers: list[Optional[dict[str, Any]]]) -> Optional[dict[str, Any]]:
    known = [trailer for trailer in trailers if trailer is not None]
    if len(known) < len(trailers):
        return None
    lost: dict[str, int] = {}
    for trailer in known:
        for cause, count in trailer["lost"].items():
            lost[cause] = lost.get(cause, 0) + count
    complete = all(trailer["complete"] for trailer in known)
    return {**known[-1], "records": sum(trailer["records"] for trailer in known), "lost": lost, "complete": complete}
