//! Unnamed network namespaces.
//!
//! A [`Namespace`] is an open file descriptor: the kernel removes the namespace, with its devices, sysctls and rules,
//! once the last descriptor is closed and the last process in it has ended. So nothing can be left over, however a run
//! ends. To look into one by hand, run `nsenter --net=/proc/PID/fd/FD`; the `Debug` output of [`Namespace`] shows both
//! numbers.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::panic;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::{must, sysctl};

/// A network namespace. It lives as long as its clones and the processes in it.
#[derive(Clone, Debug)]
pub struct Namespace {
    file: Arc<File>,
}

impl Namespace {
    /// Creates an empty namespace (its loopback device is down).
    pub fn new() -> Self {
        let file = thread::scope(|scope| {
            let made = scope.spawn(|| {
                must(unshare(CloneFlags::CLONE_NEWNET), "making a network namespace (run as root)");
                current_file()
            });
            made.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        });
        Self { file: Arc::new(file) }
    }

    /// The namespace of the calling thread: usually the host's.
    pub fn current() -> Self {
        Self { file: Arc::new(current_file()) }
    }

    /// The namespace behind a file such as `/proc/PID/ns/net`.
    pub fn open(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let file = must(File::open(path), format!("opening namespace {}", path.display()));
        Self { file: Arc::new(file) }
    }

    /// Runs `job` on a separate thread inside this namespace and returns its result; a panic is passed on.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                must(setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET), "entering a network namespace (run as root)");
                job()
            });
            inside.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        })
    }

    /// A command that starts inside this namespace and is killed when the thread that spawned it ends, so spawn it on
    /// the test's thread. (Its `/sys` still shows the host's devices.)
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        self.start_inside(&mut command, true);
        command
    }

    /// Makes `command` start inside this namespace and, if requested, die with the spawning thread.
    #[expect(unsafe_code, reason = "pre_exec is the only way to run setns between fork and exec")]
    pub(crate) fn start_inside(&self, command: &mut Command, die_with_thread: bool) {
        let file = Arc::clone(&self.file);
        // SAFETY: the closure runs in the child of a fork and only makes the system calls setns and prctl. It allocates
        // nothing and takes no lock, and the descriptor is open as long as the closure owns it.
        unsafe {
            command.pre_exec(move || {
                setns(file.as_fd(), CloneFlags::CLONE_NEWNET)?;
                if die_with_thread {
                    set_pdeathsig(Signal::SIGKILL)?;
                }
                Ok(())
            });
        }
    }

    /// Reads a sysctl of this namespace, for example `net.ipv4.tcp_rmem`.
    pub fn sysctl(&self, name: &str) -> String {
        self.run(|| sysctl::read(name))
    }

    /// Sets a sysctl of this namespace; the setting disappears with the namespace.
    pub fn set_sysctl(&self, name: &str, value: &str) {
        self.run(|| sysctl::write(name, value));
    }

    /// Writes a file below `/sys/class/net/DEVICE/`, for example `threaded`.
    pub fn set_device_attribute(&self, device: &str, attribute: &str, value: &str) {
        self.with_own_sys(|| {
            let path = format!("/sys/class/net/{device}/{attribute}");
            must(std::fs::write(&path, value), format!("writing {value:?} to {path}"));
        });
    }

    /// Runs `job` like [`Namespace::run`], with this namespace's devices in `/sys/class/net`.
    pub fn with_own_sys<T: Send>(&self, job: impl FnOnce() -> T + Send) -> T {
        self.run(|| {
            let (none, nothing) = (None::<&str>, MsFlags::empty());
            must(unshare(CloneFlags::CLONE_NEWNS), "making a mount namespace");
            must(
                mount(none, "/sys", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none),
                "making /sys private (it must be mounted)",
            );
            must(mount(Some("sysfs"), "/sys", Some("sysfs"), nothing, none), "mounting sysfs");
            job()
        })
    }

    /// The path with which another process can open this namespace while this process lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn current_file() -> File {
    must(File::open("/proc/thread-self/ns/net"), "opening this thread's network namespace")
}
