"""Reads Parquet, also a file that was cut."""

from __future__ import annotations

import mmap
from typing import Optional

import pyarrow as pa
import pyarrow.parquet

from .errors import TRACE_AGAIN, Place, TraceError
from .jsonl import NOT_A_TRACE, Totals, checks, header_of, object_of, trailer_of
from .schema import TIMESLICES, conform
from .trace import Trace

MAGIC = b"PAR1"

_UNREADABLE = (OSError, ValueError, pa.ArrowException)


def read_parquet(path: str) -> Trace:
    """Reads a trace up to its end, or up to the last footer before its cut."""
    with open(path, "rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    place = Place(path)
    parts, end = _parts(content, place)
    if not parts:
        reason = "the file has no footer: it was cut, or tcpmon was killed before it had written a row group"
        raise TraceError(place._replace(offset=end), reason, TRACE_AGAIN)
    first, last = parts[0].metadata.metadata or {}, parts[-1].metadata.metadata or {}
    if b"tcpmon.header" not in first:
        raise TraceError(place, "a Parquet file without the key tcpmon.header", NOT_A_TRACE)
    header = header_of(first[b"tcpmon.header"], place)
    trailer = None
    if b"tcpmon.trailer" in last:
        trailer = trailer_of(object_of(last[b"tcpmon.trailer"], place), place)
    totals = Totals()
    for line in last.get(b"tcpmon.totals", b"").splitlines():
        totals.add(object_of(line, place), place)
    try:
        timeslices = pa.concat_tables([conform(part.read(), TIMESLICES) for part in parts])
    except _UNREADABLE as error:
        raise TraceError(place, f"a damaged Parquet file: {error}") from error
    sockets, threads = totals.tables()
    warnings = checks(trailer, timeslices.num_rows, place._replace(offset=end))
    return Trace((path,), "parquet", header, trailer, timeslices, sockets, threads, warnings)


def _parts(content: mmap.mmap, place: Place) -> tuple[list[pa.parquet.ParquetFile], int]:
    """The file up to each footer that counts, in order, and the byte where the last of them ends.

    The footer at the end of a whole file names all row groups. While tcpmon writes, each row group is followed by a
    footer that names this group only, and `tcpmon.previous_footer` is the byte where the footer before it ends. So a
    cut file, even if it ends with such a footer, has to be read from footer to footer.
    """
    last = len(content)
    part = _up_to(content, last)
    while part is None and last > len(MAGIC):
        last = content.rfind(MAGIC, 0, last - 1) + len(MAGIC)
        part = _up_to(content, last)
    parts: list[pa.parquet.ParquetFile] = []
    end = last
    while part is not None:
        parts.insert(0, part)
        previous = (part.metadata.metadata or {}).get(b"tcpmon.previous_footer", b"")
        # Each is before the other, whatever a damaged file says.
        end = int(previous) if previous.isdigit() and int(previous) < end else 0
        part = _up_to(content, end)
        if previous and part is None:
            raise TraceError(place._replace(offset=end), "a damaged Parquet file: there should be a footer")
    return parts, last


def _up_to(content: mmap.mmap, end: int) -> Optional[pa.parquet.ParquetFile]:
    """The file up to the footer that ends there; None if there is none."""
    try:
        return pa.parquet.ParquetFile(pa.BufferReader(pa.py_buffer(content).slice(0, end)))
    except _UNREADABLE:
        return None
