"""Reads the traces that `tcpmon trace` writes, as Arrow tables.

    import tcpmon_trace

    trace = tcpmon_trace.read("run.parquet")
    trace.timeslices        # pyarrow.Table, one row per timeslice and socket
    trace.to_pandas()       # the same as a pandas.DataFrame
    trace.verdict()         # what `tcpmon report` says of the trace

docs/trace-format.md in tcpmon's repository describes each column.
"""

from .errors import ReportError, TraceError, TraceWarning
from .files import read, read_many
from .schema import SOCKETS, THREADS, TIMESLICES
from .trace import Trace

__all__ = [
    "SOCKETS",
    "THREADS",
    "TIMESLICES",
    "ReportError",
    "Trace",
    "TraceError",
    "TraceWarning",
    "read",
    "read_many",
]
