//! The age of a network namespace, from its addresses: it cannot have counted anything before it got its first one.
//!
//! The kernel does not say when it created a namespace, but it says when each address was added. Most namespaces get
//! 127.0.0.1 at once.

use std::io;

use netlink_packet_core::NlasIterator;
use netlink_sys::protocols::NETLINK_ROUTE;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::netlink::{self, Object};

/// Message types (`linux/rtnetlink.h`).
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;

/// An attribute (`linux/if_addr.h`).
const IFA_CACHEINFO: u16 = 6;

/// The kernel gives times in units of 10 ms, from its count of ticks (jiffies). That count starts a fraction of a
/// second later in a boot than `CLOCK_MONOTONIC`.
const UNIT_NS: u64 = 10_000_000;

/// A namespace that is older than tcpmon by less than this counts as younger. Its age is known to two units and a tick,
/// and it has counted little in that time.
const SLACK_NS: u64 = 5 * UNIT_NS;

/// Ticks a second that kernels are built for (`kernel/Kconfig.hz`).
const HZ: [u64; 4] = [100, 250, 300, 1000];

/// `struct ifaddrmsg`.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub(super) struct AddressInfo {
    family: u8,
    prefix_bits: u8,
    flags: u8,
    scope: u8,
    device: u32,
}

/// `struct ifa_cacheinfo`.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CacheInfo {
    preferred: u32,
    valid: u32,
    created: u32,
    updated: u32,
}

/// An address of a device.
#[derive(Debug)]
struct Address {
    /// In units of 10 ms since the boot, by the count of ticks; wraps after 497 days. `None` if the message does not
    /// say.
    created: Option<u32>,
}

impl Object for Address {
    type Request = AddressInfo;
    const PROTOCOL: isize = NETLINK_ROUTE;
    const REQUEST: u16 = RTM_GETADDR;
    const ANSWER: u16 = RTM_NEWADDR;

    fn decode(payload: &[u8]) -> Option<Self> {
        let (_, attributes) = AddressInfo::read_from_prefix(payload).ok()?;
        let mut attributes = NlasIterator::new(attributes).map_while(Result::ok);
        let times = attributes.find(|attribute| attribute.kind() == IFA_CACHEINFO);
        let created = |times: &[u8]| Some(CacheInfo::read_from_prefix(times).ok()?.0.created);
        Some(Self { created: times.and_then(|times| created(times.value())) })
    }
}

/// Whether the calling thread's network namespace has got all its addresses since `since_ns`, so that everything that
/// it has counted happened since then. Both times are `CLOCK_MONOTONIC` of the host.
///
/// # Errors
/// rtnetlink does not answer.
pub(super) fn are_younger_than(since_ns: u64, now_ns: u64) -> io::Result<bool> {
    let (addresses, others) = netlink::list::<Address>(AddressInfo::default())?;
    // One that cannot be parsed may be older.
    Ok(others == 0 && younger(&addresses, since_ns, now_ns, now(ticks(), now_ns)))
}

/// False for a namespace without addresses, which may have had some earlier: then its earlier counts are not shown.
fn younger(addresses: &[Address], since_ns: u64, now_ns: u64, now: u32) -> bool {
    let oldest_ns = now_ns.saturating_sub(since_ns) + SLACK_NS;
    let is_younger = |created: u32| u64::from(now.wrapping_sub(created)) * UNIT_NS <= oldest_ns;
    !addresses.is_empty() && addresses.iter().all(|address| address.created.is_some_and(is_younger))
}

/// The kernel's count of ticks, in units of 10 ms.
#[expect(unsafe_code, reason = "no crate has what times(2) returns, only what it writes")]
fn ticks() -> u64 {
    // SAFETY: `struct tms` is made of integers only, and lives as long as the call.
    unsafe { libc::times(&mut std::mem::zeroed()) }.cast_unsigned()
}

/// Converts a count of ticks to the time in the unit of addresses. The count starts 300 s before 2^32 ticks, so that
/// its wrap is seen early in each boot. Which length a tick has follows from the time since the boot, because the
/// possible starting values are days apart.
fn now(ticks: u64, now_ns: u64) -> u32 {
    let begins = HZ.map(|hz| ((1 << 32) - 300 * hz) * 100 / hz);
    let since_boot = begins.map(|begin| ticks.saturating_sub(begin));
    since_boot.into_iter().min_by_key(|time| time.abs_diff(now_ns / UNIT_NS)).unwrap_or_default() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::monotonic_ns, host::netlink::tests::decoded};

    const SECOND: u64 = 1_000_000_000;

    fn created_at(times: &[u64]) -> Vec<Address> {
        times.iter().map(|seconds| Address { created: Some((seconds * 100) as u32) }).collect()
    }

    #[test]
    fn one_old_address_makes_a_namespace_old() {
        let is_young = |addresses: &[Address]| younger(addresses, 50 * SECOND, 70 * SECOND, 7_000);
        assert!(is_young(&created_at(&[51, 70])));
        assert!(!is_young(&created_at(&[49, 70])) && !is_young(&[]) && !is_young(&[Address { created: None }]));
    }

    #[test]
    fn the_kernel_s_time_wraps() {
        // 497 days and two hours.
        let now = (1 << 32) * UNIT_NS + 7_200 * SECOND;
        let (before, units) = (now - 3_600 * SECOND, (now / UNIT_NS) as u32);
        assert!(younger(&created_at(&[now / SECOND - 60]), before, now, units));
        assert!(!younger(&created_at(&[now / SECOND - 7_000]), before, now, units));
    }

    #[test]
    fn the_time_of_addresses_follows_from_the_count_of_ticks() {
        // Seen with 250 ticks a second.
        assert_eq!(now(1_718_813_450, 8_565_594_161_237), 856_532);
        // With 1000, after a minute and after 400 days.
        assert_eq!(now(429_466_729 + 6_000, 60_200_000_000), 6_000);
        let days = 400 * 86_400 * 100;
        assert_eq!(u64::from(now(429_466_729 + days, days * UNIT_NS)), days);
    }

    #[test]
    fn an_address_without_times_is_one() {
        let message: Vec<u8> = [2, 8, 0, 254, 1, 0, 0, 0].into();
        assert!(decoded::<Address>(RTM_NEWADDR, &message).is_some_and(|address| address.created.is_none()));
        // Captured: 127.0.0.1/8 of lo, created and last updated 51.28 s after the boot.
        let times = [20, 0, 6, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0x08, 0x14, 0, 0, 0x08, 0x14, 0, 0];
        let message = [message, times.into()].concat();
        assert!(decoded::<Address>(RTM_NEWADDR, &message).is_some_and(|address| address.created == Some(5_128)));
        assert!(decoded::<Address>(RTM_NEWADDR, &message[..7]).is_none());
    }

    #[test]
    fn the_namespace_of_the_tests_is_older_than_they_are() {
        let now = monotonic_ns();
        assert!(!are_younger_than(now, now).expect("rtnetlink answers"));
        assert!(are_younger_than(0, now).expect("rtnetlink answers"));
    }
}
