"""Reads JSON Lines."""

from __future__ import annotations

import io
import json
from typing import Any, Iterator, NamedTuple, Optional

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from .errors import COPY_AGAIN, TRACE_AGAIN, Place, TraceError, TraceWarning
from .schema import KEYS, SOCKETS, THREADS, TIMESLICES, conform, fits, table_of, values_of
from .text import Text
from .trace import Trace

FORMAT = "tcpmon-trace"
VERSION = 1
NOT_A_TRACE = "give a file that `tcpmon trace` or `tcpmon convert` wrote as JSON Lines, CSV or Parquet"

# How tcpmon begins the line of a timeslice. Any other spelling is read, too, but more slowly.
_RECORD = b'{"type":"timeslice",'
_TIMESLICE = {"type": "timeslice"}
# tcpmon reads no longer line. The limit bounds the memory that a file without line ends takes.
_LONGEST = 1 << 20
# Lines that are parsed at a time.
_BATCH = 8192
_NULLABLE = pa.schema([field.with_nullable(True) for field in KEYS])


class _Line(NamedTuple):
    place: Place
    text: bytes
    has_end: bool

    @property
    def end(self) -> Place:
        """The end of the line, behind its line end."""
        return self.place._replace(offset=(self.place.offset or 0) + len(self.text) + self.has_end)


def read_jsonl(text: Text) -> Trace:
    """Reads a trace up to its end or its cut."""
    lines = _lines(text)
    first = next(lines, None)
    if first is None:
        reason = "the file is cut within its header" if text.is_cut else "the file is empty"
        raise TraceError(Place(text.path, 1, 0), reason, TRACE_AGAIN)
    try:
        header = header_of(first.text, first.place)
    except TraceError:
        if first.has_end or not first.text.startswith(b"{"):
            raise
        raise TraceError(first.place, "the file is cut within its header", TRACE_AGAIN) from None
    trailer: Optional[dict[str, Any]] = None
    cut: Optional[Place] = None
    totals, tables, batch = Totals(), [], []
    last = first
    for line in lines:
        if trailer is not None:
            remedy = f"keep the text before this byte (`head -c {line.place.offset}`), or give each trace by itself"
            raise TraceError(line.place, "the file continues after its trailer", remedy)
        if line.has_end and line.text.startswith(_RECORD):
            value = _TIMESLICE
        else:
            try:
                value = object_of(line.text, line.place)
            except TraceError:
                if line.has_end:
                    raise
                cut = line.place
                break
        kind = value.get("type")
        if kind == "timeslice":
            batch.append(line)
            if len(batch) == _BATCH:
                tables.append(_records(batch))
                batch = []
        elif kind == "trailer":
            trailer = trailer_of(value, line.place)
        elif kind == "header":
            raise TraceError(line.place, "a second header", "give each trace by itself")
        else:
            totals.add(value, line.place)
        last = line
    records = pa.concat_tables([KEYS.empty_table(), *tables, _records(batch)])
    timeslices = _with_wall_time(records, header)
    warnings = checks(trailer, timeslices.num_rows, cut or last.end)
    sockets, threads = totals.tables()
    return Trace((text.path,), "jsonl", header, trailer, timeslices, sockets, threads, warnings)


def _lines(text: Text) -> Iterator[_Line]:
    rest, number, offset = b"", 1, 0
    for piece in text.pieces():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield _Line(Place(text.path, number, offset), line, True)
            number, offset = number + 1, offset + len(line) + 1
        if len(rest) > _LONGEST:
            reason = f"a line of more than {_LONGEST} bytes"
            raise TraceError(Place(text.path, number, offset), reason, NOT_A_TRACE if number == 1 else COPY_AGAIN)
    if rest:
        yield _Line(Place(text.path, number, offset), rest, False)


def _records(lines: list[_Line]) -> pa.Table:
    """The table of these timeslices: by Arrow's parser, and where that fails line by line, to name the bad line."""
    if not lines:
        return KEYS.empty_table()
    block = b"\n".join(line.text for line in lines)
    options = pyarrow.json.ParseOptions(explicit_schema=_NULLABLE, unexpected_field_behavior="ignore")
    try:
        # Arrow does not check the encoding.
        block.decode()
        table = conform(pyarrow.json.read_json(io.BytesIO(block), parse_options=options), KEYS)
        # Arrow reads two objects on one line, and none of an empty line. The format is unsigned.
        if table.num_rows == len(lines) and pc.min(pc.min_element_wise(*_integers(table))).as_py() >= 0:
            return table
    except (ValueError, pa.ArrowException):
        pass
    rows = []
    for line in lines:
        try:
            rows.append(values_of(object_of(line.text, line.place), KEYS))
        except TraceError:
            raise
        except ValueError as error:
            raise TraceError(line.place, str(error)) from None
    return table_of(rows, KEYS)


def _integers(table: pa.Table) -> list[pa.ChunkedArray]:
    return [column for column in table.columns if pa.types.is_integer(column.type)]


def _with_wall_time(records: pa.Table, header: dict[str, Any]) -> pa.Table:
    """Adds the columns that JSON Lines have only once, in the header."""
    shift = header["start_realtime_ns"] - header["start_monotonic_ns"]
    wall_ns = pc.add(records["activated_ns"], pa.scalar(shift, pa.int64()))
    wall_us = pc.divide(wall_ns, pa.scalar(1000, pa.int64())).cast(TIMESLICES.field("activated_time").type)
    hosts = pa.repeat(pa.scalar(header["hostname"]), records.num_rows)
    return pa.Table.from_arrays([hosts, wall_us, wall_ns, *records.columns], schema=TIMESLICES)


def object_of(line: bytes, place: Place) -> dict[str, Any]:
    """The object in a line."""
    try:
        text = line.decode()
        value = json.loads(text)
    except json.JSONDecodeError as error:
        at = place._replace(offset=(place.offset or 0) + len(text[: error.pos].encode()))
        raise TraceError(at, f"not JSON: {error.msg}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise TraceError(place, f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise TraceError(place, "not an object")
    return value


def header_of(line: bytes, place: Place) -> dict[str, Any]:
    """The header in a line."""
    try:
        header = object_of(line, place)
    except TraceError as error:
        raise TraceError(place, error.reason, NOT_A_TRACE) from None
    if header.get("type") != "header" or header.get("format") != FORMAT:
        raise TraceError(place, f"no header of format {FORMAT}", NOT_A_TRACE)
    version = header.get("format_version")
    if version != VERSION:
        writer = header.get("tcpmon_version", "that version")
        remedy = f"use the tcpmon_trace of tcpmon {writer}, which wrote the file"
        raise TraceError(place, f"format version {version}, and this package reads version {VERSION}", remedy)
    for key, kind in (("hostname", pa.string()), ("start_monotonic_ns", pa.int64()), ("start_realtime_ns", pa.int64())):
        if not fits(header.get(key), kind):
            raise TraceError(place, f"the header has no valid {key}")
    return header


def trailer_of(line: dict[str, Any], place: Place) -> dict[str, Any]:
    """The trailer, which a line has."""
    for key, kind in (("records", int), ("lost", dict), ("complete", bool)):
        if not isinstance(line.get(key), kind):
            raise TraceError(place, f"the trailer has no valid {key}")
    if not all(fits(count, pa.int64()) for count in line["lost"].values()):
        raise TraceError(place, "the trailer has no valid lost")
    return line


class Totals:
    """The totals of sockets and threads."""

    def __init__(self) -> None:
        self._rows: dict[str, list[list[Any]]] = {"socket": [], "thread": []}

    def add(self, line: dict[str, Any], place: Place) -> None:
        """Adds a line; one of an unknown type is skipped, as the format demands."""
        kind = line.get("type")
        if not isinstance(kind, str):
            raise TraceError(place, "there is no key type")
        try:
            if kind in self._rows:
                self._rows[kind].append(values_of(line, SOCKETS if kind == "socket" else THREADS))
        except ValueError as error:
            raise TraceError(place, str(error)) from None

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """Those of sockets, and those of threads."""
        return table_of(self._rows["socket"], SOCKETS), table_of(self._rows["thread"], THREADS)


def checks(trailer: Optional[dict[str, Any]], records: int, end: Place) -> tuple[TraceWarning, ...]:
    """What a missing or contradicted trailer says of a file that was read up to `end`."""
    if trailer is None:
        reason = f"the file has no trailer: it was cut, or is still being written; {records} records were read"
        return (TraceWarning("cut", end, f"{reason}; wait until the trace has ended, or {COPY_AGAIN}"),)
    if trailer["records"] != records:
        reason = f"the trailer tells of {trailer['records']} records, and the file has {records}"
        return (TraceWarning("count", end, f"{reason}: it was changed after tcpmon wrote it; {COPY_AGAIN}"),)
    return ()
