"""A trace in memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import pyarrow as pa

from .errors import ReportError, TraceWarning

if TYPE_CHECKING:
    import pandas
    import polars


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """A trace, or the files of a rotated trace as one.

    Times ending in `_ns` are nanoseconds of CLOCK_MONOTONIC, except `activated_realtime_ns`, which counts from
    1970-01-01 UTC. Sizes ending in `_bytes` are bytes, and `_byte_us` is bytes x microseconds.

    Attributes:
        paths: the files, in the order of their start.
        format: `jsonl`, `csv` or `parquet`; `jsonl` also if compressed. Of the first file.
        header: the header as the file has it. CSV has no header: then only `hostname`, or nothing.
        trailer: the trailer as the file has it; None if the file has none (a cut file, any CSV file). Of several files:
            that of the last one, with `records` and `lost` summed and `complete` of all; None if one of them has none.
        timeslices: one row per timeslice of a thread and socket, in the order of the file; columns of `TIMESLICES`.
            Do not add up `on_cpu_ns`, `wait_ns` or `sleep_ns` over the sockets of a thread: a thread that reads three
            sockets in one timeslice has three rows with the same times.
        sockets: one row per socket, its totals; columns of `SOCKETS`. Empty for CSV, a cut file, or a flight recorder.
        threads: one row per thread, its totals; columns of `THREADS`. Empty as `sockets` is.
        warnings: why the trace is not whole; empty if nothing is known against it.
    """

    paths: tuple[str, ...]
    format: str
    header: dict[str, Any]
    trailer: Optional[dict[str, Any]]
    timeslices: pa.Table
    sockets: pa.Table
    threads: pa.Table
    warnings: tuple[TraceWarning, ...]

    @property
    def is_complete(self) -> Optional[bool]:
        """Whether the trace has all that was asked for: nothing was lost or cut. None for CSV, which cannot tell."""
        if self.warnings:
            return False
        return None if self.trailer is None else bool(self.trailer["complete"])

    @property
    def lost(self) -> Optional[dict[str, int]]:
        """How many records or reads were lost, by cause, without causes of 0; None if there is no trailer to tell."""
        if self.trailer is None:
            return None
        return {cause: count for cause, count in self.trailer["lost"].items() if count}

    def to_pandas(self) -> pandas.DataFrame:
        """The timeslices as a DataFrame of (rows of `timeslices`, columns of `TIMESLICES`); needs pandas."""
        return self.timeslices.to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """The timeslices as a polars DataFrame of the same shape; needs polars."""
        import polars

        frame = polars.from_arrow(self.timeslices)
        assert isinstance(frame, polars.DataFrame)
        return frame

    def verdict(self, limit: Optional[int] = None, timeout: Optional[float] = None) -> dict[str, Any]:
        """What `tcpmon report --format json` says of the files: what limited the transfer, and how sure that is.

        docs/report.md says how to read it. `["verdict"]` is that of the trace, with `cause`, `share_percent`,
        `margin_percent` and `sentence`, and `["sockets"]` has one for each socket. Keys name their unit.

        Args:
            limit: the largest number of sockets in the answer; tcpmon's default if None.
            timeout: seconds to wait for tcpmon.

        Raises:
            ReportError: tcpmon is neither named by TCPMON_BIN nor found on PATH, or it refused the files.
        """
        program = os.environ.get("TCPMON_BIN") or shutil.which("tcpmon")
        if program is None:
            raise ReportError("tcpmon is not on PATH; install it, or name its binary in TCPMON_BIN")
        command = [program, "report", "--format", "json"]
        command += ["--merge"] if len(self.paths) > 1 else []
        command += [] if limit is None else ["--limit", str(limit)]
        # A path that begins with `-` would be an option.
        command += [os.path.abspath(path) for path in self.paths]
        try:
            done = subprocess.run(command, capture_output=True, timeout=timeout, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ReportError(f"cannot run {program}: {error}; name the binary of tcpmon in TCPMON_BIN") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise ReportError(f"{' '.join(command)} exits with {done.returncode}: {said}")
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError as error:
            raise ReportError(f"{program} report prints no JSON: {error}; name tcpmon in TCPMON_BIN") from error
        return answer

    def __repr__(self) -> str:
        more = f" and {len(self.paths) - 1} more files" if len(self.paths) > 1 else ""
        tables = ("timeslices", "sockets", "threads")
        counts = ", ".join(f"{getattr(self, name).num_rows} {name}" for name in tables)
        state = {None: "completeness unknown", True: "complete", False: "incomplete"}[self.is_complete]
        return f"<Trace {self.paths[0]}{more}: {counts}, {state}>"
