"""The host dashboard: a received packet's path from the ring to the application, then memory, then tcpmon."""

from panels import Dashboard, Panel, Query, Row, Stat, Steps, Variable, quantile
from tcpmon import ITSELF, MINOR

LOST_SEGMENTS = 'sum(rate(tcpmon_receive_drops_total{@,effect="lost"}[@]))'

HEALTH = Row(
    "Health now",
    (
        Stat(
            "RX overruns",
            "Packets per second that found no room in the receive rings. Runbook TcpmonRxOverrun.",
            "pps",
            (Query("sum(rate(tcpmon_device_rx_overruns_total{@}[@]))", "overruns"),),
            Steps(0.1, 10),
            width=4,
        ),
        Stat(
            "Softnet drops",
            "Packets per second dropped because a CPU's backlog was full. Runbook TcpmonSoftnetDrops.",
            "pps",
            (Query("sum(rate(tcpmon_softnet_dropped_total{@}[@]))", "drops"),),
            Steps(0.1, 10),
            width=4,
        ),
        Stat(
            "Data lost at sockets",
            "Received segments per second that the kernel dropped and that may have had new data. Runbook "
            "TcpmonReceiveDrops.",
            "pps",
            (Query(f"{LOST_SEGMENTS} or on () 0 * count(tcpmon_build_info{{@}})", "lost"),),
            Steps(0.1, 10),
            width=4,
        ),
        Stat(
            "TCP memory pressure",
            "Hosts on which TCP is under memory pressure now. Runbook TcpmonTcpMemoryPressure.",
            "short",
            (Query("sum(tcpmon_tcp_memory_pressure{@})", "hosts"),),
            Steps(1, 1),
            width=4,
        ),
        Stat(
            "Stuck sockets",
            "Sockets that are no longer established and still have something to send, averaged over five minutes. A few "
            "are normal. Runbook TcpmonFinWait1PileUp.",
            "short",
            (Query("sum(avg_over_time(tcpmon_stuck_sockets{@}[5m]))", "sockets"),),
            Steps(20, 100),
            width=4,
        ),
        Stat(
            "Missed by tcpmon",
            "Events and records that tcpmon lost within five minutes, and its probes that do not run although the kernel "
            "has them. Runbooks TcpmonLosingEvents, TcpmonProbeMissing.",
            "short",
            (
                Query(f'sum(increase(tcpmon_lost_total{{@,what!~"{MINOR}"}}[5m]))', "lost"),
                Query(
                    'count(tcpmon_probe_attached{@} == 0 unless ignoring (verdict, reason) '
                    'tcpmon_probe_info{@,verdict="unsupported"}) or vector(0)',
                    "probes",
                ),
            ),
            Steps(1),
            width=4,
        ),
    ),
)

NIC_RING = Row(
    "NIC ring",
    (
        Panel(
            "RX overruns by device",
            "Packets per second that found no room in the receive ring, per device. Should be 0. Otherwise: a larger "
            "ring, more queues, or interrupts on other CPUs. On veth, the sending device counts for the full ring of its peer. Runbook TcpmonRxOverrun. "
            "(absent where no device has such a counter: virtio_net, loopback)",
            "pps",
            (
                Query(
                    "sum by (instance, device) (rate(tcpmon_device_rx_overruns_total{@}[@]))", "{{instance}} {{device}}"
                ),
            ),
            optional=True,
        ),
        Panel(
            "RX overruns by counter",
            "The same, by the driver's or rtnetlink's own name. Each lost packet is in one of them. missed or fifo: the "
            "ring or the packet buffer before it was full. (absent where no device has such a counter: virtio_net, "
            "loopback)",
            "pps",
            (Query("rate(tcpmon_device_rx_overruns_total{@}[@])", "{{instance}} {{device}} {{counter}}"),),
            optional=True,
            top=10,
        ),
        Panel(
            "RX ring size",
            "Descriptors of the receive ring, as set and as possible. Where overruns are seen and the ring is below its "
            "maximum, raise it (ethtool -G). (absent where no driver says: veth, loopback, some virtual NICs)",
            "short",
            (
                Query("tcpmon_device_rx_ring_entries{@}", "{{instance}} {{device}} set"),
                Query("tcpmon_device_rx_ring_max_entries{@}", "{{instance}} {{device}} possible"),
            ),
            optional=True,
        ),
    ),
)

SOFTNET = Row(
    "NAPI and softnet",
    (
        Panel(
            "NAPI polls",
            "Polls per second, per device; backlog is the CPUs' own queue (loopback, veth, RPS). Many polls with few "
            "packets each cost CPU: see interrupt coalescing (ethtool -c). (absent where the napi_poll probe is not "
            "attached)",
            "cps",
            (Query("rate(tcpmon_napi_polls_total{@}[@])", "{{instance}} {{device}}"),),
            optional=True,
            top=10,
        ),
        Panel(
            "NAPI packets",
            "Work done in polls per second: packets, or the unit of the driver's budget. (absent where the "
            "napi_poll probe is not attached)",
            "pps",
            (Query("rate(tcpmon_napi_packets_total{@}[@])", "{{instance}} {{device}}"),),
            optional=True,
            top=10,
        ),
        Panel(
            "NAPI budget exhausted",
            "Part of the polls that used their whole budget, so that more was waiting. Near 100 % together with "
            "overruns, one CPU cannot empty its ring: spread the queues (RSS) or give NAPI its own CPU. High alone is "
            "only a busy device. (absent where the napi_poll probe is not attached)",
            "percentunit",
            (
                Query(
                    "rate(tcpmon_napi_budget_exhausted_total{@}[@]) / rate(tcpmon_napi_polls_total{@}[@])",
                    "{{instance}} {{device}}",
                ),
            ),
            maximum=1,
            optional=True,
        ),
        Panel(
            "Softnet: packets processed",
            "Packets per second that each CPU processed. One CPU far above the others: RSS or RPS spreads badly, and that "
            "CPU is the limit of the host.",
            "pps",
            (Query("rate(tcpmon_softnet_processed_total{@}[@])", "{{instance}} CPU {{cpu}}"),),
            top=10,
        ),
        Panel(
            "Softnet: packets dropped",
            "Packets per second dropped because the CPU's backlog was full. Should be 0. Otherwise raise "
            "net.core.netdev_max_backlog or spread the load. Runbook TcpmonSoftnetDrops.",
            "pps",
            (Query("rate(tcpmon_softnet_dropped_total{@}[@])", "{{instance}} CPU {{cpu}}"),),
            top=10,
        ),
        Panel(
            "Softnet: squeezed",
            "Times per second that a CPU stopped processing packets while some were left. Harmless by itself, so there is "
            "no alert. Together with drops or overruns: raise net.core.netdev_budget and netdev_budget_usecs.",
            "cps",
            (Query("rate(tcpmon_softnet_time_squeezed_total{@}[@])", "{{instance}} CPU {{cpu}}"),),
            top=10,
        ),
    ),
)

SOCKET_QUEUES = Row(
    "Socket queues",
    (
        Panel(
            "Received",
            "New in-order data that TCP accepted, bytes per second of all sockets. Compare with what is read, in the "
            "row of the application.",
            "Bps",
            (Query("sum by (instance) (rate(tcpmon_receive_bytes_total{@}[@]))", "{{instance}}"),),
        ),
        Panel(
            "Queues",
            "What waits in all sockets: received and not read, out of order behind a gap, and in the backlog of sockets "
            "in use. Receive queue high: slow readers, see the other dashboard for whose. Out of order high: loss or "
            "reordering on the path.",
            "bytes",
            (
                Query("sum by (instance) (tcpmon_receive_queue_bytes{@})", "{{instance}} receive queue"),
                Query("sum by (instance) (tcpmon_receive_out_of_order_bytes{@})", "{{instance}} out of order"),
                Query("sum by (instance) (tcpmon_receive_backlog_bytes{@})", "{{instance}} backlog"),
            ),
        ),
        Panel(
            "Buffers and windows",
            "Memory charged to the receive buffers, what they may take, and the windows advertised. Used near the limit: "
            "windows close. Windows far below the limit with little used: small reads or memory pressure keep them small.",
            "bytes",
            (
                Query("sum by (instance) (tcpmon_receive_buffer_used_bytes{@})", "{{instance}} used"),
                Query("sum by (instance) (tcpmon_receive_buffer_limit_bytes{@})", "{{instance}} limit"),
                Query("sum by (instance) (tcpmon_receive_window_bytes{@})", "{{instance}} windows"),
            ),
        ),
        Panel(
            "Closed windows",
            "Sockets, on average, whose advertised window was below one segment: their senders have to wait. If it stays "
            "above 0, a reader is too slow. Runbook TcpmonLimitedByApplication.",
            "short",
            (Query("sum by (instance) (rate(tcpmon_receive_zero_window_seconds_total{@}[@]))", "{{instance}}"),),
        ),
        Panel(
            "Drops by reason",
            "Received segments per second that the kernel dropped at a socket and that may have had new data, by its own "
            "reason. A line at 0 without a reason: none was ever dropped. proto_mem: buffers or TCP's memory are full; "
            "socket_backlog: the reader holds the socket's lock for too long. harmless: segments without new data "
            "(duplicates, keepalives, window probes).",
            "pps",
            (
                Query(
                    'sum by (instance, reason) (rate(tcpmon_receive_drops_total{@,effect="lost"}[@]))',
                    "{{instance}} {{reason}}",
                ),
                Query(
                    'sum by (instance) (rate(tcpmon_receive_drops_total{@,effect="harmless"}[@]))',
                    "{{instance}} harmless",
                ),
            ),
            top=10,
        ),
        Panel(
            "Sockets",
            "TCP sockets watched.",
            "short",
            (Query("sum by (instance) (tcpmon_sockets{@})", "{{instance}}"),),
        ),
    ),
)

SCHEDULER = Row(
    "Scheduler",
    (
        Panel(
            "Run-queue wait",
            "Time that readers were runnable but not running, per activation. A p99 of milliseconds means that bytes wait "
            "because their reader has no CPU: move other work away, or raise the reader's weight. Runbook "
            "TcpmonReaderStarved.",
            "s",
            (
                Query(quantile(0.5, "tcpmon_reader_run_queue_wait_seconds", "instance"), "{{instance}} p50"),
                Query(quantile(0.99, "tcpmon_reader_run_queue_wait_seconds", "instance"), "{{instance}} p99"),
            ),
        ),
        Panel(
            "Readers that wait for a CPU",
            "Readers in a run queue, on average. Above the number of idle CPUs for long: the host is short of CPU, or "
            "readers are pinned to busy ones.",
            "short",
            (Query("sum by (instance) (rate(tcpmon_reader_run_queue_seconds_total{@}[@]))", "{{instance}}"),),
        ),
        Panel(
            "Context switches",
            "Context switches per second of all CPUs. A jump without more traffic: readers are woken for little data "
            "each (SO_RCVLOWAT, interrupt coalescing).",
            "cps",
            (Query("rate(tcpmon_context_switches_total{@}[@])", "{{instance}}"),),
        ),
    ),
)

APPLICATION = Row(
    "Application",
    (
        Panel(
            "Read",
            "Data that applications drained, bytes per second. Below what is received, queues grow.",
            "Bps",
            (Query("sum by (instance) (rate(tcpmon_receive_read_bytes_total{@}[@]))", "{{instance}}"),),
        ),
        Panel(
            "Mean wait of a byte",
            "How long a received byte waits for its reader (Little's law: mean queue over throughput). Without a value "
            "while nothing is read. Milliseconds are usual; seconds are a reader that is busy elsewhere.",
            "s",
            (
                Query(
                    "sum by (instance) (rate(tcpmon_receive_queue_byte_seconds_total{@}[@]))"
                    " / sum by (instance) (rate(tcpmon_receive_read_bytes_total{@}[@]))",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Mean queue by process",
            "Bytes that waited to be read, on average, per process: which reader is behind. For details, see the receivers "
            "dashboard.",
            "bytes",
            (
                Query(
                    "sum by (instance, process) (rate(tcpmon_receive_queue_byte_seconds_total{@}[@]))",
                    "{{instance}} {{process}}",
                ),
            ),
            top=10,
        ),
    ),
)

MEMORY = Row(
    "Memory",
    (
        Panel(
            "TCP memory",
            "Memory of all TCP sockets beside the three limits of net.ipv4.tcp_mem. Above pressure, the kernel shrinks "
            "windows; at max it drops. Find who holds it (Mean queue by process), then raise tcp_mem if the host "
            "has the memory. Runbooks TcpmonTcpMemoryPressure, TcpmonTcpMemoryNearMax.",
            "bytes",
            (
                Query("tcpmon_tcp_memory_bytes{@}", "{{instance}} used"),
                Query("tcpmon_tcp_memory_limit_bytes{@}", "{{instance}} {{level}}"),
            ),
        ),
        Panel(
            "TCP memory pressure over time",
            "1 while TCP is under memory pressure. The kernel adds the time of a period when it ends, so the share of "
            "time comes in lumps, which can be above 1.",
            "short",
            (
                Query("tcpmon_tcp_memory_pressure{@}", "{{instance}} now"),
                Query("rate(tcpmon_tcp_memory_pressure_seconds_total{@}[@])", "{{instance}} share of time"),
            ),
        ),
        Panel(
            "Memory refused to sockets",
            "Requests per second for socket memory that tcp_mem or a control group's limit refused. Should be 0; a "
            "control group with a limit and much socket memory is the likely cause when TCP memory is low. (absent where "
            "the sock_exceed_buf_limit probe is not attached)",
            "cps",
            (Query("rate(tcpmon_memory_limit_exceeded_total{@}[@])", "{{instance}} {{kind}}"),),
            optional=True,
            top=10,
        ),
        Panel(
            "TCP memory limit against memory",
            "tcp_mem's max as part of the memory that the page allocator manages. The kernel's default is below 10 %. "
            "Above 100 %, the limit protects nothing. Runbook TcpmonTcpMemoryLimitAboveMemory.",
            "percentunit",
            (
                Query(
                    'tcpmon_tcp_memory_limit_bytes{@,level="max"}'
                    " / ignoring (level) sum without (node, zone) (tcpmon_zone_managed_bytes{@})",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Free memory by zone",
            "Free memory of each zone beside its watermarks. Below low the kernel reclaims; at min atomic allocations, as "
            "for received packets, use the last reserve. Runbook TcpmonZoneLowWhileQueuesGrow.",
            "bytes",
            (
                Query("tcpmon_zone_free_bytes{@}", "{{instance}} node {{node}} {{zone}} free"),
                Query("tcpmon_zone_watermark_bytes{@}", "{{instance}} node {{node}} {{zone}} {{level}}"),
            ),
        ),
        Panel(
            "Free blocks by order",
            "Free blocks of 2^order pages. High orders at 0 while memory is free: it is fragmented, and drivers that need "
            "jumbo buffers in one piece cannot refill their ring.",
            "short",
            (Query("sum by (instance, order) (tcpmon_zone_free_blocks{@})", "{{instance}} order {{order}}"),),
            top=10,
        ),
        Panel(
            "Page allocation failures",
            "Requests for pages per second that failed, from the kernel log. Atomic ones are mostly received packets that "
            "were lost. Runbook TcpmonAtomicAllocationFailures. (absent where the kernel log cannot be read)",
            "cps",
            (
                Query(
                    "rate(tcpmon_page_allocation_failures_total{@}[@])",
                    "{{instance}} {{context}} order {{order}}",
                ),
            ),
            optional=True,
            top=10,
        ),
        Panel(
            "Time lost to memory shortage",
            "Part of the time in which some, or all, tasks that had work waited for memory (PSI). Above a few percent, "
            "readers are slow because of memory, not because of the CPU. (absent where the kernel has no PSI)",
            "percentunit",
            (Query("rate(tcpmon_psi_memory_stalled_seconds_total{@}[@])", "{{instance}} {{kind}}"),),
            optional=True,
        ),
        Panel(
            "Socket memory by control group",
            "Socket memory of control groups; capped means that it counts against a memory.max, and that the group can be "
            "under pressure while the host is not. (absent where cgroup v2 has no memory controller)",
            "bytes",
            (Query("tcpmon_cgroup_socket_memory_bytes{@}", "{{instance}} {{cgroup}} capped={{capped}}"),),
            optional=True,
            top=10,
        ),
    ),
)

PRUNED = (
    "PruneCalled|RcvPruned|OfoPruned|TCPRcvCollapsed|TCPRcvQDrop|TCPBacklogDrop|TCPZeroWindowDrop|TCPMemoryPressures"
)
WINDOW = "TCPWantZeroWindowAdv|TCPToZeroWindowAdv|TCPFromZeroWindowAdv|TCPOFOQueue|TCPOFODrop|TCPOFOMerge"
IP = "InTruncatedPkts|InNoRoutes|InCsumErrors|ReasmOverlaps|InCEPkts"

EVENTS = Row(
    "Kernel events and stuck sockets",
    (
        Panel(
            "TcpExt: data discarded or collapsed",
            "Events per second which show that buffers or memory are full. RcvPruned and OfoPruned: received data was "
            "discarded. TCPRcvCollapsed: the kernel spent CPU to save memory. TCPBacklogDrop: a socket was locked for too "
            "long.",
            "cps",
            (Query(f'rate(tcpmon_tcp_events_total{{@,event=~"{PRUNED}"}}[@])', "{{instance}} {{event}}"),),
            top=10,
        ),
        Panel(
            "TcpExt: windows and order",
            "TCPToZeroWindowAdv: a window closed; TCPFromZeroWindowAdv: it opened again; TCPWantZeroWindowAdv: it should "
            "have closed. TCPOFOQueue: a segment came out of order, by loss or by reordering on the path.",
            "cps",
            (Query(f'rate(tcpmon_tcp_events_total{{@,event=~"{WINDOW}"}}[@])', "{{instance}} {{event}}"),),
            top=10,
        ),
        Panel(
            "IpExt",
            "Packets per second that IP found damaged, without a route, or marked by congestion on the path (InCEPkts). "
            "Checksum errors: look at the NIC, cable or a virtual switch.",
            "cps",
            (Query(f'rate(tcpmon_ip_events_total{{@,event=~"{IP}"}}[@])', "{{instance}} {{event}}"),),
            top=10,
        ),
        Panel(
            "Stuck sockets by state",
            "Sockets that are no longer, or not yet, established and still have something to send. A few are normal; a "
            "plateau in fin_wait_1 means peers that do not read. Runbook TcpmonFinWait1PileUp.",
            "short",
            (Query("tcpmon_stuck_sockets{@}", "{{instance}} {{state}}"),),
            top=10,
        ),
        Panel(
            "Stuck send queues",
            "Data that those sockets have to send. It counts against TCP's memory until it is acknowledged or given up.",
            "bytes",
            (Query("tcpmon_stuck_send_queue_bytes{@}", "{{instance}} {{state}}"),),
            top=10,
        ),
        Panel(
            "Orphan sockets",
            "TCP sockets that no process holds any more. Near net.ipv4.tcp_max_orphans the kernel resets connections.",
            "short",
            (Query("tcpmon_orphan_sockets{@}", "{{instance}}"),),
        ),
    ),
)

# In the order of a packet's way.
WAY = (NIC_RING, SOFTNET, SOCKET_QUEUES, SCHEDULER, APPLICATION, MEMORY, EVENTS)


def everywhere(title: str, *rows: Row, collapsed: bool = False) -> Row:
    """The panels of these rows that every host has."""
    panels = tuple(panel for row in rows for panel in row.panels if not panel.optional)
    return Row(title, panels, collapsed)


SOMEWHERE = Row(
    "What not every host has: rings, NAPI, refused memory, PSI, control groups",
    tuple(panel for row in WAY for panel in row.panels if panel.optional),
    collapsed=True,
)

HOST = Dashboard(
    uid="tcpmon-host",
    title="tcpmon: host",
    description="Health of one or more hosts; then the path of a received packet through ring, softnet, sockets and "
    "readers; then memory; then tcpmon itself. Start with the first row that is not quiet.",
    matchers='instance=~"$instance"',
    variables=(Variable("instance", "label_values(tcpmon_build_info, instance)", all_values=False),),
    rows=(
        HEALTH,
        everywhere("Softnet", NIC_RING, SOFTNET),
        everywhere("Socket queues", SOCKET_QUEUES),
        everywhere("Readers: CPU and application", SCHEDULER, APPLICATION),
        everywhere("Memory", MEMORY),
        everywhere("Kernel events and stuck sockets", EVENTS, collapsed=True),
        SOMEWHERE,
        ITSELF,
    ),
)
