//! A virtual machine: QEMU's process, its two serial ports, and how it ends.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::flood::Wires;
use crate::arch::Arch;

/// A virtual machine that runs tests for longer is killed. With two at a time, one that runs all tests takes ten
/// minutes, and twice as long on a slow host.
pub const LIMIT: Duration = Duration::from_secs(2_400);
/// Init is normally reached within 2 to 6 s; a virtual machine that has not reached it within this time never will.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

const MEMORY: &str = "1536M";

/// `nokaslr` and the rest save time that an emulated CPU does not have.
/// `norandmaps` saves most: QEMU caches translated code by its address, and with random addresses it translates every
/// program again at each start. `log_buf_len` keeps the log of a whole run. A panic ends the virtual machine at once,
/// which with `-no-reboot` ends QEMU. The RCU stall timeout is 90 s instead of 21 s: on a busy emulated CPU, a
/// low-priority thread such as `khugepaged` can stay preempted in an RCU reader for longer than that (seen on 7.2).
const COMMAND_LINE: &str = "quiet loglevel=4 panic=-1 mitigations=off nokaslr norandmaps \
                            no_timer_check tsc=reliable apparmor=0 selinux=0 audit=0 random.trust_cpu=on \
                            log_buf_len=4M rcupdate.rcu_cpu_stall_timeout=90";

/// QEMU's exit status is twice the code that the guest writes to its debug port, plus one. A machine without that port
/// is switched off; the last line of its results then has the verdict.
const GUEST_SUCCEEDED: i32 = 1;
const GUEST_FAILED: i32 = 3;

/// What to boot, and where its output goes.
#[derive(Debug)]
pub struct Machine {
    pub arch: Arch,
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    pub cpus: u32,
    /// It is killed after this time.
    pub limit: Duration,
    /// Output of the first serial port.
    pub console: PathBuf,
    /// Output of the second.
    pub results: PathBuf,
}

/// How a virtual machine ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// Init reports that all went well.
    Well,
    /// Init reports that something failed.
    Failed,
    /// It ended in another way, described here.
    Broken(String),
}

impl Machine {
    /// Boots it and waits until it ends. Tries once more if init was not reached, since no test has failed in that
    /// case.
    pub fn run(&self) -> Result<End> {
        for attempt in 1..=2 {
            match self.boot()? {
                Some(end) => return Ok(end),
                None => eprintln!("vm: attempt {attempt}: init did not start, see {}", self.console.display()),
            }
        }
        Ok(End::Broken("the machine never came up".into()))
    }

    /// `None` if init was not reached.
    fn boot(&self) -> Result<Option<End>> {
        let console = File::create(&self.console)?;
        File::create(&self.results)?;
        let wires = Wires::new()?;
        let mut qemu =
            Qemu(self.command().args(wires.arguments()).stdout(console.try_clone()?).stderr(console).spawn().context(
                "cannot run QEMU: run `cargo xtask setup`, or install the package qemu-system-x86 or qemu-system-arm",
            )?);
        let start = Instant::now();
        loop {
            if let Some(status) = qemu.0.try_wait()? {
                let results = fs::read_to_string(&self.results)?;
                let verdict = results.lines().last().and_then(|line| line.strip_prefix("end\t"));
                return Ok(self.came_up()?.then(|| match (status.code(), verdict) {
                    (Some(GUEST_SUCCEEDED), _) | (Some(0), Some("well")) => End::Well,
                    (Some(GUEST_FAILED), _) | (Some(0), Some("failed")) => End::Failed,
                    (Some(0), _) => End::Broken("the guest's kernel panicked".into()),
                    _ => End::Broken(format!("QEMU ended with {status}")),
                }));
            }
            let elapsed = start.elapsed();
            if elapsed > BOOT_LIMIT && !self.came_up()? {
                return Ok(None);
            }
            if elapsed > self.limit {
                return Ok(Some(End::Broken(format!("killed after {} s", self.limit.as_secs()))));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn came_up(&self) -> Result<bool> {
        Ok(fs::metadata(&self.results)?.len() > 0)
    }

    fn command(&self) -> Command {
        let mut qemu = self.arch.qemu();
        // More CPUs are possible than there are, as on hosts whose firmware or hypervisor has room for more: in sockets
        // of their own, because Linux does not believe that a CPU can be added to a socket that has one.
        let cpus = match self.arch {
            Arch::X86_64 => format!("{0},maxcpus={1},sockets={1},cores=1,threads=1", self.cpus, self.cpus + 2),
            Arch::Arm64 => self.cpus.to_string(),
        };
        qemu.args(["-m", MEMORY, "-smp", &cpus])
            .args(["-append", &format!("console={} {COMMAND_LINE}", self.arch.console())])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initramfs)
            .arg("-chardev")
            .arg(file_port(&self.results))
            .stdin(Stdio::null());
        qemu
    }
}

/// Killed when dropped, by its process id.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        // An error means that it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn file_port(path: &Path) -> std::ffi::OsString {
    let mut port = std::ffi::OsString::from("file,id=results,path=");
    port.push(path);
    port
}

/// The output of a failed test, extracted from the output of the first port.
pub fn words_of(console: &str, binary: &str, name: &str) -> Option<String> {
    let (begin, end) = (format!("<<< {binary} {name}"), format!(">>> {binary} {name}"));
    let console = console.replace('\r', "");
    let words = console.split_once(&begin)?.1;
    Some(words.split_once(&end).map_or(words, |(words, _)| words).trim().to_owned())
}

/// Makes sure that QEMU is installed.
pub fn check() -> Result<()> {
    match Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        _ => bail!("qemu-system-x86_64 is missing: install the package qemu-system-x86"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_tests_words_are_cut_out_of_the_console() {
        let console = "[1.0] boot\r\n<<< bytes one\r\nleft: 1\r\n>>> bytes one\r\n<<< bytes two\r\nright\r\n";
        assert_eq!(words_of(console, "bytes", "one").as_deref(), Some("left: 1"));
        assert_eq!(words_of(console, "bytes", "two").as_deref(), Some("right"));
        assert_eq!(words_of(console, "bytes", "three"), None);
    }
}
