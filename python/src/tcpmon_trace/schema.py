"""The columns of a trace, as docs/trace-format.md lists them: the same for each file format.

As in Parquet files of tcpmon, integers are signed: 32 bits for ports and `family`, 64 bits otherwise. No column has
nulls. The metadata of a field has its unit: `TIMESLICES.field("on_cpu_ns").metadata == {b"unit": b"ns"}`.
"""

from __future__ import annotations

from typing import Any, Iterable

import pyarrow as pa


def _field(name: str, kind: pa.DataType, unit: str | None = None) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={"unit": unit} if unit else None)


# Generated from tcpmon-trace/src/fields/lines.rs by `TCPMON_BLESS=1 cargo test -p tcpmon-trace fields`; do not edit.
#: The keys of a timeslice in JSON Lines, without `type`.
KEYS = pa.schema(
    [
        _field("activated_ns", pa.int64(), "ns"),
        _field("deactivated_ns", pa.int64(), "ns"),
        _field("cpu", pa.int64()),
        _field("tid", pa.int64()),
        _field("tgid", pa.int64()),
        _field("comm", pa.string()),
        _field("cookie", pa.string()),
        _field("family", pa.int32()),
        _field("local_address", pa.string()),
        _field("local_port", pa.int32()),
        _field("remote_address", pa.string()),
        _field("remote_port", pa.int32()),
        _field("netns", pa.int64()),
        _field("end", pa.string()),
        _field("partial", pa.bool_()),
        _field("handed_over", pa.bool_()),
        _field("closed", pa.bool_()),
        _field("sleep_ns", pa.int64(), "ns"),
        _field("wait_ns", pa.int64(), "ns"),
        _field("on_cpu_ns", pa.int64(), "ns"),
        _field("arrived_off_cpu_bytes", pa.int64(), "bytes"),
        _field("arrived_on_cpu_bytes", pa.int64(), "bytes"),
        _field("read_bytes", pa.int64(), "bytes"),
        _field("activation_queued_bytes", pa.int64(), "bytes"),
        _field("activation_rmem_bytes", pa.int64(), "bytes"),
        _field("activation_rcvbuf_bytes", pa.int64(), "bytes"),
        _field("activation_backlog_bytes", pa.int64(), "bytes"),
        _field("activation_window_bytes", pa.int64(), "bytes"),
        _field("deactivation_queued_bytes", pa.int64(), "bytes"),
        _field("deactivation_rmem_bytes", pa.int64(), "bytes"),
        _field("deactivation_rcvbuf_bytes", pa.int64(), "bytes"),
        _field("deactivation_backlog_bytes", pa.int64(), "bytes"),
        _field("deactivation_window_bytes", pa.int64(), "bytes"),
        _field("rcv_rtt_us", pa.int64(), "us"),
        _field("rcv_ssthresh_bytes", pa.int64(), "bytes"),
        _field("window_clamp_bytes", pa.int64(), "bytes"),
        _field("limited_upstream_ns", pa.int64(), "ns"),
        _field("limited_application_ns", pa.int64(), "ns"),
        _field("limited_scheduler_ns", pa.int64(), "ns"),
        _field("limited_window_ns", pa.int64(), "ns"),
        _field("limited_memory_ns", pa.int64(), "ns"),
        _field("waited_application_byte_us", pa.int64(), "byte_us"),
        _field("waited_scheduler_byte_us", pa.int64(), "byte_us"),
        _field("preempted_by_tid", pa.int64()),
        _field("preempted_by", pa.string()),
    ]
)

#: A row for each timeslice of a thread and socket: host and wall time, then `KEYS`.
TIMESLICES = pa.schema(
    [
        _field("hostname", pa.string()),
        _field("activated_time", pa.timestamp("us", "UTC")),
        _field("activated_realtime_ns", pa.int64(), "ns"),
        *KEYS,
    ]
)

#: A row for each socket: its totals over the trace.
SOCKETS = pa.schema(
    [
        _field("at_ns", pa.int64(), "ns"),
        _field("cookie", pa.string()),
        _field("family", pa.int32()),
        _field("local_address", pa.string()),
        _field("local_port", pa.int32()),
        _field("remote_address", pa.string()),
        _field("remote_port", pa.int32()),
        _field("netns", pa.int64()),
        _field("tid", pa.int64()),
        _field("tgid", pa.int64()),
        _field("comm", pa.string()),
        _field("closed", pa.bool_()),
        _field("received_bytes", pa.int64(), "bytes"),
        _field("read_bytes", pa.int64(), "bytes"),
        _field("timeslices_read_bytes", pa.int64(), "bytes"),
        _field("zero_window_ns", pa.int64(), "ns"),
        _field("limited_upstream_ns", pa.int64(), "ns"),
        _field("limited_application_ns", pa.int64(), "ns"),
        _field("limited_scheduler_ns", pa.int64(), "ns"),
        _field("limited_window_ns", pa.int64(), "ns"),
        _field("limited_memory_ns", pa.int64(), "ns"),
        _field("waited_application_byte_us", pa.int64(), "byte_us"),
        _field("waited_scheduler_byte_us", pa.int64(), "byte_us"),
        _field("timeslices_complete", pa.bool_()),
    ]
)

#: A row for each thread: its totals over the trace.
THREADS = pa.schema(
    [
        _field("begun_ns", pa.int64(), "ns"),
        _field("at_ns", pa.int64(), "ns"),
        _field("tid", pa.int64()),
        _field("tgid", pa.int64()),
        _field("comm", pa.string()),
        _field("exited", pa.bool_()),
        _field("on_cpu_ns", pa.int64(), "ns"),
        _field("wait_ns", pa.int64(), "ns"),
        _field("preempted", pa.int64()),
        _field("blocked", pa.int64()),
        _field("read_bytes", pa.int64(), "bytes"),
    ]
)

#: Columns that the first files of format version 1 lack, and what tcpmon reads in their place.
DEFAULTS: dict[str, Any] = {
    "limited_upstream_ns": 0,
    "limited_application_ns": 0,
    "limited_scheduler_ns": 0,
    "limited_window_ns": 0,
    "limited_memory_ns": 0,
    "waited_application_byte_us": 0,
    "waited_scheduler_byte_us": 0,
    "preempted_by_tid": 0,
    "preempted_by": "",
}
# End of the generated part.


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
