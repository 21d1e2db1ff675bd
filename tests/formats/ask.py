"""What programs of the field find in a trace.

ask.py extremes PROGRAM FILE    rows, and the smallest and largest value of each column, as JSON
ask.py query PROGRAM VIEW=PATTERN... < SQL    the rows of a query over views of Parquet files, as JSON

PROGRAM is duckdb, pandas (not for queries) or spark.
"""

import datetime
import json
import sys


def plain(value):
    """A value as JSON has it: times as RFC 3339."""
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value.item() if hasattr(value, "item") else value


def duckdb(views):
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name, pattern in views.items():
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM '{pattern}'")
    return lambda sql: connection.execute(sql).fetchall()


def spark(views):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    for name, pattern in views.items():
        # A folder is partitioned by the names of the folders in it; Spark does not take a pattern for that.
        session.read.parquet(pattern.split("/*")[0]).createOrReplaceTempView(name)
    return lambda sql: [tuple(row) for row in session.sql(sql).collect()]


def extremes(program, file):
    if program == "pandas":
        import pandas

        frame = pandas.read_parquet(file) if file.endswith(".parquet") else pandas.read_csv(file, keep_default_na=False)
        return len(frame), {name: [plain(frame[name].min()), plain(frame[name].max())] for name in frame}
    ask = {"duckdb": duckdb, "spark": spark}[program]({"slices": file})
    names, types = zip(*(row[:2] for row in ask("DESCRIBE slices")))
    mark = "`" if program == "spark" else '"'
    columns = [f"{mark}{name}{mark}" for name in names]
    # DuckDB reads an empty field of a CSV file as no value, also where the column has texts.
    columns = [f"coalesce({name}, '')" if kind == "VARCHAR" else name for name, kind in zip(columns, types)]
    both = ", ".join(f"min({column}), max({column})" for column in columns)
    rows, *values = ask(f"SELECT count(*), {both} FROM slices")[0]
    return rows, {name: [plain(values[2 * at]), plain(values[2 * at + 1])] for at, name in enumerate(names)}


def main():
    what, program, *rest = sys.argv[1:]
    if what == "extremes":
        rows, columns = extremes(program, rest[0])
        answer = {"rows": rows, "columns": columns}
    else:
        views = dict(view.split("=", 1) for view in rest)
        answer = [list(map(plain, row)) for row in {"duckdb": duckdb, "spark": spark}[program](views)(sys.stdin.read())]
    print(json.dumps(answer))


main()
