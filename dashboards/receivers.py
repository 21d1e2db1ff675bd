"""The receivers dashboard: which receivers are limited, by what, and what to look at; then the details of each."""

from panels import Column, Dashboard, Panel, Query, Row, Stat, Steps, Table, Variable, top_quantile

KEYS = ("instance", "process", "service")
GROUP = ", ".join(KEYS)
LEGEND = "{{instance}} {{process}} {{service}}"

LIMITED = "tcpmon_receive_limited_seconds_total"
NOT_UPSTREAM = ',cause!="upstream"'
TOP = 10


def rate(family: str, labels: str = GROUP, more: str = "") -> str:
    return f"sum by ({labels}) (rate({family}{{@{more}}}[@]))"


def gauge(family: str, more: str = "") -> str:
    return f"sum by ({GROUP}) ({family}{{@{more}}})"


# Connections that were limited on this side, on average, per group.
LIMITED_CONNECTIONS = rate(LIMITED, GROUP, NOT_UPSTREAM)
# The part of the time of a group's sockets.
SHARE = f"clamp_max({LIMITED_CONNECTIONS} / ({rate('tcpmon_socket_seconds_total')} > 0), 1)"
# Groups that count as limited: a tenth of a connection, however many idle ones are beside it (their time is all
# upstream), but not less than 1 in 1,000: a busy server always has some that wait a little.
IS_LIMITED = f"{LIMITED_CONNECTIONS} > 0.1 > 1e-3 * {rate('tcpmon_socket_seconds_total')}"
# Groups with data that stay unread, and nothing is read; a few bytes of a client that waits for more are normal.
STUCK = (
    f'sum by ({GROUP}) ((min_over_time(tcpmon_receive_queue_bytes{{@,service=~"local:.+"}}[@]) > 0'
    " or min_over_time(tcpmon_receive_queue_bytes{@}[@]) > 16384)"
    " and rate(tcpmon_receive_read_bytes_total{@}[@]) == 0)"
)
# An hour means an hour or more: while almost nothing is read, the figure is no longer one of a wait.
MOST_WAIT = 3600
ANY_LIMITED = f"{LIMITED_CONNECTIONS} > 0.01"
CAUSE = f"(topk by ({GROUP}) (1, {rate(LIMITED, f'{GROUP}, cause', NOT_UPSTREAM)} > 0) and on ({GROUP}) {ANY_LIMITED})"
# Readers that get no CPU although their data arrive in time, as TcpmonReaderStarved has it.
RUN_QUEUE = rate("tcpmon_reader_run_queue_seconds_total")
ON_CPU = rate("tcpmon_reader_cpu_seconds_total")
STARVED = f"({RUN_QUEUE} > 0.1 > 0.5 * {ON_CPU} and {rate('tcpmon_receive_bytes_total')} > 0)"
# What is stuck comes first, then what is limited most, then what is late.
RANK = f"({LIMITED_CONNECTIONS} + 1e6 * ({STUCK} > bool 0) or {ANY_LIMITED} or 1e-3 * {STARVED})"
WORST = f"topk({TOP}, {RANK})"


def of_the_worst(expr: str) -> str:
    return f"({expr}) and on ({GROUP}) {WORST}"


def groups(title: str, description: str, unit: str, expr: str, more: str = "") -> Panel:
    """The groups that are highest now; `more` of a legend, if a group has several series."""
    return Panel(title, description, unit, (Query(expr, LEGEND + more),), top=TOP)


# How a verdict is shown, and what to look at.
VERDICTS = (
    ("stuck", "red", "Does the process hang? cat /proc/PID/stack, strace. Runbook TcpmonReaderStalled"),
    ("application", "orange", "What it waits for: tcpmon trace --pid, strace. Runbook TcpmonLimitedByApplication"),
    ("computes", "orange", "Its code: perf record -p PID; more threads while CPUs are idle. Runbook TcpmonLimitedByApplication"),
    ("scheduler", "orange", "CPU: priority, cpuset, quota. Runbook TcpmonLimitedByScheduler"),
    ("window", "orange", "tcp_rmem, SO_RCVBUF for the path. Runbook TcpmonLimitedByWindow"),
    ("memory", "orange", "tcp_mem, the control group's limit. Runbook TcpmonLimitedByMemory"),
    ("starved", "orange", "Its threads wait for a CPU: priority, cpuset, quota. Runbook TcpmonReaderStarved"),
)


VERDICT = (
    f'label_replace({STUCK}, "cause", "stuck", "", "") or on ({GROUP}) {CAUSE}'
    f' or on ({GROUP}) label_replace({STARVED}, "cause", "starved", "", "")'
)
# Readers that limit their connections because they compute.
BY_APPLICATION = rate(LIMITED, f"{GROUP}, cause", ',cause="application"')
COMPUTES = (
    f"({CAUSE} and on ({GROUP}, cause) {BY_APPLICATION}"
    f" and on ({GROUP}) {ON_CPU} > 0.5 * {LIMITED_CONNECTIONS} unless on ({GROUP}) {STUCK})"
)
LOOK = (
    f'label_replace({COMPUTES}, "look", "computes", "", "")'
    f' or on ({GROUP}) label_replace({VERDICT}, "look", "$1", "cause", "(.*)")'
)

DETAILS = (
    "/d/tcpmon-receivers?var-instance=${__data.fields.Instance}&var-process=${__data.fields.Process}"
    "&var-service=${__data.fields.Service}&${__url_time_range}"
)
HOST = "/d/tcpmon-host?var-instance=${__data.fields.Instance}&${__url_time_range}"

ANSWER = Row(
    "What limits them now",
    (
        Stat(
            "Stuck receivers",
            "Processes and services with data that stays unread while nothing is read. Runbook TcpmonReaderStalled.",
            "short",
            (Query(f"count({STUCK}) or vector(0)", "stuck"),),
            Steps(1, 1),
            empty="0",
        ),
        Stat(
            "Limited receivers",
            "Processes and services that limit a tenth of a connection or more, on average. 0: the senders or the path "
            "are the limit.",
            "short",
            (Query(f"count({IS_LIMITED}) or vector(0)", "limited"),),
            Steps(1),
            empty="0",
        ),
        Stat(
            "Limited connections, by cause",
            "How many connections this side limits, on average, by what: their reader (application), its wait for a CPU "
            "(scheduler), a window too small for the path (window), or memory.",
            "short",
            (Query(rate(LIMITED, "cause", NOT_UPSTREAM), "{{cause}}"),),
            Steps(0.1, 1),
            empty="0",
            width=12,
        ),
        Table(
            "The ten worst receivers",
            "First the stuck ones, then those with the most limited connections, on average, then readers that wait for "
            "a CPU (starved). Limited by: the cause that limited them longest. Share: part of the time of its sockets, "
            "idle ones included. No value: no connection is limited. Mean wait: of a byte, from its arrival to its "
            "read; no value if nothing is read. Click on a row for its details.",
            KEYS,
            (
                Column(
                    "Limited by",
                    of_the_worst(VERDICT),
                    label="cause",
                    texts=tuple((cause, cause, color) for cause, color, _ in VERDICTS),
                ),
                Column("Limited conns", of_the_worst(f"{LIMITED_CONNECTIONS} > 0"), steps=Steps(0.1, 0.5)),
                Column("Share", of_the_worst(f"{SHARE} > 0"), "percentunit", width=80),
                Column("Received/s", of_the_worst(rate("tcpmon_receive_bytes_total")), "Bps"),
                Column("Unread", of_the_worst(gauge("tcpmon_receive_queue_bytes")), "bytes"),
                Column(
                    "Mean wait",
                    of_the_worst(
                        f"clamp_max({rate('tcpmon_receive_queue_byte_seconds_total')}"
                        f" / ({rate('tcpmon_receive_read_bytes_total')} > 0), {MOST_WAIT})"
                    ),
                    "s",
                    steps=Steps(0.1, 1),
                    texts=((f"{MOST_WAIT}", "1 hour or more", "red"),),
                    width=120,
                ),
                Column(
                    "What to look at",
                    of_the_worst(LOOK),
                    label="look",
                    texts=tuple((cause, text, "text") for cause, _, text in VERDICTS),
                    width=None,
                ),
                Column("Rank", WORST),
            ),
            links=(("Details", DETAILS), ("Host", HOST)),
        ),
    ),
)

OVER_TIME = Row(
    "What limits them over time",
    (
        Panel(
            "Limited connections",
            "How many connections this side limits, on average, by cause. Near 0: the senders or the path are the limit.",
            "short",
            (Query(rate(LIMITED, "cause", NOT_UPSTREAM), "{{cause}}"),),
        ),
        groups(
            "Limited most",
            "The groups with the most limited connections now, and by what.",
            "short",
            rate(LIMITED, f"{GROUP}, cause", NOT_UPSTREAM),
            ": {{cause}}",
        ),
        groups(
            "Mean wait of a byte, by reason",
            "How long a byte waits in the queue: for the reader to get a CPU (scheduler), or for anything else "
            "(application). Little's law: mean queue over throughput. An hour means an hour or more. A reader that is "
            "stuck has no value here: see the table.",
            "s",
            f"clamp_max({rate('tcpmon_receive_wait_byte_seconds_total', f'{GROUP}, reason')} / ignoring (reason) "
            f"group_left () ({rate('tcpmon_receive_read_bytes_total')} > 0), {MOST_WAIT})",
            ": {{reason}}",
        ),
        groups(
            "Mean queue",
            "Bytes that waited to be read, averaged over time (the rate of the exact time integral).",
            "bytes",
            rate("tcpmon_receive_queue_byte_seconds_total"),
        ),
    ),
)

THROUGHPUT = Row(
    "Throughput",
    (
        groups(
            "Received",
            "New in-order data that TCP accepted, bytes per second.",
            "Bps",
            rate("tcpmon_receive_bytes_total"),
        ),
        groups(
            "Read",
            "Data that the application drained, bytes per second. Below what is received, the queue grows.",
            "Bps",
            rate("tcpmon_receive_read_bytes_total"),
        ),
        groups(
            "Segment size",
            "Bytes per data segment, as GRO merged them. Near one packet at high speed: GRO is off or does not help, "
            "and each packet costs CPU.",
            "bytes",
            f"{rate('tcpmon_receive_bytes_total')} / ({rate('tcpmon_receive_segments_total')} > 0)",
        ),
        groups("Sockets", "TCP sockets of the group.", "short", gauge("tcpmon_sockets")),
    ),
)

BUFFER = Row(
    "Buffer and window",
    (
        Panel(
            "Buffer fill when a segment arrives, p99",
            "Part of the receive buffer in use when a data segment arrived: 1 in 100 found more. Values above 100 % are "
            "shown as 100 %.",
            "percentunit",
            (Query(top_quantile(0.99, "tcpmon_receive_buffer_fill_ratio", GROUP, TOP), LEGEND),),
            steps=Steps(0.8, 0.95),
        ),
        Panel(
            "Buffer fill when a segment arrives, median",
            "The median of the same. High here, too: the buffer is full most of the time. Low here: bursts.",
            "percentunit",
            (Query(top_quantile(0.5, "tcpmon_receive_buffer_fill_ratio", GROUP, TOP), LEGEND),),
            steps=Steps(0.8, 0.95),
        ),
        groups(
            "Buffer used",
            "Memory charged to the receive buffers (sk_rmem_alloc), of all sockets of the group. At the limit: runbook "
            "TcpmonLimitedByApplication.",
            "bytes",
            gauge("tcpmon_receive_buffer_used_bytes"),
        ),
        groups(
            "Buffer limit",
            "What the receive buffers may take (sk_rcvbuf), of all sockets of the group.",
            "bytes",
            gauge("tcpmon_receive_buffer_limit_bytes"),
        ),
        groups(
            "Advertised window per socket",
            "What a sender may have in flight. Throughput of one connection cannot exceed it per round trip: 1 MB at "
            "100 ms is 10 MB/s.",
            "bytes",
            f"{gauge('tcpmon_receive_window_bytes')} / ({gauge('tcpmon_sockets')} > 0)",
        ),
        groups(
            "Buffer growths",
            "Times per second that autotuning raised a receive buffer. None at a small limit with steady traffic: the "
            "buffer was fixed by SO_RCVBUF, or cannot grow. Runbook TcpmonReceiveBufferStuckSmall.",
            "cps",
            rate("tcpmon_receive_buffer_growths_total"),
        ),
        groups(
            "Out of order",
            "Data behind a gap: loss or reordering on the path.",
            "bytes",
            gauge("tcpmon_receive_out_of_order_bytes"),
        ),
        groups(
            "Data lost in drops, by reason",
            "Received segments per second that the kernel dropped and that may have had new data, by the kernel's reason. "
            "proto_mem: buffers or TCP's memory are full. Runbook TcpmonReceiveDrops.",
            "pps",
            f'sum by ({GROUP}, reason) (rate(tcpmon_receive_drops_total{{@,effect="lost"}}[@]))',
            " {{reason}}",
        ),
    ),
)

TIMESLICES = Row(
    "Time slices of the readers",
    (
        groups(
            "Time on the CPU",
            "CPUs that the readers of the group use. At 1, a reader with one thread is itself the limit.",
            "short",
            rate("tcpmon_reader_cpu_seconds_total"),
        ),
        groups(
            "Waiting for a CPU",
            "Readers of the group that were runnable but not running, on average. If this is as much as the time on the "
            "CPU, or more, the reader is starved. Runbook TcpmonReaderStarved.",
            "short",
            rate("tcpmon_reader_run_queue_seconds_total"),
        ),
        Panel(
            "Run-queue wait, p99",
            "Time that a reader was runnable but not running, per activation. If it is milliseconds, the reader competes "
            "for its CPU.",
            "s",
            (Query(top_quantile(0.99, "tcpmon_reader_run_queue_wait_seconds", GROUP, TOP), LEGEND),),
        ),
        groups(
            "Ends of time slices",
            "How readers leave the CPU, per second. blocked: they went to sleep, as a reader that keeps up does. "
            "preempted: others wanted the CPU.",
            "cps",
            rate("tcpmon_timeslices_total", f"{GROUP}, end"),
            " {{end}}",
        ),
        Panel(
            "Fill at activation and deactivation",
            "Median fill of the buffer when the reader got the CPU and when it lost it. High at both: it does not drain "
            "what it finds (slow application). High at activation only: it drains, but comes late (scheduler, sleep).",
            "percentunit",
            (
                Query(
                    top_quantile(0.5, "tcpmon_timeslice_fill_ratio", f"{GROUP}, edge", TOP),
                    f"{LEGEND} {{{{edge}}}}",
                ),
            ),
        ),
        Panel(
            "Length of a time slice, p99",
            "Time on the CPU per time slice. Long ones end by preemption; very short ones mean a wake-up for little data.",
            "s",
            (Query(top_quantile(0.99, "tcpmon_timeslice_seconds", GROUP, TOP), LEGEND),),
        ),
        groups(
            "Arrived on and off the CPU",
            "Bytes per second that arrived while the reader was on its CPU and while it was not. Mostly off: it sleeps or "
            "waits between reads, and the buffer must hold what comes meanwhile.",
            "Bps",
            rate("tcpmon_timeslice_arrived_bytes_total", f"{GROUP}, context"),
            " {{context}}",
        ),
        groups(
            "Drained in time slices",
            "Bytes per second that readers drained during their time slices.",
            "Bps",
            rate("tcpmon_timeslice_read_bytes_total"),
        ),
    ),
)

RECEIVERS = Dashboard(
    uid="tcpmon-receivers",
    title="tcpmon: receivers",
    description="Which receivers are limited, by what, and what to look at. Choose a process for its details. Graphs "
    "show the ten groups that are highest now.",
    matchers='instance=~"$instance",process=~"$process",service=~"$service"',
    variables=(
        Variable("instance", "label_values(tcpmon_build_info, instance)", all_values=False),
        Variable("process", 'label_values(tcpmon_sockets{instance=~"$instance"}, process)', all_values=True),
        Variable(
            "service",
            'label_values(tcpmon_sockets{instance=~"$instance",process=~"$process"}, service)',
            all_values=True,
        ),
    ),
    rows=(ANSWER, OVER_TIME, THROUGHPUT, BUFFER, TIMESLICES),
)
