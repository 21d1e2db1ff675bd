//! System calls made by a thread of another program: what an attacker could do who has taken over that thread.
//!
//! The thread is stopped while it waits in the kernel, at a system call instruction or just behind it, and executes
//! that instruction once more with other registers.

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tcpmon_tests::eventually;

use super::common::DEADLINE;
use super::registers::{INSTRUCTION, Registers, position, result, set_call, stack};

/// The outcome of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel's answer; an error is below 0.
    Returned(i64),
    /// SIGSYS: the sandbox does not allow it.
    Refused,
}

/// An argument of a system call.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    Number(u64),
    /// A text in the thread's memory.
    Text(&'static str),
}

impl From<i64> for Argument {
    fn from(number: i64) -> Self {
        Self::Number(number.cast_unsigned())
    }
}

impl From<i32> for Argument {
    fn from(number: i32) -> Self {
        i64::from(number).into()
    }
}

impl From<&'static str> for Argument {
    fn from(text: &'static str) -> Self {
        Self::Text(text)
    }
}

/// A thread that has been taken over. Released unharmed when dropped.
pub struct Intruder {
    thread: Pid,
    /// The registers with which it is released.
    registers: Registers,
    /// The address of its system call instruction.
    instruction: u64,
}

impl Intruder {
    /// Takes over a thread as soon as it waits in the kernel.
    #[track_caller]
    pub fn in_thread(thread: i32) -> Self {
        let thread = Pid::from_raw(thread);
        eventually(DEADLINE, "the thread is in a system call", || {
            ptrace::seize(thread, ptrace::Options::empty()).expect("it may be traced");
            ptrace::interrupt(thread).expect("it is traced");
            let stopped = waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
            assert!(matches!(stopped, WaitStatus::PtraceEvent(..)), "{stopped:?}");
            let mut registers = ptrace::getregs(thread).expect("it is stopped");
            let at = *position(&mut registers);
            let is_call = |at: u64| {
                let code = ptrace::read(thread, at as ptrace::AddressType);
                code.is_ok_and(|code| code.to_ne_bytes().starts_with(INSTRUCTION))
            };
            let before = at - INSTRUCTION.len() as u64;
            if is_call(before) {
                return Ok(Self { thread, registers, instruction: before });
            }
            if is_call(at) {
                leave_call(thread, registers);
                return Ok(Self { thread, registers, instruction: at });
            }
            ptrace::detach(thread, None).expect("it is stopped");
            Err("it runs")
        })
    }

    /// Makes it execute a system call.
    #[track_caller]
    pub fn call(&self, number: i64, arguments: &[Argument]) -> Outcome {
        self.prepare(number, arguments);
        loop {
            ptrace::step(self.thread, None).expect("it is stopped");
            let stopped = waitpid(self.thread, Some(WaitPidFlag::__WALL)).expect("it stops again");
            let mut registers = ptrace::getregs(self.thread).expect("it is stopped");
            match stopped {
                // A refused call leaves the SIGTRAP of its single step behind.
                WaitStatus::Stopped(_, Signal::SIGTRAP) if *position(&mut registers) == self.instruction => {}
                WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                    return Outcome::Returned(result(&mut registers).cast_signed());
                }
                WaitStatus::Stopped(_, Signal::SIGSYS) => return Outcome::Refused,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Releases it, and makes it execute a system call by itself.
    #[track_caller]
    pub fn go_and_call(self, number: i64, arguments: &[Argument]) {
        self.prepare(number, arguments);
        ptrace::detach(self.thread, None).expect("it is stopped");
        std::mem::forget(self);
    }

    /// Sets the registers so that the thread continues with this call.
    fn prepare(&self, number: i64, arguments: &[Argument]) {
        let mut registers = self.registers;
        // Below the part of the stack that the thread uses.
        let mut free = stack(&registers) - 1024;
        let mut values = [0; 6];
        for (value, argument) in values.iter_mut().zip(arguments) {
            *value = match argument {
                Argument::Number(number) => *number,
                Argument::Text(text) => {
                    let at = free;
                    let bytes: Vec<u8> = text.bytes().chain([0; 8]).collect();
                    for word in bytes.chunks_exact(8) {
                        let word = i64::from_ne_bytes(word.try_into().expect("8 bytes"));
                        ptrace::write(self.thread, free as ptrace::AddressType, word).expect("its stack");
                        free += 8;
                    }
                    at
                }
            };
        }
        *position(&mut registers) = self.instruction;
        set_call(&mut registers, number.cast_unsigned(), values);
        ptrace::setregs(self.thread, registers).expect("it is stopped");
    }
}

/// Makes the thread leave the call that the kernel was about to restart: arm64 goes back to the instruction before it
/// stops the thread, and would still turn whatever call it finds there into `restart_syscall`.
fn leave_call(thread: Pid, mut registers: Registers) {
    *position(&mut registers) += INSTRUCTION.len() as u64;
    *result(&mut registers) = i64::from(-libc::EINTR).cast_unsigned();
    ptrace::setregs(thread, registers).expect("it is stopped");
    ptrace::step(thread, None).expect("it is stopped");
    let stopped = waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops again");
    assert!(matches!(stopped, WaitStatus::Stopped(_, Signal::SIGTRAP)), "{stopped:?}");
}

impl Drop for Intruder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // A refused call leaves the SIGTRAP of its single step behind, which would end the program.
            self.call(libc::SYS_getpid, &[]);
        }
        let _ = ptrace::setregs(self.thread, self.registers);
        let _ = ptrace::detach(self.thread, None);
    }
}
