"""The dashboard of many hosts: which are worst, by what, and where to go on. Its queries use rules.yaml."""

from panels import Column, Dashboard, Panel, Query, Row, Stat, Steps, Table, Variable

LIMITED_CONNECTIONS = "instance_cause:tcpmon_receive_limited:rate5m"
WORST_RECEIVERS = "instance_process_service_cause:tcpmon_receive_limited:topk3"
STUCK = "instance:tcpmon_receivers_stuck:count"
RECEIVED = "instance:tcpmon_receive_bytes:rate5m"
LOST = "instance_place:tcpmon_packets_lost:rate5m"
BLIND = "instance:tcpmon_lost:rate5m"
TOP = 10
LINES = 20

FIRING = 'ALERTS{job=~"$job",cluster=~"$cluster",instance=~"$instance",alertname=~"Tcpmon.+",alertstate="firing"}'


def by_host(family: str, more: str = "") -> str:
    return f"sum by (instance) ({family}{{@{more}}})"


# Whether each host answers whose tcpmon has answered within a day; other jobs' targets are none of ours.
ANSWERS = "max by (instance) (up{@} and on (job, instance) last_over_time(tcpmon_build_info{@}[1d]))"
# No answer first, then loss, then what is stuck, then what is limited most.
RANK = " + ".join(
    f"({rank} or 0 * {ANSWERS})"
    for rank in (
        f"1e9 * ({ANSWERS} == bool 0)",
        f"1e6 * ({by_host(LOST)} > bool 0.1)",
        f"1e3 * {by_host(STUCK)}",
        by_host(LIMITED_CONNECTIONS),
    )
)
WORST = f"topk({LINES}, {RANK})"


def of_the_worst(expr: str) -> str:
    return f"({expr}) and on (instance) {WORST}"


def of_the_worst_receiver(label: str) -> str:
    return of_the_worst(f"sum by (instance, {label}) (topk by (instance) (1, {WORST_RECEIVERS}{{@}}))")


def highest(title: str, description: str, unit: str, expr: str) -> Panel:
    """The hosts that are highest now."""
    return Panel(title, description, unit, (Query(expr, "{{instance}}"),), top=TOP)


def limited_by(cause: str, what: str) -> Panel:
    description = f"The ten hosts with the most connections limited by {what}, on average."
    return highest(f"Limited by {cause}", description, "short", by_host(LIMITED_CONNECTIONS, f',cause="{cause}"'))


def lost(place: str, title: str, what: str) -> Panel:
    description = f"The ten hosts that lose the most {what}, per second."
    return highest(title, description, "pps", by_host(LOST, f',place="{place}"'))


def hosts(title: str, description: str, expr: str, steps: Steps) -> Stat:
    return Stat(title, description, "short", (Query(f"count({expr}) or vector(0)", "hosts"),), steps, "0", width=4)


NOW = Row(
    "Hosts now",
    (
        Stat(
            "Hosts that answer",
            "Hosts whose tcpmon is scraped.",
            "short",
            (Query(f"count({ANSWERS} == 1)", "hosts"),),
            Steps(1e9),
            "0",
            width=4,
        ),
        hosts(
            "Hosts that do not answer",
            "Hosts whose tcpmon answered within a day, and does not now. Runbook TcpmonDown.",
            f"{ANSWERS} == 0",
            Steps(1, 1),
        ),
        hosts("Hosts that lose packets", "More than one in ten seconds, anywhere.", f"{by_host(LOST)} > 0.1", Steps(1)),
        hosts("Hosts with a stuck receiver", "Unread data, and nothing is read.", f"{by_host(STUCK)} > 0", Steps(1)),
        hosts(
            "Hosts that limit senders",
            "More than one limited connection, on average.",
            f"{by_host(LIMITED_CONNECTIONS)} > 1",
            Steps(1),
        ),
        hosts("Hosts with an alert", "At least one alert of tcpmon fires.", f"count by (instance) ({FIRING})", Steps(1)),
        Table(
            "The worst hosts",
            "First those that do not answer, then those that lose packets, then those with a stuck receiver, then those "
            "with the most limited connections. Worst receiver, limited by: the process and cause that limit most of "
            "them. Click on a host for its dashboards.",
            ("instance",),
            (
                Column(
                    "Answers",
                    of_the_worst(ANSWERS),
                    texts=(("0", "no", "red"), ("1", "yes", "text")),
                    width=80,
                ),
                Column("Lost/s", of_the_worst(by_host(LOST)), "pps", steps=Steps(0.1, 10)),
                Column("Stuck", of_the_worst(by_host(STUCK)), steps=Steps(1, 1)),
                Column("Limited conns", of_the_worst(by_host(LIMITED_CONNECTIONS)), steps=Steps(1, 10)),
                Column("Worst receiver", of_the_worst_receiver("process"), label="process", width=None),
                Column("Limited by", of_the_worst_receiver("cause"), label="cause", width=120),
                Column("Received/s", of_the_worst(by_host(RECEIVED)), "Bps"),
                Column("Alerts", of_the_worst(f"count by (instance) ({FIRING})"), steps=Steps(1)),
                Column("Rank", WORST),
            ),
            links=(
                ("Receivers", "/d/tcpmon-receivers?var-instance=${__data.fields.Instance}&${__url_time_range}"),
                ("Host", "/d/tcpmon-host?var-instance=${__data.fields.Instance}&${__url_time_range}"),
            ),
            height=14,
        ),
    ),
)

CAUSES = Row(
    "Worst hosts by cause",
    (
        limited_by("application", "readers that compute, sleep or hang"),
        limited_by("scheduler", "readers that wait for a CPU"),
        limited_by("window", "windows that are too small for the path"),
        limited_by("memory", "memory shortage"),
    ),
)

LOSS = Row(
    "Worst hosts by loss",
    (
        lost("ring", "Lost in receive rings", "packets because a receive ring was full"),
        lost("softnet", "Lost in softnet", "packets because a CPU's backlog was full"),
        lost("socket", "Lost at sockets", "segments with new data at a socket"),
        lost("listener", "Lost at listeners", "connection attempts at listening sockets"),
    ),
)

OTHERS = Row(
    "Throughput, and tcpmon itself",
    (
        highest("Received", "The ten hosts that receive the most, bytes per second.", "Bps", by_host(RECEIVED)),
        highest(
            "Lost by tcpmon",
            "Events and records per second that tcpmon lost: gaps in everything else. Runbook TcpmonLosingEvents.",
            "cps",
            by_host(BLIND),
        ),
        highest(
            "Time of a scrape",
            "The ten hosts on which reading the kernel's state for one page takes longest.",
            "s",
            "max by (instance) (tcpmon_scrape_duration_seconds{@})",
        ),
        highest(
            "CPU of tcpmon",
            "CPU of the daemon, as part of one core, without its eBPF programs.",
            "percentunit",
            "sum by (instance) (rate(process_cpu_seconds_total{@}[@]) and on (instance, job) tcpmon_build_info{@})",
        ),
    ),
)

FLEET = Dashboard(
    uid="tcpmon-fleet",
    title="tcpmon: fleet",
    description="Which of many hosts lose packets or limit their senders, and by what. Needs the recording rules in "
    "rules.yaml.",
    matchers='job=~"$job",cluster=~"$cluster",instance=~"$instance"',
    variables=(
        Variable("job", "label_values(tcpmon_build_info, job)", all_values=True),
        Variable("cluster", 'label_values(tcpmon_build_info{job=~"$job"}, cluster)', all_values=True),
        Variable("instance", 'label_values(tcpmon_build_info{job=~"$job",cluster=~"$cluster"}, instance)', all_values=True),
    ),
    rows=(NOW, CAUSES, LOSS, OTHERS),
)
