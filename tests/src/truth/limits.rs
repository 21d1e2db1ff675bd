//! Refused memory, from the kernel's own trace: the event `sock:sock_exceed_buf_limit`, with one line per refusal.

use super::Trace;

/// Refusals since tracing started.
#[derive(Debug)]
pub struct LimitTrace(Trace);

impl LimitTrace {
    /// Starts to trace.
    #[track_caller]
    pub fn start() -> Self {
        Self(Trace::start("sock/sock_exceed_buf_limit"))
    }

    /// Refusals for TCP sockets so far: to send, and to receive.
    #[track_caller]
    pub fn counts(&self) -> [u64; 2] {
        count(&self.0.lines())
    }
}

fn count(lines: &[String]) -> [u64; 2] {
    ["kind=SK_MEM_SEND", "kind=SK_MEM_RECV"].map(|kind| {
        let refused = |line: &&String| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            words.contains(&kind) && (words.contains(&"proto:TCP") || words.contains(&"proto:TCPv6"))
        };
        lines.iter().filter(refused).count() as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tcp_are_counted_by_kind() {
        let line = |protocol, kind| format!("x-1 [0] ..s. 1.2: sock_exceed_buf_limit: proto:{protocol} kind={kind}");
        let lines = [
            line("TCP", "SK_MEM_SEND"),
            line("TCPv6", "SK_MEM_RECV"),
            line("TCP", "SK_MEM_RECV"),
            line("UDP", "SK_MEM_RECV"),
        ];
        assert_eq!(count(&lines), [1, 2]);
    }
}
