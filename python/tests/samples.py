"""Trace files for the tests, made from the trace that fuzz/corpus/parquet has.

The writers here follow tcpmon's own, and share nothing with the package. A test compares them with lines that tcpmon
wrote.
"""

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

REPOSITORY = Path(__file__).parents[2]
CORPUS = REPOSITORY / "fuzz/corpus"
PARQUET = CORPUS / "parquet/trace"

# Columns that JSON Lines have only in the header.
OF_HEADER = ("hostname", "activated_time", "activated_realtime_ns")


def table():
    """The corpus trace as pyarrow alone reads it: 12 rows."""
    return pq.read_table(PARQUET)


def rows():
    return table().to_pylist()


def _metadata(key):
    return pq.read_metadata(PARQUET).metadata[b"tcpmon." + key]


def header(**changes):
    return {**json.loads(_metadata(b"header")), **changes}


def trailer(**changes):
    return {**json.loads(_metadata(b"trailer")), **changes}


def totals():
    return [json.loads(line) for line in _metadata(b"totals").splitlines()]


def dumped(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def lines(rows=None, header=None, totals=None, trailer=None):
    """The lines of a trace; the corpus trace where nothing else is given."""
    here = globals()
    rows = here["rows"]() if rows is None else rows
    slices = ({key: value for key, value in row.items() if key not in OF_HEADER} for row in rows)
    return [
        dumped(header or here["header"]()),
        *(dumped({"type": "timeslice", **row}) for row in slices),
        *map(dumped, here["totals"]() if totals is None else totals),
        dumped(trailer or here["trailer"](records=len(rows))),
    ]


def csv_bytes(rows):
    def cell(key, value):
        if key == "cookie":
            return f"sk:{value}"
        if key == "activated_time":
            return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text

    cells = [table().schema.names, *([cell(*item) for item in row.items()] for row in rows)]
    return "".join(",".join(row) + "\n" for row in cells).encode()


def parquet_bytes(rows, header=None, totals=None, trailer=None):
    first, *_ = made = lines(rows, header, totals, trailer)
    metadata = {"tcpmon.header": first, "tcpmon.trailer": made[-1], "tcpmon.totals": b"".join(made[1 + len(rows) : -1])}
    sink = io.BytesIO()
    # tcpmon reads no other compression.
    pq.write_table(pa.Table.from_pylist(rows, table().schema.with_metadata(metadata)), sink, compression="zstd")
    return sink.getvalue()


def running_parquet_bytes(groups, links=None):
    """A file as it is while tcpmon writes: a footer of its own after each row group. Also, where each footer ends."""
    whole, ends = b"PAR1", []
    for rows in groups:
        metadata = {"tcpmon.header": lines([])[0]}
        if ends:
            metadata["tcpmon.previous_footer"] = str(ends[-1] if links is None else links)
        schema = table().schema.with_metadata(metadata)
        sink = pa.BufferOutputStream()
        writer = pq.ParquetWriter(sink, schema)
        # pyarrow has written the magic only: what was written before makes the offsets those of the whole file.
        sink.write(whole[4:])
        writer.write_table(pa.Table.from_pylist(rows, schema))
        writer.close()
        whole = sink.getvalue().to_pybytes()
        ends.append(len(whole))
    return whole, ends


def compressed(data, name):
    if name.endswith(".gz"):
        return gzip.compress(data)
    return pa.compress(data, "zstd", asbytes=True) if name.endswith(".zst") else data


FORMATS = ["run.jsonl", "run.jsonl.gz", "run.jsonl.zst", "run.csv", "run.csv.gz", "run.csv.zst", "run.parquet"]


def write(path, rows=None, **parts):
    """Writes a trace in the format of the name."""
    rows = globals()["rows"]() if rows is None else rows
    if ".csv" in path.name:
        data = csv_bytes(rows)
    elif path.name.endswith(".parquet"):
        data = parquet_bytes(rows, **parts)
    else:
        data = b"".join(lines(rows, **parts))
    path.write_bytes(compressed(data, path.name))
    return path
