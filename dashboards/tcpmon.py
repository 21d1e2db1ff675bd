"""The row of the dashboards about tcpmon itself."""

from panels import Panel, Query, Row, Stat

# Losses that some kernels always have some of (see TcpmonLosingEvents).
MINOR = "recursion_(kfree_skb|napi_poll|sched_switch|sock_exceed_buf_limit|tcp_probe|tcp_rcv.*)"

ITSELF = Row(
    "tcpmon itself",
    (
        Stat(
            "Version",
            "tcpmon's version and the kernel's on each host. A host that is missing does not answer: runbook TcpmonDown.",
            "short",
            (Query("tcpmon_build_info{@}", "{{instance}}: tcpmon {{version}}, Linux {{kernel}}"),),
            None,
            width=24,
        ),
        Panel(
            "Probes attached",
            "1 where the probe runs, 0 where it does not. 0 is normal where the kernel lacks it (verdict unsupported in "
            "/status). Runbook TcpmonProbeMissing.",
            "short",
            (Query("tcpmon_probe_attached{@}", "{{instance}} {{probe}}"),),
            maximum=1,
        ),
        Panel(
            "Sources available",
            "1 where a source other than the probes (/proc, netlink, kernel log) can be read, 0 where it cannot; its panels "
            "are then empty. /status says why.",
            "short",
            (Query("tcpmon_host_source_available{@}", "{{instance}} {{source}}"),),
            maximum=1,
        ),
        Panel(
            "Lost",
            "Events, records and map entries lost per second. Anything above 0 is a gap in the other panels. Runbook "
            "TcpmonLosingEvents.",
            "cps",
            (Query("rate(tcpmon_lost_total{@}[@])", "{{instance}} {{what}}"),),
            top=10,
        ),
        Panel(
            "Use of the maps",
            "Entries in use as part of the capacity of each eBPF map that has a limit. At 100 %, new sockets, readers or "
            "drops are lost: raise the limit in the configuration.",
            "percentunit",
            (Query("tcpmon_map_entries{@} / tcpmon_map_capacity{@}", "{{instance}} {{map}}"),),
            maximum=1,
        ),
        Panel(
            "Counted under other",
            "Sockets and readers per second that were counted under the group other because there were too many groups. "
            "Above 0: raise max_groups or pin processes, if the names matter.",
            "cps",
            (Query("rate(tcpmon_groups_suppressed_total{@}[@])", "{{instance}}"),),
        ),
        Panel(
            "Time of a scrape",
            "Time to read the kernel's state for one page. It grows with the number of sockets; keep it well below the "
            "scrape timeout.",
            "s",
            (Query("tcpmon_scrape_duration_seconds{@}", "{{instance}}"),),
        ),
        Panel(
            "CPU of tcpmon",
            "CPU of the daemon, as part of one core, without its eBPF programs. Above a few percent: scrape less often.",
            "percentunit",
            (
                Query(
                    "rate(process_cpu_seconds_total{@}[@]) and on (instance, job) tcpmon_build_info{@}", "{{instance}}"
                ),
            ),
        ),
        Panel(
            "Memory of tcpmon",
            "Resident memory of the daemon. It is bounded by configuration; steady growth is a bug to report.",
            "bytes",
            (Query("process_resident_memory_bytes{@} and on (instance, job) tcpmon_build_info{@}", "{{instance}}"),),
        ),
        Panel(
            "CPU of the eBPF programs",
            "CPU spent in each program, as part of one core. Missing where kernel.bpf_stats_enabled is 0, the default; counting "
            "itself costs some 20 ns a run.",
            "percentunit",
            (Query("rate(tcpmon_bpf_program_run_seconds_total{@}[@])", "{{instance}} {{program}}"),),
            optional=True,
        ),
        Panel(
            "Time of one run",
            "Mean time of one run of each program. Missing where kernel.bpf_stats_enabled is 0, the default.",
            "s",
            (
                Query(
                    "rate(tcpmon_bpf_program_run_seconds_total{@}[@]) / rate(tcpmon_bpf_program_runs_total{@}[@])",
                    "{{instance}} {{program}}",
                ),
            ),
            optional=True,
        ),
    ),
    collapsed=True,
)
