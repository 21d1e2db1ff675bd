//! A page of memory that is not there until it is let go of: whoever copies from it waits, in the kernel as well, and
//! holds its locks meanwhile.
#![expect(unsafe_code, reason = "memory that is mapped, and system calls that no crate here wraps")]

use std::io::{self, Error};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::must;

/// `linux/userfaultfd.h`.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

/// A size that each architecture's pages divide or have.
const BYTES: usize = 64 << 10;

/// The page.
#[derive(Debug)]
pub struct HeldPage {
    address: usize,
}

/// Holds the page back until it is dropped.
#[derive(Debug)]
pub struct Hold(OwnedFd);

impl HeldPage {
    /// A page that is held back.
    #[track_caller]
    pub fn new() -> (Self, Hold) {
        must(Self::try_new(), "userfaultfd(2)")
    }

    fn try_new() -> io::Result<(Self, Hold)> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: nothing else is mapped where the kernel chooses.
        let address = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, kind, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let page = Self { address: address as usize };
        // SAFETY: it takes no pointer.
        let number = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if number < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: it was opened just now, for this.
        let hold = Hold(unsafe { OwnedFd::from_raw_fd(number as i32) });
        // struct uffdio_api: api, features, ioctls.
        hold.request(UFFDIO_API, &mut [UFFD_API, 0, 0])?;
        // struct uffdio_register: start, len, mode, ioctls.
        let (start, length) = (page.address as u64, BYTES as u64);
        hold.request(UFFDIO_REGISTER, &mut [start, length, UFFDIO_REGISTER_MODE_MISSING, 0])?;
        Ok((page, hold))
    }

    /// Sends the page, and waits until it is let go of. Returns how many bytes were sent.
    ///
    /// # Errors
    /// The system's.
    pub fn send_to(&self, socket: &TcpStream) -> io::Result<usize> {
        let address = ptr::with_exposed_provenance(self.address);
        // SAFETY: so many bytes are mapped there until this is dropped.
        let sent = unsafe { libc::send(socket.as_raw_fd(), address, 1_000, libc::MSG_NOSIGNAL) };
        usize::try_from(sent).map_err(|_| Error::last_os_error())
    }
}

impl Drop for HeldPage {
    fn drop(&mut self) {
        // SAFETY: it was mapped by this, and nobody else knows of it.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.address), BYTES) };
    }
}

impl Hold {
    fn request<const WORDS: usize>(&self, request: libc::Ioctl, argument: &mut [u64; WORDS]) -> io::Result<()> {
        // SAFETY: the argument has the size that is a part of the request.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument.as_mut_ptr()) };
        if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
    }

    /// Whether somebody waits for the page.
    pub fn is_awaited(&self) -> bool {
        let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        must(poll(&mut polled, PollTimeout::ZERO), "polling a userfaultfd") > 0
    }
}
