//! The addresses and sockets on which the endpoint listens.

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use tcpmon_tests::{Daemon, Killed, Namespace, tcpmon_binary};

use crate::curl::{curl, is_a_page};

#[test]
fn a_bare_port_answers_on_ipv4_where_ipv6_sockets_are_for_ipv6_alone() {
    let namespace = Namespace::new();
    namespace.set_sysctl("net.ipv6.bindv6only", "1");
    namespace.run(|| {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.is_ok_and(|status| status.success()), "ip is installed (package iproute2)");
    });
    let daemon = Daemon::start_in(&namespace, &["--web.listen-address", ":10793"]);
    assert_eq!(daemon.get("/healthz", "").status, 200);
    for address in ["127.0.0.1:10793", "[::1]:10793"] {
        let connected = namespace.run(|| TcpStream::connect(address));
        assert!(connected.is_ok(), "{address}: {connected:?}");
    }
}

#[test]
fn addresses_on_a_link_and_names_answer() {
    let namespace = Namespace::new();
    namespace.run(|| {
        for arguments in ["link set lo up", "address add fe80::7/64 dev lo nodad"] {
            let done = Command::new("ip").args(arguments.split(' ')).status();
            assert!(done.is_ok_and(|status| status.success()), "ip {arguments}");
        }
    });
    let listen = ["[fe80::7%lo]:10794", "[fe80::7%1]:10795", "localhost:10796"];
    let arguments: Vec<_> = listen.iter().flat_map(|address| ["--web.listen-address", address]).collect();
    let _daemon = Daemon::start_in(&namespace, &arguments);
    for url in ["http://[fe80::7%25lo]:10794", "http://[fe80::7%251]:10795", "http://localhost:10796"] {
        let answer = namespace.run(|| curl(Command::new("curl").args(["--globoff", &format!("{url}/healthz")])));
        assert_eq!(answer.status, 200, "{url}: {}", answer.error);
    }
}

#[test]
fn a_socket_of_systemd_is_served_and_nothing_else() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The shell puts the socket where systemd would put it; exec keeps the process id.
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" daemon --web.systemd-socket";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(tcpmon_binary()).stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)));
    let daemon = Killed(command.spawn().unwrap());
    drop(command);
    is_a_page(&curl(Command::new("curl").arg(format!("http://{address}/metrics"))));
    let listening = Command::new("ss").args(["-Hltnp"]).output().expect("ss is installed by `cargo xtask test`");
    let listening = String::from_utf8_lossy(&listening.stdout).into_owned();
    let own: Vec<_> = listening.lines().filter(|line| line.contains(&format!("pid={},", daemon.id()))).collect();
    assert!(own.len() == 1 && own[0].contains(&address.to_string()), "{own:?}");
}

#[test]
fn without_a_socket_of_systemd_there_is_an_error_that_says_what_to_do() {
    let mut command = Command::new(tcpmon_binary());
    let output = command.args(["daemon", "--web.systemd-socket"]).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("LISTEN_FDS") && stderr.contains("--web.systemd-socket"), "{stderr}");
    // Descriptor 3 is open, but nobody can connect to it.
    let script = "exec 3</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" daemon --web.systemd-socket";
    let output = Command::new("sh").args(["-c", script]).arg(tcpmon_binary()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("descriptor 3") && stderr.contains("ListenStream"), "{stderr}");
}
