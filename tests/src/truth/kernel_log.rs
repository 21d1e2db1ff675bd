//! Kernel log messages that must never appear while tcpmon runs.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

const ALARMS: [&str; 9] = [
    "WARNING:",
    "BUG:",
    "Oops",
    "general protection fault",
    "kernel panic",
    "soft lockup",
    "self-detected stall",
    "detected stalls on CPUs",
    "blocked for more than",
];

/// Lines of the kernel log that report a bug, a warning or a stall.
pub fn kernel_alarms() -> io::Result<Vec<String>> {
    let mut log = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")?;
    let mut lines = Vec::new();
    // A read returns one record, which has at most this length.
    let mut record = [0; 8192];
    loop {
        match log.read(&mut record) {
            Ok(length) => lines.extend(alarm(&String::from_utf8_lossy(&record[..length]))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(lines),
            // Records were overwritten before they were read. The ring is large enough for a run, so this has to be
            // reported.
            Err(error) => lines.push(format!("the kernel's log: {error}")),
        }
    }
}

/// The message of a record (`priority,sequence,time,flags;message`), if it is an alarm.
fn alarm(record: &str) -> Option<String> {
    let (_, message) = record.split_once(';')?;
    let message = message.lines().next()?;
    ALARMS.iter().any(|alarm| message.contains(alarm)).then(|| message.replace('\t', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_warnings_and_stalls_are_alarms_and_other_words_are_not() {
        assert_eq!(
            alarm("4,600,100,-;WARNING: CPU: 0 PID: 1 at net/x.c:1\n SUBSYSTEM=x\n").as_deref(),
            Some("WARNING: CPU: 0 PID: 1 at net/x.c:1")
        );
        for message in ["rcu: INFO: rcu_preempt self-detected stall on CPU", "BUG: kernel NULL pointer dereference"] {
            assert_eq!(alarm(&format!("3,1,1,-;{message}")).as_deref(), Some(message));
        }
        assert_eq!(alarm("6,1,1,-;Debug: all is well"), None);
        assert_eq!(alarm("no record"), None);
    }
}
