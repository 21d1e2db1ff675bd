"""What can be wrong with a trace file, and where."""

from __future__ import annotations

from typing import NamedTuple, Optional

COPY_AGAIN = "copy the file again from where it was written"
TRACE_AGAIN = f"{COPY_AGAIN}, or trace again"


class Place(NamedTuple):
    """A place in a trace file."""

    path: str
    line: Optional[int] = None
    offset: Optional[int] = None

    def __str__(self) -> str:
        line = "" if self.line is None else f": line {self.line}"
        offset = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.path}{line}{offset}"


class TraceError(ValueError):
    """A file that cannot be read as a trace.

    Attributes:
        path: the file.
        line: the line, from 1; None in a Parquet or CSV file.
        offset: the byte in the text of the file (decompressed, if it is compressed); None if unknown.
        reason: what is wrong.
        remedy: what to do about it.
    """

    def __init__(self, place: Place, reason: str, remedy: str = COPY_AGAIN) -> None:
        super().__init__(f"{place}: {reason}; {remedy}")
        self.path, self.line, self.offset = place
        self.reason, self.remedy = reason, remedy


class TraceWarning(UserWarning):
    """A trace that is not whole. `Trace.warnings` keeps it, and `warnings.warn` shows it.

    Attributes:
        kind: `cut` (the file ends before the trace does), `count` (the trailer tells of another number of records
            than the file has), or `continued` (the trace continues in a file that was not given).
        path, line, offset: as in `TraceError`.
    """

    def __init__(self, kind: str, place: Place, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.kind = kind
        self.path, self.line, self.offset = place


class ReportError(RuntimeError):
    """`tcpmon report` could not be run, or refused the files."""
