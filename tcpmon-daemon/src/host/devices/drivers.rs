//! Which counters of a driver say that a received packet found no room in the receive ring, and no other thing.
//!
//! Taken are packets that the device threw away because its queue had no free descriptor, or because the packet buffer
//! in front of the queues had filled up behind it. Each lost packet is in one of the counters of a device only, so that
//! their sum is what was lost. Not taken are errors on the wire, failed checksums, packets that a filter or XDP refused,
//! packets that the driver dropped for want of memory (`*alloc_fail*`, `rx_oom_discards`), and counts of moments at
//! which a queue was empty but the packet was kept elsewhere (`rx_no_buffer_count`, `rxbds_empty`, `empty_rx_ring`).
//!
//! Where rtnetlink has the counter, it is read there, without a question to the driver. `rx_dropped` of rtnetlink is
//! avoided: the stack adds its own drops to it (`dev_get_stats` in net/core/dev.c), such as packets of protocols that
//! nobody listens to.
//!
//! Sources are those of Linux 6.1 and 7.2, below drivers/net/ or, where only a file is named, in the driver's folder
//! below drivers/net/ethernet/.

use netlink_packet_route::link::Stats64;

use crate::host::monotone::Width;

/// One counter that is exported.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counter {
    /// One of rtnetlink's.
    Link(LinkCounter, Width),
    /// One of the driver's. Of several, the first that the driver has: kernels differ.
    Statistic(&'static [Statistic]),
}

/// A counter of rtnetlink (`struct rtnl_link_stats64`).
#[derive(Clone, Copy, Debug)]
pub(super) enum LinkCounter {
    RxMissedErrors,
    RxFifoErrors,
    RxOverErrors,
    RxDropped,
    TxDropped,
}

/// A statistic of a driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statistic {
    /// The driver's name for it, where `*` stands for the number of a queue. All that fit are added up.
    pub(super) pattern: &'static str,
    /// That name without the number.
    pub(super) name: &'static str,
}

impl LinkCounter {
    /// The kernel's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RxMissedErrors => "rx_missed_errors",
            Self::RxFifoErrors => "rx_fifo_errors",
            Self::RxOverErrors => "rx_over_errors",
            Self::RxDropped => "rx_dropped",
            Self::TxDropped => "tx_dropped",
        }
    }

    /// Its value.
    pub(super) fn value(self, link: &Stats64) -> u64 {
        match self {
            Self::RxMissedErrors => link.rx_missed_errors,
            Self::RxFifoErrors => link.rx_fifo_errors,
            Self::RxOverErrors => link.rx_over_errors,
            Self::RxDropped => link.rx_dropped,
            Self::TxDropped => link.tx_dropped,
        }
    }
}

impl Statistic {
    /// Whether this is the name of it, or of its part that belongs to one queue. Some drivers indent their names.
    pub(super) fn is(&self, name: &str) -> bool {
        let name = name.trim();
        let Some((before, after)) = self.pattern.split_once('*') else { return name == self.pattern };
        let queue = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        queue.is_some_and(|queue| !queue.is_empty() && queue.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

/// The driver of veth pairs, which rtnetlink tells.
pub(super) const VETH: &str = "veth";

const MISSED: Counter = Counter::Link(LinkCounter::RxMissedErrors, Width::Bits64);
const FIFO: Counter = Counter::Link(LinkCounter::RxFifoErrors, Width::Bits64);
const OVER: Counter = Counter::Link(LinkCounter::RxOverErrors, Width::Bits64);

const fn exactly(name: &'static str) -> Statistic {
    Statistic { pattern: name, name }
}

const fn per_queue(pattern: &'static str, name: &'static str) -> Statistic {
    Statistic { pattern, name }
}

/// Drivers by the names that they give to ethtool, with their counters.
const DRIVERS: &[(&[&str], &[Counter])] = &[
    // e1000_main.c, netdev.c: MPC, packets that found no room in the packet buffer, which fills up when the ring has no
    // descriptors. Under QEMU rx_no_buffer_count is the same number again.
    (&["e1000", "e1000e"], &[MISSED]),
    // igb_main.c and igc_main.c: RQDPC of each queue (shown again as rx_queue_N_drops) and MPC (shown again as
    // rx_missed_errors) are both added to it.
    (&["igb", "igc"], &[FIFO]),
    // ixgbe_main.c: MPC, the packet buffer; QPRDC, the queues (82599 and later).
    (&["ixgbe"], &[MISSED, Counter::Statistic(&[exactly("rx_no_dma_resources")])]),
    // i40e_main.c: GLV_RDPC, the queues, which older kernels show as rx_dropped, some with other errors;
    // GLPRT_RDPC, the packet buffer of the port, which they call port.rx_dropped. They begin anew at 2^32 and when
    // the driver resets the device, which cannot be told apart: to follow a wrap that was none would be the worse.
    (
        &["i40e"],
        &[
            Counter::Statistic(&[exactly("rx_missed_errors"), exactly("rx_dropped")]),
            Counter::Statistic(&[exactly("port.rx_discards"), exactly("port.rx_dropped")]),
        ],
    ),
    // ice_lib.c, ice_main.c: GLV_RDPC, the queues; PRTRPB_RDPC, the packet buffer of the port. What 7.2 prepares as
    // rx_missed_errors is not handed to rtnetlink.
    (&["ice"], &[Counter::Statistic(&[exactly("rx_dropped")]), Counter::Statistic(&[exactly("rx_dropped.nic")])]),
    // en_main.c, en_stats.c: out_of_buffer of the queues (shown again as rx_out_of_buffer), 32 bits that
    // begin anew when the driver recovers the device; if_in_discards, the buffers of the port (shown again by priority).
    (&["mlx5_core"], &[MISSED, Counter::Statistic(&[exactly("rx_discards_phy")])]),
    // en_port.c: RdropOvflw. Packets without a buffer in the ring are in rx_dropped, with others.
    (&["mlx4_en"], &[FIFO]),
    // bnxt.c: rx_discard_pkts of all rings, kept through a change of rings (shown again as [N]: rx_discards and
    // rx_total_ring_discards).
    (&["bnxt_en"], &[MISSED]),
    // tg3.c: rx_discards, packets that found the chip's buffers full; on a few chips (5717, 5762, the first 5719
    // and 5720) only whether any did since the last look, shown again as mbuf_lwm_thresh_hit. rxbds_empty counts
    // moments without a descriptor, which lose nothing yet.
    (&["tg3"], &[MISSED]),
    // ena_netdev.c: rx_drops of the device, which drops when the ring is full; nowhere alone. Newer kernels add
    // what XDP dropped, all add what the stack did.
    (&["ena"], &[Counter::Link(LinkCounter::RxDropped, Width::Bits64)]),
    // gve_ethtool.c: as the device reports it. rx_queue_drop_cnt is not said to be without it.
    (&["gve"], &[Counter::Statistic(&[per_queue("rx_no_buffers_posted[*]", "rx_no_buffers_posted")])]),
    // vmxnet3/vmxnet3_ethtool.c: pktsRxOutOfBuf, once per queue under one name, which is indented.
    (&["vmxnet3"], &[Counter::Statistic(&[exactly("pkts rx OOB")])]),
    // 8139cp.c: RxMissed, added up. rx_fifo of ethtool is a 16-bit copy of the chip's own.
    (&["8139cp"], &[MISSED]),
    // pcnet32.c: CSR112 as it is.
    (&["pcnet32"], &[Counter::Link(LinkCounter::RxMissedErrors, Width::Bits16)]),
    // e100.c: rx_resource_errors; rx_overrun_errors (shown again as rx_over_errors).
    (&["e100"], &[MISSED, FIFO]),
    // virtio_net.c, hyperv/netvsc_drv.c: the host holds back or drops, and does not tell. (Some virtio devices do, in
    // drop_overruns, which the driver shows in netdev-genl only.) rx_drops and rxN_drops of virtio_net are packets that
    // were malformed, found no memory or were dropped by XDP.
    (&["virtio_net", "hv_netvsc"], &[]),
    // veth.c, veth_xmit: a packet that finds the peer's ring full counts as not sent here, and nowhere there; so does
    // one for a peer that is down.
    (&[VETH], &[Counter::Link(LinkCounter::TxDropped, Width::Bits64)]),
];

/// Counters of a driver that is not in the table: what include/uapi/linux/if_link.h defines as no room somewhere. Some
/// drivers show one packet in two of them.
const UNKNOWN: &[Counter] = &[MISSED, FIFO, OVER];

/// Counters of a driver.
pub(super) fn counters(driver: &str) -> &'static [Counter] {
    let known = DRIVERS.iter().find(|(names, _)| names.contains(&driver));
    known.map_or(UNKNOWN, |(_, counters)| counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_queue_and_nothing_else_fits_the_star() {
        let per_queue = per_queue("rx*_missed", "rx_missed");
        assert!(per_queue.is("rx0_missed") && per_queue.is("  rx127_missed "));
        for other in ["rx_missed", "rx0_missed_bytes", "rxa_missed", "tx0_missed", "rx0_x1_missed", "rx*_missed"] {
            assert!(!per_queue.is(other), "{other}");
        }
    }

    #[test]
    fn a_name_without_a_star_fits_itself_however_indented() {
        let statistic = exactly("pkts rx OOB");
        assert!(statistic.is("pkts rx OOB") && statistic.is("  pkts rx OOB"));
        assert!(!statistic.is("pkts rx OOB 2") && !statistic.is("pkts rx"));
    }
}
