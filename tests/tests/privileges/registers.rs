//! The registers that hold a system call's number, arguments and result.

pub use libc::user_regs_struct as Registers;

#[cfg(target_arch = "x86_64")]
mod of_this_architecture {
    use super::Registers;

    /// `syscall`.
    pub const INSTRUCTION: &[u8] = &[0x0f, 0x05];

    pub fn position(registers: &mut Registers) -> &mut u64 {
        &mut registers.rip
    }

    pub fn stack(registers: &Registers) -> u64 {
        registers.rsp
    }

    pub fn result(registers: &mut Registers) -> &mut u64 {
        &mut registers.rax
    }

    pub fn set_call(registers: &mut Registers, number: u64, arguments: [u64; 6]) {
        registers.rax = number;
        // Otherwise the kernel would first restart the call in which the thread was.
        registers.orig_rax = u64::MAX;
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9] = arguments;
    }
}

#[cfg(target_arch = "aarch64")]
mod of_this_architecture {
    use super::Registers;

    /// `svc #0`.
    pub const INSTRUCTION: &[u8] = &[0x01, 0x00, 0x00, 0xd4];

    pub fn position(registers: &mut Registers) -> &mut u64 {
        &mut registers.pc
    }

    pub fn stack(registers: &Registers) -> u64 {
        registers.sp
    }

    pub fn result(registers: &mut Registers) -> &mut u64 {
        &mut registers.regs[0]
    }

    pub fn set_call(registers: &mut Registers, number: u64, arguments: [u64; 6]) {
        registers.regs[8] = number;
        registers.regs[..6].copy_from_slice(&arguments);
    }
}

pub use of_this_architecture::{INSTRUCTION, position, result, set_call, stack};
