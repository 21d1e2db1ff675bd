"""Reads CSV, which has the timeslices only."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from .errors import COPY_AGAIN, TRACE_AGAIN, Place, TraceError, TraceWarning
from .schema import SOCKETS, THREADS, TIMESLICES, conform
from .text import Text
from .trace import Trace


def read_csv(text: Text) -> Trace:
    """Reads a trace up to its end or its cut. A cut at the end of a row leaves no mark in CSV."""
    data = b"".join(text.pieces())
    whole = data[: data.rfind(b"\n") + 1]
    # A line end between quotes, in the name of a thread, ends no row.
    while whole.count(b'"') % 2:
        whole = whole[: whole.rfind(b"\n", 0, len(whole) - 1) + 1]
    if not whole:
        raise TraceError(Place(text.path, 1, 0), "the file is cut within its first row", TRACE_AGAIN)
    types = {field.name: field.type for field in TIMESLICES}
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(whole),
            # Without threads, an error names its row.
            read_options=pyarrow.csv.ReadOptions(use_threads=False),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types, null_values=[], true_values=["true"], false_values=["false"]
            ),
        )
        timeslices = conform(table, TIMESLICES)
    except (ValueError, pa.ArrowException) as error:
        raise TraceError(Place(text.path), f"not the CSV of a trace: {error}") from error
    # CSV shows a cookie as `ss -e` does, so that no program takes it for a number.
    cookies = pc.replace_substring_regex(timeslices["cookie"], pattern="^sk:", replacement="")
    timeslices = timeslices.set_column(TIMESLICES.get_field_index("cookie"), TIMESLICES.field("cookie"), cookies)
    warnings: tuple[TraceWarning, ...] = ()
    if text.is_cut or len(whole) < len(data):
        reason = f"the file is cut within a row; {timeslices.num_rows} records were read; {COPY_AGAIN}"
        warnings = (TraceWarning("cut", Place(text.path, offset=len(whole)), reason),)
    hosts = pc.unique(timeslices["hostname"]).to_pylist()
    header = {"hostname": hosts[0]} if len(hosts) == 1 else {}
    return Trace((text.path,), "csv", header, None, timeslices, SOCKETS.empty_table(), THREADS.empty_table(), warnings)
