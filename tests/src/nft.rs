//! Runs `nft` to drop segments on arrival, and to hand them to a transparent proxy.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::lab::{End, Lab};
use crate::must;

impl Lab {
    /// Drops every `n`th TCP data segment (of the size in which the stack hands it up) that reaches the receiver, so
    /// that those behind it arrive out of order. The rule disappears with the lab.
    pub fn drop_every(&self, n: u32) {
        let rules = format!(
            "add table inet tcpmon\n\
             add counter inet tcpmon dropped\n\
             add chain inet tcpmon inbound {{ type filter hook prerouting priority -300; }}\n\
             add rule inet tcpmon inbound meta l4proto tcp meta length > 200 numgen inc mod {n} 0 counter name \
             dropped drop\n"
        );
        nft(self.receiver(), &["-f", "-"], &rules);
    }

    /// Drops every IPv4 TCP segment with exactly this many bytes of payload that reaches the receiver, including
    /// retransmissions, until [`Lab::drop_nothing`]. Until then, data sent behind it have to wait.
    pub fn drop_payload_of(&self, bytes: u32) {
        const HEADERS: u32 = 20 + 32; // IPv4, and TCP with timestamps
        let rules = format!(
            "add table inet tcpmon\n\
             add chain inet tcpmon inbound {{ type filter hook prerouting priority -300; }}\n\
             add rule inet tcpmon inbound meta l4proto tcp meta length {} drop\n",
            HEADERS + bytes
        );
        nft(self.receiver(), &["-f", "-"], &rules);
    }

    /// Drops every TCP segment that reaches the receiver: it neither receives nor acknowledges any more, and the
    /// connections stall.
    pub fn drop_all(&self) {
        let rules = "add table inet tcpmon\n\
                     add chain inet tcpmon inbound { type filter hook prerouting priority -300; }\n\
                     add rule inet tcpmon inbound meta l4proto tcp drop\n";
        nft(self.receiver(), &["-f", "-"], rules);
    }

    /// Hands every IPv4 connection to the receiver, whatever its port, to the transparent listening socket on `port`.
    pub fn proxy_to(&self, port: u16) {
        let receiver = self.receiver();
        for arguments in [
            &["rule", "add", "fwmark", "1", "lookup", "100"][..],
            &["route", "add", "local", "default", "dev", "lo", "table", "100"],
        ] {
            let status =
                must(receiver.command("ip").args(arguments).status(), "starting ip (apt-get install iproute2)");
            assert!(status.success(), "ip {arguments:?}: {status}");
        }
        let rules = format!(
            "add table ip tcpmon\n\
             add chain ip tcpmon inbound {{ type filter hook prerouting priority mangle; }}\n\
             add rule ip tcpmon inbound meta l4proto tcp tproxy to :{port} meta mark set 1 accept\n"
        );
        nft(receiver, &["-f", "-"], &rules);
    }

    /// Removes the rules.
    pub fn drop_nothing(&self) {
        nft(self.receiver(), &["delete", "table", "inet", "tcpmon"], "");
    }

    /// Number of segments that [`Lab::drop_every`] has dropped.
    pub fn dropped(&self) -> u64 {
        let answer = nft(self.receiver(), &["-j", "list", "counter", "inet", "tcpmon", "dropped"], "");
        let answer: serde_json::Value = must(serde_json::from_slice(&answer), "reading nft's answer");
        let counters = answer["nftables"].as_array().expect("nft -j answers with an array");
        counters
            .iter()
            .find_map(|item| item["counter"]["packets"].as_u64())
            .expect("nft lists the counter it was asked for")
    }
}

fn nft(end: &End, arguments: &[&str], input: &str) -> Vec<u8> {
    let mut command: Command = end.command("nft");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = must(command.spawn(), "starting nft (apt-get install nftables)");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    must(stdin.write_all(input.as_bytes()), "writing to nft");
    drop(stdin);
    let output = must(child.wait_with_output(), "waiting for nft");
    assert!(output.status.success(), "nft {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
