"""The receivers dashboard: per process and service, whether the reader keeps up, and if not, why."""

from panels import Dashboard, Panel, Query, Row, Variable, quantile, total

GROUP = "process, service"
LEGEND = "{{process}} {{service}}"

LIMITED = "tcpmon_receive_limited_seconds_total"
NOT_UPSTREAM = ',cause!="upstream"'


def rate(family: str, labels: str = GROUP, more: str = "") -> str:
    return f"sum by ({labels}) (rate({family}{{@{more}}}[@]))"


def gauge(family: str) -> str:
    return f"sum by ({GROUP}) ({family}{{@}})"


CAUSES = Row(
    "What limits them",
    (
        Panel(
            "Connections that are limited",
            "How many connections are held up on this side, on average, by what: their reader (application), its want of "
            "a CPU (scheduler), a window too small for the path (window), or memory. Near 0: the senders or the path are "
            "the limit.",
            "short",
            (Query(rate(LIMITED, "cause", NOT_UPSTREAM), "{{cause}}"),),
        ),
        Panel(
            "Limited most",
            "The ten groups with the most connections held up, and by what. What helps: application, the reader; "
            "scheduler, priority or a core of its own; window, tcp_rmem or SO_RCVBUF; memory, tcp_mem or the control "
            "group's limit.",
            "short",
            (
                Query(
                    f"topk(10, {rate(LIMITED, f'{GROUP}, cause', NOT_UPSTREAM)})",
                    f"{LEGEND}: {{{{cause}}}}",
                ),
            ),
        ),
        Panel(
            "Mean wait of a byte, by reason",
            "The ten groups whose bytes wait longest in the queue, and for what: for the reader to get a CPU (scheduler), "
            "or for anything else (application).",
            "s",
            (
                Query(
                    f"topk(10, {rate('tcpmon_receive_wait_byte_seconds_total', f'{GROUP}, reason')} / ignoring (reason) "
                    f"group_left () {rate('tcpmon_receive_read_bytes_total')})",
                    f"{LEGEND}: {{{{reason}}}}",
                ),
            ),
        ),
    ),
)

THROUGHPUT = Row(
    "Throughput and waiting",
    (
        Panel(
            "Received",
            "New in-order data that TCP accepted, bytes per second.",
            "Bps",
            (Query(rate("tcpmon_receive_bytes_total"), LEGEND),),
        ),
        Panel(
            "Read",
            "Data that the application drained, bytes per second. Below what is received, the queue grows.",
            "Bps",
            (Query(rate("tcpmon_receive_read_bytes_total"), LEGEND),),
        ),
        Panel(
            "Segment size",
            "Bytes per data segment, as GRO merged them. Near one packet at high speed: GRO is off or does not help, "
            "and each packet costs CPU.",
            "bytes",
            (Query(f"{rate('tcpmon_receive_bytes_total')} / {rate('tcpmon_receive_segments_total')}", LEGEND),),
        ),
        Panel(
            "Mean queue",
            "Bytes that waited to be read, on average over time, exactly (rate of the time integral). Near 0: the reader "
            "keeps up, and the sender or the path is the limit. High: the reader is.",
            "bytes",
            (Query(rate("tcpmon_receive_queue_byte_seconds_total"), LEGEND),),
        ),
        Panel(
            "Mean wait of a byte",
            "How long a byte waits for its reader (Little's law: mean queue over throughput). Without a value while "
            "nothing is read. Compare with the time slices below: many of them long, the reader is asleep elsewhere.",
            "s",
            (
                Query(
                    f"{rate('tcpmon_receive_queue_byte_seconds_total')} / {rate('tcpmon_receive_read_bytes_total')}",
                    LEGEND,
                ),
            ),
        ),
        Panel("Sockets", "TCP sockets of the group.", "short", (Query(gauge("tcpmon_sockets"), LEGEND),)),
    ),
)

BUFFER = Row(
    "Buffer and window",
    (
        Panel(
            "Buffer fill met by segments",
            "Part of the receive buffer in use when a data segment arrived. p99 at 100 % and p50 low: bursts. p50 high: "
            "the buffer is full most of the time. What is above 100 % shows as 100 %.",
            "percentunit",
            (
                Query(quantile(0.5, "tcpmon_receive_buffer_fill_ratio", GROUP), f"{LEGEND} p50"),
                Query(quantile(0.99, "tcpmon_receive_buffer_fill_ratio", GROUP), f"{LEGEND} p99"),
            ),
        ),
        Panel(
            "Buffer used and limit",
            "Memory charged to the receive buffers (sk_rmem_alloc) beside what they may take (sk_rcvbuf), of all sockets "
            "of the group. Used at the limit: runbook TcpmonLimitedByApplication.",
            "bytes",
            (
                Query(gauge("tcpmon_receive_buffer_used_bytes"), f"{LEGEND} used"),
                Query(gauge("tcpmon_receive_buffer_limit_bytes"), f"{LEGEND} limit"),
            ),
        ),
        Panel(
            "Buffer growths",
            "Times per second that autotuning raised a receive buffer. None at a small limit with steady traffic: the "
            "buffer was fixed by SO_RCVBUF, or cannot grow. Runbook TcpmonReceiveBufferStuckSmall.",
            "cps",
            (Query(rate("tcpmon_receive_buffer_growths_total"), LEGEND),),
        ),
        Panel(
            "Advertised window per socket",
            "What a sender may have under way. Throughput of one connection cannot exceed it per round trip: 1 MB at "
            "100 ms is 10 MB/s.",
            "bytes",
            (Query(f"{gauge('tcpmon_receive_window_bytes')} / {gauge('tcpmon_sockets')}", LEGEND),),
        ),
        Panel(
            "Time with the window closed",
            "Part of the time that a socket of the group told its sender to stop. Above some percent: the reader is the "
            "limit.",
            "percentunit",
            (
                Query(
                    f"{rate('tcpmon_receive_zero_window_seconds_total')} / {rate('tcpmon_socket_seconds_total')}",
                    LEGEND,
                ),
            ),
        ),
        Panel(
            "Out of order and backlog",
            "Data behind a gap (loss or reordering on the path), and segments that came while the socket was in use.",
            "bytes",
            (
                Query(gauge("tcpmon_receive_out_of_order_bytes"), f"{LEGEND} out of order"),
                Query(gauge("tcpmon_receive_backlog_bytes"), f"{LEGEND} backlog"),
            ),
        ),
        Panel(
            "Drops by reason",
            "Received segments per second that the kernel dropped with what was new in them, by its own reason. A line "
            "named none at 0: there was no such drop. proto_mem: buffers or TCP's memory are full. Harmless are those "
            "that bring nothing new: duplicates, keepalives, window probes.",
            "pps",
            (
                Query(
                    f"sum by ({GROUP}, reason) (rate(tcpmon_receive_drops_total{{@,effect=\"lost\"}}[@])) or on () "
                    'label_replace(0 * max(tcpmon_build_info{instance=~"$instance"}), "reason", "none", "", "")',
                    f"{LEGEND} {{{{reason}}}}",
                ),
                Query(
                    f"sum by ({GROUP}) (rate(tcpmon_receive_drops_total{{@,effect=\"harmless\"}}[@]))",
                    f"{LEGEND} harmless",
                ),
            ),
        ),
    ),
)

TIMESLICES = Row(
    "Time slices of the readers",
    (
        Panel(
            "Arrived on and off the CPU",
            "Bytes per second that arrived while the reader was on its CPU and while it was not. Mostly off: it sleeps or "
            "waits between reads, and the buffer must hold what comes meanwhile.",
            "Bps",
            (
                Query(
                    rate("tcpmon_timeslice_arrived_bytes_total", f"{GROUP}, context"),
                    f"{LEGEND} {{{{context}}}}",
                ),
            ),
        ),
        Panel(
            "Drained in time slices",
            "Bytes per second that readers drained during their time slices.",
            "Bps",
            (Query(rate("tcpmon_timeslice_read_bytes_total"), LEGEND),),
        ),
        Panel(
            "Fill at activation and deactivation",
            "Median fill of the buffer when the reader got the CPU and when it lost it. High at both: it does not drain "
            "what it finds (slow application). High at activation only: it drains, but comes late (scheduler, sleep).",
            "percentunit",
            (
                Query(
                    quantile(0.5, "tcpmon_timeslice_fill_ratio", f"{GROUP}, edge"),
                    f"{LEGEND} {{{{edge}}}}",
                ),
            ),
        ),
        Panel(
            "Length of a time slice",
            "Time on the CPU per time slice. Long ones end by preemption; very short ones: a wake-up for little data each.",
            "s",
            (
                Query(quantile(0.5, "tcpmon_timeslice_seconds", GROUP), f"{LEGEND} p50"),
                Query(quantile(0.99, "tcpmon_timeslice_seconds", GROUP), f"{LEGEND} p99"),
            ),
        ),
        Panel(
            "Time on the CPU",
            "CPU that the readers of the group have, cores. At 1 for a reader with one thread, it is the limit itself.",
            "short",
            (Query(total("tcpmon_timeslice_seconds", GROUP), LEGEND),),
        ),
        Panel(
            "Ends of time slices",
            "How readers leave the CPU, per second. blocked: they went to sleep, as a reader that keeps up does. "
            "preempted: others wanted the CPU.",
            "cps",
            (Query(rate("tcpmon_timeslices_total", f"{GROUP}, end"), f"{LEGEND} {{{{end}}}}"),),
        ),
        Panel(
            "Run-queue wait, p99",
            "Time that a reader was runnable but not running, per activation. Milliseconds: it competes for its CPU. "
            "Runbook TcpmonReaderStarved.",
            "s",
            (Query(quantile(0.99, "tcpmon_reader_run_queue_wait_seconds", GROUP), LEGEND),),
        ),
        Panel(
            "Waiting for a CPU",
            "Readers of the group that were runnable but not running, on average. Beside the time on the CPU: as much or "
            "more, and the reader is starved.",
            "short",
            (Query(total("tcpmon_reader_run_queue_wait_seconds", GROUP), LEGEND),),
        ),
    ),
)

RECEIVERS = Dashboard(
    uid="tcpmon-receivers",
    title="tcpmon: receivers",
    description="Per process and service: what arrives, what is read, what waits, and whether the buffer, the window or "
    "the CPU is the reason. Several instances are added up.",
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
    rows=(CAUSES, THROUGHPUT, BUFFER, TIMESLICES),
)
