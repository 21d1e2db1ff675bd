"""The columns of a trace, as docs/trace-format.md lists them: the same for each file format.

As in Parquet files of tcpmon, integers are signed: 32 bits for ports and `family`, 64 bits otherwise. No column has
nulls. The metadata of a field has its unit: `TIMESLICES.field("on_cpu_ns").metadata == {b"unit": b"ns"}`.
"""

from __future__ import annotations

from typing import Any, Iterable

import pyarrow as pa

_STRINGS = {"hostname", "comm", "cookie", "local_address", "remote_address", "end", "preempted_by"}
_BOOLEANS = {"partial", "handed_over", "closed", "exited", "timeslices_complete"}
_SMALL = {"family", "local_port", "remote_port"}
# The longest unit first, because `_us` also ends `_byte_us`.
_UNITS = ("byte_us", "bytes", "ns", "us")

_CONNECTION = "cookie family local_address local_port remote_address remote_port netns"
_QUEUE = "queued_bytes rmem_bytes rcvbuf_bytes backlog_bytes window_bytes"
_CAUSES = (
    "limited_upstream_ns limited_application_ns limited_scheduler_ns limited_window_ns limited_memory_ns"
    " waited_application_byte_us waited_scheduler_byte_us"
)
_EDGES = " ".join(f"{edge}_{key}" for edge in ("activation", "deactivation") for key in _QUEUE.split())


def _type(name: str) -> pa.DataType:
    if name == "activated_time":
        return pa.timestamp("us", "UTC")
    if name in _STRINGS:
        return pa.string()
    if name in _BOOLEANS:
        return pa.bool_()
    return pa.int32() if name in _SMALL else pa.int64()


def _schema(names: str) -> pa.Schema:
    def field(name: str) -> pa.Field:
        unit = next((unit for unit in _UNITS if name.endswith(f"_{unit}")), None)
        return pa.field(name, _type(name), nullable=False, metadata={"unit": unit} if unit else None)

    return pa.schema([field(name) for name in names.split()])


#: The keys of a timeslice in JSON Lines, without `type`.
KEYS = _schema(
    f"activated_ns deactivated_ns cpu tid tgid comm {_CONNECTION} end partial handed_over closed sleep_ns wait_ns"
    f" on_cpu_ns arrived_off_cpu_bytes arrived_on_cpu_bytes read_bytes {_EDGES} rcv_rtt_us rcv_ssthresh_bytes"
    f" window_clamp_bytes {_CAUSES} preempted_by_tid preempted_by"
)

#: A row for each timeslice of a thread and socket: host and wall time, then `KEYS`.
TIMESLICES = pa.schema([*_schema("hostname activated_time activated_realtime_ns"), *KEYS])

#: A row for each socket: its totals over the trace.
SOCKETS = _schema(
    f"at_ns {_CONNECTION} tid tgid comm closed received_bytes read_bytes timeslices_read_bytes zero_window_ns"
    f" {_CAUSES} timeslices_complete"
)

#: A row for each thread: its totals over the trace.
THREADS = _schema("begun_ns at_ns tid tgid comm exited on_cpu_ns wait_ns preempted blocked read_bytes")

#: Columns that the first files of format version 1 lack, and what tcpmon reads in their place.
DEFAULTS: dict[str, Any] = {**dict.fromkeys(_CAUSES.split(), 0), "preempted_by_tid": 0, "preempted_by": ""}


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema` in its order and types; unknown columns are dropped, as the format demands.

    Raises:
        ValueError: a column is missing, has nulls, or has a value that its type cannot hold.
    """
    columns = []
    for field in schema:
        index, default = table.schema.get_field_index(field.name), DEFAULTS.get(field.name)
        if index >= 0:
            column = table.column(index).cast(field.type)
            column = column if default is None else column.fill_null(default)
        elif default is not None:
            column = pa.repeat(pa.scalar(default, field.type), table.num_rows)
        else:
            raise ValueError(f"there is no column {field.name}")
        if column.null_count:
            raise ValueError(f"column {field.name} has {column.null_count} nulls")
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def values_of(line: dict[str, Any], schema: pa.Schema) -> list[Any]:
    """The values of a parsed line in the order of `schema`.

    Raises:
        ValueError: a key is missing, or its value is not of its type.
    """
    values = []
    for field in schema:
        value = line.get(field.name)
        value = DEFAULTS.get(field.name) if value is None else value
        if value is None:
            raise ValueError(f"there is no key {field.name}")
        if not fits(value, field.type):
            raise ValueError(f"key {field.name} is {value!r}, which does not fit {field.type}")
        values.append(value)
    return values


def table_of(rows: Iterable[list[Any]], schema: pa.Schema) -> pa.Table:
    """A table of rows that `values_of` returned."""
    columns = list(zip(*rows)) or [()] * len(schema)
    return pa.Table.from_arrays([pa.array(column, field.type) for column, field in zip(columns, schema)], schema=schema)


def fits(value: Any, kind: pa.DataType) -> bool:
    """Whether a value from JSON is of this type; the format has no negative numbers."""
    if pa.types.is_string(kind):
        # JSON can spell half of a surrogate pair, which is not text.
        return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    return type(value) is int and 0 <= value < 1 << (kind.bit_width - 1)
