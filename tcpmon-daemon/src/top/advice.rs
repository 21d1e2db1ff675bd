//! One sentence about a row: what limits it, the number that shows it, and what to look at.

use tcpmon_trace::{
    scale::{Bytes, Rate, Time},
    summary::{LARGEST_WINDOW, causes},
};

use super::rows::Row;

/// The advice about this row.
pub fn advice(row: &Row) -> String {
    let rates = &row.rates;
    if rates.seconds == 0.0 {
        return "not known yet: two samples are needed".into();
    }
    if row.is_stuck() {
        return format!(
            "stuck: {} of data waits and nobody reads it; look at what the reader does (cat /proc/PID/stack, \
             strace -p)",
            Bytes(row.gauges.queue_bytes)
        );
    }
    let Some((cause, share)) = rates.limited_by().filter(|_| rates.received > 0.0 || rates.mean_queue > 0.0) else {
        return "idle: nothing was received".into();
    };
    let rate = Rate { bytes: rates.received as u64, ns: 1_000_000_000 };
    let slices = &rates.timeslices;
    let computed = slices.computed();
    let window = row.gauges.window_bytes / row.gauges.sockets.max(1);
    let what = match causes()[cause] {
        // A reader that waits for a CPU for at least a tenth of the time that it runs shares its CPUs.
        "application" if computed == Some(true) && slices.run_queue_wait >= slices.on_cpu / 10.0 => format!(
            "data fills the buffer while the reader computes ({:.2} CPUs) and waits {:.2} s a second for a CPU: make \
             it faster, or give it CPUs of its own; more threads would only share the same ones",
            slices.on_cpu, slices.run_queue_wait
        ),
        "application" if computed == Some(true) => format!(
            "data fills the buffer while the reader computes ({:.2} CPUs): make it faster, or read in more threads \
             while CPUs are idle",
            slices.on_cpu
        ),
        "application" if computed.is_none() => {
            "data fills the buffer; whether the reader computes or sleeps meanwhile is not known yet".into()
        }
        "application" => "data fills the buffer while the reader does something else: find out what it waits for \
                          (a disk, a lock, another connection)"
            .into(),
        "scheduler" => format!(
            "the reader waits {:.2} s a second for a CPU: give it a core, a larger weight, or more CPU quota",
            slices.run_queue_wait
        ),
        "window" if window >= LARGEST_WINDOW.into() => format!(
            "{rate} is all that TCP's largest window, {}, allows{}: no receive buffer makes it larger; use several \
             connections",
            Bytes(window),
            round_trip(row),
        ),
        "window" => format!(
            "{rate} is all that the window of {} allows{}: allow a receive buffer larger than {} (net.ipv4.tcp_rmem, \
             or SO_RCVBUF where the program sets it)",
            Bytes(window),
            round_trip(row),
            Bytes(row.gauges.limit_bytes / row.gauges.sockets.max(1)),
        ),
        "memory" => {
            "the kernel keeps the window small because memory is short: raise net.ipv4.tcp_mem, or the memory limit \
                     of the control group"
                .into()
        }
        _ => format!("the sender or the path is the limit, at {rate}: look there (ss -ti: cwnd, app_limited)"),
    };
    format!("{} {:.0} %: {what}", causes()[cause], share * 100.0)
}

fn round_trip(row: &Row) -> String {
    let known = row.connection.filter(|connection| connection.round_trip > 0.0);
    known.map_or_else(String::new, |connection| format!(" over {}", Time((connection.round_trip * 1e9) as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::{
        fixture::{at, sample},
        rows::Rows,
    };

    fn says(change: impl Fn(&mut Row)) -> String {
        let mut rows = Rows::default();
        rows.update(at(1, sample(1)));
        rows.update(at(2, sample(1)));
        let mut row = rows.sockets.remove(0);
        row.rates.received = 1_000_000.0;
        row.rates.read = 1_000_000.0;
        change(&mut row);
        advice(&row)
    }

    #[test]
    fn each_cause_has_its_sentence() {
        let limited = |cause: usize| move |row: &mut Row| row.rates.limited[cause] = 1.0;
        assert!(says(limited(0)).starts_with("upstream 100 %: the sender or the path is the limit, at 8.00Mbit/s"));
        assert!(says(limited(1)).contains("while the reader does something else"));
        assert!(says(limited(2)).contains("the reader waits 0.00 s a second for a CPU"));
        assert!(
            says(limited(3)).contains("the window of 64K allows over 40ms: allow a receive buffer larger than 128K")
        );
        assert!(says(limited(4)).contains("because memory is short"));
        let computes = says(|row| {
            row.rates.limited = [0.0, 0.9, 0.1, 0.0, 0.0];
            row.rates.timeslices.on_cpu = 0.97;
        });
        assert_eq!(
            computes,
            "application 90 %: data fills the buffer while the reader computes (0.97 CPUs): make it faster, or read in \
             more threads while CPUs are idle"
        );
        let new = says(|row| {
            row.rates.limited[1] = 1.0;
            (row.rates.timeslices.on_cpu, row.rates.timeslices.unknown) = (0.04, 0.96);
        });
        assert!(new.ends_with("computes or sleeps meanwhile is not known yet"), "{new}");
        let beside_others = says(|row| {
            row.rates.limited = [0.0, 0.6, 0.4, 0.0, 0.0];
            (row.rates.timeslices.on_cpu, row.rates.timeslices.run_queue_wait) = (0.58, 0.4);
        });
        let expected =
            "the reader computes (0.58 CPUs) and waits 0.40 s a second for a CPU: make it faster, or give it";
        assert!(beside_others.contains(expected) && !beside_others.contains("read in more"), "{beside_others}");
        let largest = says(|row| {
            row.rates.limited[3] = 1.0;
            row.gauges.window_bytes = 1 << 30;
        });
        assert!(largest.contains("TCP's largest window, 1.0G") && largest.contains("several"), "{largest}");
        let stuck = says(|row| (row.rates.read, row.gauges.queue_bytes) = (0.0, 4096));
        assert!(stuck.starts_with("stuck: 4.0K of data waits and nobody reads it"), "{stuck}");
        assert_eq!(says(|row| row.rates.received = 0.0), "idle: nothing was received");
        assert_eq!(says(|row| row.rates.seconds = 0.0), "not known yet: two samples are needed");
    }
}
