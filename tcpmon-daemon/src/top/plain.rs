//! The rows as plain text or JSON, for `--once`.

use serde::Serialize;
use tcpmon_trace::{
    scale::{Bytes, Count, Time},
    summary::causes,
};

use super::{
    advice::advice,
    rows::{Limit, Row},
};

/// Version of the JSON.
const FORMAT_VERSION: u32 = 1;

/// A row as JSON: base units, `null` for what is not known.
#[derive(Debug, Serialize)]
struct PlainRow<'a> {
    /// Raised when a key changes its meaning or is removed.
    format_version: u32,
    process: &'a str,
    service: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cgroup: Option<&'a str>,
    #[serde(flatten)]
    connection: Option<PlainConnection>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u64>,
    interval_seconds: f64,
    received_bytes_per_second: f64,
    read_bytes_per_second: f64,
    queue_bytes: u64,
    mean_queue_bytes: f64,
    receive_buffer_used_bytes: u64,
    receive_buffer_limit_bytes: u64,
    window_bytes: u64,
    backlog_bytes: u64,
    out_of_order_bytes: u64,
    mean_wait_seconds: Option<f64>,
    mean_scheduler_wait_seconds: Option<f64>,
    stuck: bool,
    limited_by: Option<&'static str>,
    limited: Limits,
    zero_window_seconds_per_second: f64,
    run_queue_wait_seconds_per_second: f64,
    on_cpu_seconds_per_second: Option<f64>,
    preempted_per_second: f64,
    blocked_per_second: f64,
    drops_per_second: f64,
    buffer_growths: u64,
    advice: String,
}

#[derive(Debug, Serialize)]
struct PlainConnection {
    local_address: std::net::IpAddr,
    local_port: u16,
    remote_address: std::net::IpAddr,
    remote_port: u16,
    pid: u32,
    tid: u32,
    netns: u32,
    cookie: String,
    age_seconds: f64,
    round_trip_seconds: Option<f64>,
}

/// Shares of the time by cause.
#[derive(Debug, Serialize)]
struct Limits {
    upstream: f64,
    application: f64,
    scheduler: f64,
    window: f64,
    memory: f64,
}

/// One JSON object on each line.
///
/// # Errors
/// None in practice: all keys are strings.
pub fn json(rows: &[&Row]) -> serde_json::Result<String> {
    rows.iter().map(|row| Ok(serde_json::to_string(&plain(row))? + "\n")).collect()
}

fn plain(row: &Row) -> PlainRow<'_> {
    let (rates, gauges) = (&row.rates, &row.gauges);
    let [upstream, application, scheduler, window, memory] = rates.shares();
    let cookie = row.subject.cookie().map_or_else(String::new, |cookie| format!("{cookie:x}"));
    PlainRow {
        format_version: FORMAT_VERSION,
        process: &row.process,
        service: &row.service,
        cgroup: row.cgroup.as_deref(),
        connection: row.connection.map(|connection| PlainConnection {
            local_address: connection.local.ip(),
            local_port: connection.local.port(),
            remote_address: connection.remote.ip(),
            remote_port: connection.remote.port(),
            pid: connection.tgid,
            tid: connection.tid,
            netns: connection.netns,
            cookie,
            age_seconds: connection.age,
            round_trip_seconds: Some(connection.round_trip).filter(|seconds| *seconds > 0.0),
        }),
        connections: row.connection.is_none().then_some(row.gauges.sockets),
        interval_seconds: rates.seconds,
        received_bytes_per_second: rates.received,
        read_bytes_per_second: rates.read,
        queue_bytes: gauges.queue_bytes,
        mean_queue_bytes: rates.mean_queue,
        receive_buffer_used_bytes: gauges.used_bytes,
        receive_buffer_limit_bytes: gauges.limit_bytes,
        window_bytes: gauges.window_bytes,
        backlog_bytes: gauges.backlog_bytes,
        out_of_order_bytes: gauges.out_of_order_bytes,
        mean_wait_seconds: rates.mean_wait.map(|(all, _)| all),
        mean_scheduler_wait_seconds: rates.mean_wait.map(|(_, for_cpu)| for_cpu),
        stuck: row.is_stuck(),
        limited_by: rates.limited_by().filter(|_| row.limit() != Limit::NobodyReads).map(|(cause, _)| causes()[cause]),
        limited: Limits { upstream, application, scheduler, window, memory },
        zero_window_seconds_per_second: rates.zero_window,
        run_queue_wait_seconds_per_second: rates.timeslices.run_queue_wait,
        on_cpu_seconds_per_second: rates.timeslices.computed().map(|_| rates.timeslices.on_cpu),
        preempted_per_second: rates.timeslices.preempted,
        blocked_per_second: rates.timeslices.blocked,
        drops_per_second: rates.drops,
        buffer_growths: rates.growths,
        advice: advice(row),
    }
}

/// A table with a heading, in columns as wide as their longest cell.
pub fn table(rows: &[&Row]) -> String {
    let sockets = rows.iter().any(|row| row.connection.is_some());
    let mut cells: Vec<Vec<String>> = Vec::with_capacity(rows.len() + 1);
    let who: &[&str] = if sockets { &["PROCESS", "PID", "LOCAL", "REMOTE"] } else { &["PROCESS", "SERVICE", "CONNS"] };
    let what = ["RECV/s", "READ/s", "QUEUE", "USED", "RCVBUF", "WINDOW", "WAIT", "RUNQ", "DROP/s", "LIMITED BY"];
    cells.push(who.iter().chain(&what).map(|title| (*title).to_owned()).collect());
    cells.extend(rows.iter().map(|row| line(row)));
    let columns = who.len() + what.len();
    let widths: Vec<usize> =
        (0..columns).map(|column| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let is_name =
        |column: usize| column == 0 || column + 1 == columns || (column < who.len() && who[column] != "CONNS");
    let mut text = String::new();
    for row in cells {
        let padded = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if is_name(column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn line(row: &Row) -> Vec<String> {
    let (rates, gauges) = (&row.rates, &row.gauges);
    let wait = match rates.mean_wait {
        _ if row.is_stuck() => "stuck".into(),
        Some((wait, _)) => Time((wait * 1e9) as u64).to_string(),
        None => "-".into(),
    };
    let who = match row.connection {
        Some(connection) => vec![
            row.process.clone(),
            connection.tgid.to_string(),
            connection.local.to_string(),
            connection.remote.to_string(),
        ],
        None => vec![row.process.clone(), row.service.clone(), row.gauges.sockets.to_string()],
    };
    let what = [
        Count(rates.received as u64).to_string(),
        Count(rates.read as u64).to_string(),
        Bytes(gauges.queue_bytes).to_string(),
        Bytes(gauges.used_bytes).to_string(),
        Bytes(gauges.limit_bytes).to_string(),
        Bytes(gauges.window_bytes).to_string(),
        wait,
        format!("{:.0}%", rates.timeslices.run_queue_wait * 100.0),
        format!("{:.0}", rates.drops),
        row.limit().to_string(),
    ];
    who.into_iter().chain(what).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::{
        fixture::{at, sample},
        rows::Rows,
    };

    fn rows() -> Rows {
        let mut rows = Rows::default();
        rows.update(at(1, sample(2)));
        let mut second = at(2, sample(2));
        second.socket_mut(1).totals.received_bytes = 5_000_000;
        second.socket_mut(1).totals.read_bytes = 5_000_000;
        second.socket_mut(1).totals.limited_ns = [250_000_000, 750_000_000, 0, 0, 0];
        rows.update(second);
        rows.sockets.sort_by(|a, b| a.subject.cmp(&b.subject));
        rows
    }

    #[test]
    fn the_table_is_aligned_and_has_a_line_for_each_row() {
        let rows = rows();
        let shown: Vec<_> = rows.sockets.iter().collect();
        let text = table(&shown);
        let lines: Vec<_> = text.lines().collect();
        let [heading, idle, busy] = lines[..] else { panic!("{text}") };
        assert!(
            heading.starts_with("PROCESS  PID   LOCAL          REMOTE               RECV/s  READ/s  QUEUE"),
            "{text}"
        );
        assert!(idle.starts_with("xrootd   4711  10.0.0.1:1094  192.168.100.7:40000       0       0      0"), "{text}");
        assert!(busy.starts_with("xrootd   4711  10.0.0.1:1094  192.168.100.7:40001    5.0M    5.0M      0"), "{text}");
        let place = heading.find("LIMITED BY").expect("a column");
        assert_eq!((&idle[place..], &busy[place..]), ("idle", "application 75%"));
        // The sender has stopped because nobody reads.
        let mut stuck = shown[0].clone();
        (stuck.gauges.queue_bytes, stuck.rates.limited) = (5000, [1.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(table(&[&stuck]).lines().nth(1).is_some_and(|line| line.ends_with("  nobody reads")));
        let text = json(&[&stuck]).expect("JSON");
        assert!(text.contains("\"stuck\":true,\"limited_by\":null"), "{text}");
        let groups: Vec<_> = rows.groups.iter().collect();
        assert_eq!(
            table(&groups).lines().next().map(|line| line.starts_with("PROCESS  SERVICE     CONNS")),
            Some(true)
        );
    }

    #[test]
    fn json_has_an_object_for_each_row_in_base_units() {
        let rows = rows();
        let shown: Vec<_> = rows.sockets.iter().collect();
        let text = json(&shown).expect("JSON");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        assert_eq!(lines.len(), 2);
        assert!(text.lines().all(|line| line.starts_with("{\"format_version\":1,")), "{text}");
        assert_eq!(lines[1]["received_bytes_per_second"], 5_000_000.0);
        assert_eq!(lines[1]["limited"]["application"], 0.75);
        assert_eq!((&lines[1]["remote_port"], &lines[1]["pid"]), (&40_001.into(), &4711.into()));
        assert_eq!(lines[0]["limited_by"], serde_json::Value::Null);
        let groups: Vec<_> = rows.groups.iter().collect();
        assert!(json(&groups).expect("JSON").contains("\"connections\":2"));
    }
}
