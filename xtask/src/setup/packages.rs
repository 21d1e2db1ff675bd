//! The system packages that the tests, the demo and the benchmarks use.

use std::{
    env, fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::process;

/// A program, and the Debian package that contains it.
const PROGRAMS: [(&str, &str); 21] = [
    ("iperf3", "iperf3"),
    ("ip", "iproute2"),
    ("ss", "iproute2"),
    ("sysctl", "procps"),
    ("free", "procps"),
    ("ethtool", "ethtool"),
    ("nft", "nftables"),
    ("bpftool", "bpftool"),
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("prometheus-alertmanager", "prometheus-alertmanager"),
    ("curl", "curl"),
    ("strace", "strace"),
    // For the pages of `tcpmon report`, and the screen of `tcpmon top`.
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    ("fc-match", "fontconfig"),
    ("tmux", "tmux"),
    // For the virtual machines of `cargo xtask vm`, and to unpack their kernels.
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("strip", "binutils"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
];

/// The programs that build and try packages, and their packages.
const DIST: [(&str, &str); 5] =
    [("cpio", "cpio"), ("mmdebstrap", "mmdebstrap"), ("objcopy", "binutils"), ("rpmbuild", "rpm"), ("umoci", "umoci")];

/// The programs that draw the dashboards, with a font, and their packages.
const PICTURES: [(&str, &str); 2] = [("chromium", "chromium"), ("npm", "npm")];

/// The runtimes of the programs that read traces, and their packages.
const FORMATS: [(&str, &str); 3] = [("java", "default-jre-headless"), ("node", "nodejs"), ("npm", "npm")];

/// The compiler of libFuzzer, and its package.
const FUZZ: [(&str, &str); 1] = [("c++", "g++")];

/// The cross compiler and the emulator for arm64, and their packages.
const ARM64: [(&str, &str); 2] =
    [("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"), ("qemu-system-aarch64", "qemu-system-arm")];

/// The programs that the benchmark compares with, and their packages.
const PEERS: [(&str, &str); 3] = [("bpftrace", "bpftrace"), ("redis-server", "redis-server"), ("nginx", "nginx")];

/// What Rezolus is built with. The libraries have no program to look for.
const REZOLUS: [&str; 4] = ["clang", "libelf-dev", "zlib1g-dev", "pkg-config"];

/// Packages that start a service of that name.
const SERVICES: [&str; 4] = ["prometheus", "prometheus-alertmanager", "redis-server", "nginx"];

/// Installs the packages for the integration tests, the demo and the benchmarks, if they are missing.
pub fn test_packages() -> Result<()> {
    let missing = missing_packages();
    if missing.is_empty() {
        eprintln!("setup: the packages for the tests are installed");
        return Ok(());
    }
    eprintln!("setup: installing {}", missing.join(", "));
    let list = missing.join(" ");
    install(&missing)?;
    let still_missing = missing_packages();
    if !still_missing.is_empty() {
        bail!("installed {list}, but their programs are not on PATH: {}", still_missing.join(", "));
    }
    Ok(())
}

/// Installs the compiler of libFuzzer, if it is missing.
pub fn fuzz_packages() -> Result<()> {
    let missing = missing(&FUZZ);
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

/// Installs the cross compiler and the emulator for arm64, if they are missing.
pub(super) fn arm64_packages() -> Result<()> {
    let missing = missing(&ARM64);
    // The library has no program to look for.
    if missing.is_empty() { Ok(()) } else { install(&[missing, vec!["libc6-dev-arm64-cross"]].concat()) }
}

/// Installs the programs that the benchmark compares with, if they are missing.
pub(super) fn peer_packages() -> Result<()> {
    let missing = missing(&PEERS);
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

/// Installs what Rezolus is built with.
pub(super) fn rezolus_packages() -> Result<()> {
    install(&REZOLUS)
}

/// Installs the programs that draw the dashboards, if they are missing.
pub fn picture_packages() -> Result<()> {
    let missing = missing(&PICTURES);
    if missing.is_empty() { Ok(()) } else { install(&[missing, vec!["fonts-dejavu-core"]].concat()) }
}

/// Installs the runtimes of the programs that read traces, if they are missing.
pub(super) fn format_packages() -> Result<()> {
    let missing = missing(&FORMATS);
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

/// Installs the programs that build and try packages, if they are missing.
pub fn dist_packages() -> Result<()> {
    let missing = missing(&DIST);
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

/// The packages of the programs that are not on `PATH`.
fn missing(programs: &[(&str, &'static str)]) -> Vec<&'static str> {
    programs.iter().filter(|(program, _)| !on_path(program)).map(|(_, package)| *package).collect()
}

/// Installs packages, and stops the services that they start.
fn install(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    let daemons_before: Vec<Vec<u32>> = SERVICES.iter().map(|service| processes(service)).collect();
    process::run(&mut apt_get(&["-qq", "update"]))
        .and_then(|()| {
            process::run(
                apt_get(&["-qq", "-o", "Dpkg::Use-Pty=0"])
                    .args(["install", "-y", "--no-install-recommends"])
                    .args(packages),
            )
        })
        .with_context(|| format!("cannot install packages: as root, run `apt-get install {list}`"))?;
    for (service, before) in SERVICES.iter().zip(&daemons_before) {
        if packages.contains(service) {
            stop(service, before)?;
        }
    }
    Ok(())
}

fn missing_packages() -> Vec<&'static str> {
    let mut packages = missing(&PROGRAMS);
    packages.dedup();
    // This package has no program of its own to look for.
    if !Command::new("python3")
        .args(["-c", "import ensurepip, venv"])
        .output()
        .is_ok_and(|output| output.status.success())
    {
        packages.push("python3-venv");
    }
    packages
}

/// Some shells do not have the administrator's folders in `PATH`.
fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).any(|folder| folder.join(program).is_file())
}

fn apt_get(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// The tests start these services where they need them, but the packages also start them if an init system lets them.
fn stop(service: &str, before: &[u32]) -> Result<()> {
    let runs = || processes(service).iter().any(|pid| !before.contains(pid));
    if Path::new("/run/systemd/system").is_dir() {
        process::run(Command::new("systemctl").args(["disable", "--now", service]))?;
    } else if runs() {
        process::run(Command::new("service").args([service, "stop"]))?;
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while runs() {
        if Instant::now() >= deadline {
            bail!("the package {service} started its daemon, which could not be stopped: stop it");
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Processes with this name, of which the kernel keeps only 15 bytes.
fn processes(name: &str) -> Vec<u32> {
    let comm: String = name.chars().take(15).collect();
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            (name.trim_end() == comm).then_some(pid)
        })
        .collect()
}
