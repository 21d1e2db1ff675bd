//! A trace in separate namespaces, as in a container.

use tcpmon_tests::{Cgroup, Lab, Trace, Traffic, eventually};

use crate::common::{DEADLINE, sender};

#[test]
fn a_pid_namespace_refuses_numbers_and_traces_names() {
    let container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let lab = Lab::new();
    let reader = Traffic::reader(lab.receiver()).comm("contained").spawn();
    // In that namespace, process 1 is tcpmon itself.
    let refused = Trace::run_under(&container, &["--pid", "1", "--duration", "1ms"], DEADLINE);
    assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr);
    assert_eq!(
        refused.stderr,
        "tcpmon: --pid 1: tcpmon runs in a PID namespace of its own, in which process ids differ from those of the \
         host: run it in the PID namespace of the host (docker run --pid=host, hostPID: true), or filter by --comm, \
         --cgroup or --port\n"
    );
    let trace = Trace::start_under(&container, &["--comm", "contained"]);
    sender(&lab, &reader).bytes(50_000).spawn().wait();
    reader.wait();
    let read = || {
        let slices = trace.records().into_iter().filter(|record| record["type"] == "timeslice");
        // Records have the host's process ids.
        slices
            .filter(|slice| slice["tgid"] == reader.pid())
            .filter_map(|slice| slice["read_bytes"].as_u64())
            .sum::<u64>()
    };
    eventually(DEADLINE, "all bytes in the records", || if read() == 50_000 { Ok(()) } else { Err(read()) });
}

#[test]
fn a_control_group_namespace_refuses_paths() {
    let group = Cgroup::new("namespace");
    let (inside, root) = (group.path().to_str().unwrap(), group.path().parent().unwrap().to_str().unwrap());
    // The control group becomes the root that the process sees, as in a container.
    let enter = format!(r#"echo $$ >{inside}/cgroup.procs && exec unshare --cgroup --mount sh -c "$0" "$@""#);
    // The kernel does not mount a file system over itself.
    let mount = format!(r#"mount -t tmpfs none {root} && mount -t cgroup2 none {root} && exec "$0" "$@""#);
    let refused = Trace::run_under(&["sh", "-c", &enter, &mount], &["--cgroup", "/", "--duration", "1ms"], DEADLINE);
    assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr);
    assert_eq!(
        refused.stderr,
        format!(
            "tcpmon: --cgroup /: {root} is not the root control group of the host, from which the eBPF programs \
             determine the depth of a control group: run tcpmon in the cgroup namespace of the host (docker run \
             --cgroupns=host), or filter by --comm or --port\n"
        )
    );
}
