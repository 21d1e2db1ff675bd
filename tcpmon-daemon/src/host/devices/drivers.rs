//! For each driver, the counters of received packets that found no room in the receive ring, and of nothing else.
//!
//! Included are packets that the device dropped because its queue had no free descriptor, or because the packet buffer
//! in front of the queues had filled up as a result. Each lost packet is in only one of a device's counters, so that
//! their sum is what was lost. Not included are errors on the wire, failed checksums, packets that a filter or XDP
//! refused, packets that the driver dropped for lack of memory (`*alloc_fail*`, `rx_oom_discards`), and counts of
//! moments in which a queue was empty but the packet was kept elsewhere (`rx_no_buffer_count`, `rxbds_empty`,
//! `empty_rx_ring`).
//!
//! If rtnetlink has the counter, it is read there, without a request to the driver. `rx_dropped` of rtnetlink is
//! avoided: the stack adds its own drops to it (`dev_get_stats` in net/core/dev.c), such as packets of protocols that
//! have no receiver.
//!
//! The sources are those of Linux 6.1 and 7.2, below drivers/net/ or, if only a file is named, in the driver's
//! directory below drivers/net/ethernet/.

use crate::host::{link::LinkStats, monotonic::CounterWidth};

/// One exported counter.
#[derive(Clone, Copy, Debug)]
pub(super) enum OverrunCounter {
    /// One of rtnetlink's.
    Link(LinkCounter, CounterWidth),
    /// One of the driver's. If there are several, the first that the driver has: kernels differ.
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
    /// The driver's name for it, in which `*` stands for the number of a queue. All matches are added up.
    pub(super) pattern: &'static str,
    /// That name without the number of the queue.
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
    pub(super) fn value(self, link: &LinkStats) -> u64 {
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
    /// Whether this is its name, or the name of its part for one queue. Some drivers indent their names.
    pub(super) fn is(&self, name: &str) -> bool {
        let name = name.trim();
        let Some((before, after)) = self.pattern.split_once('*') else { return name == self.pattern };
        let queue = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        queue.is_some_and(|queue| !queue.is_empty() && queue.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

/// The driver of veth pairs, which rtnetlink identifies.
pub(super) const VETH: &str = "veth";

const MISSED: OverrunCounter = OverrunCounter::Link(LinkCounter::RxMissedErrors, CounterWidth::Bits64);
const FIFO: OverrunCounter = OverrunCounter::Link(LinkCounter::RxFifoErrors, CounterWidth::Bits64);
const OVER: OverrunCounter = OverrunCounter::Link(LinkCounter::RxOverErrors, CounterWidth::Bits64);

const fn exactly(name: &'static str) -> Statistic {
    Statistic { pattern: name, name }
}

const fn per_queue(pattern: &'static str, name: &'static str) -> Statistic {
    Statistic { pattern, name }
}

/// Drivers by the names that they report to ethtool, with their counters.
const DRIVERS: &[(&[&str], &[OverrunCounter])] = &[
    // e1000_main.c, netdev.c: MPC, packets that found no room in the packet buffer, which fills up when the ring has no
    // descriptors. Under QEMU, rx_no_buffer_count has the same value.
    (&["e1000", "e1000e"], &[MISSED]),
    // igb_main.c and igc_main.c: the sum of RQDPC of each queue (also shown as rx_queue_N_drops) and MPC (also shown as
    // rx_missed_errors).
    (&["igb", "igc"], &[FIFO]),
    // ixgbe_main.c: MPC, for the packet buffer; QPRDC, for the queues (82599 and later).
    (&["ixgbe"], &[MISSED, OverrunCounter::Statistic(&[exactly("rx_no_dma_resources")])]),
    // i40e_main.c: GLV_RDPC, for the queues, which older kernels show as rx_dropped, some together with other errors;
    // GLPRT_RDPC, for the packet buffer of the port, which they call port.rx_dropped. Both restart at 2^32 and when the
    // driver resets the device, which cannot be told apart: following a wrap that did not happen would be worse than
    // missing one.
    (
        &["i40e"],
        &[
            OverrunCounter::Statistic(&[exactly("rx_missed_errors"), exactly("rx_dropped")]),
            OverrunCounter::Statistic(&[exactly("port.rx_discards"), exactly("port.rx_dropped")]),
        ],
    ),
    // ice_lib.c, ice_main.c: GLV_RDPC, for the queues; PRTRPB_RDPC, for the packet buffer of the port. What 7.2
    // computes as rx_missed_errors is not passed to rtnetlink.
    (
        &["ice"],
        &[OverrunCounter::Statistic(&[exactly("rx_dropped")]), OverrunCounter::Statistic(&[exactly("rx_dropped.nic")])],
    ),
    // en_main.c, en_stats.c: out_of_buffer of the queues (also shown as rx_out_of_buffer), 32 bits that restart when
    // the driver recovers the device; if_in_discards, for the buffers of the port (also shown by priority).
    (&["mlx5_core"], &[MISSED, OverrunCounter::Statistic(&[exactly("rx_discards_phy")])]),
    // en_port.c: RdropOvflw. Packets without a buffer in the ring are in rx_dropped, together with others.
    (&["mlx4_en"], &[FIFO]),
    // bnxt.c: rx_discard_pkts of all rings, kept when the rings change (also shown as [N]: rx_discards and
    // rx_total_ring_discards).
    (&["bnxt_en"], &[MISSED]),
    // tg3.c: rx_discards, packets that found the chip's buffers full. On a few chips (5717, 5762, the first 5719 and
    // 5720) it shows only whether there were any since the last read, and is also shown as mbuf_lwm_thresh_hit.
    // rxbds_empty counts moments without a descriptor, in which nothing is lost yet.
    (&["tg3"], &[MISSED]),
    // ena_netdev.c: rx_drops of the device, which drops when the ring is full. No counter shows only these: newer
    // kernels add what XDP dropped, and all kernels add what the stack dropped.
    (&["ena"], &[OverrunCounter::Link(LinkCounter::RxDropped, CounterWidth::Bits64)]),
    // gve_ethtool.c: as the device reports it. Nothing states that rx_queue_drop_cnt excludes these packets.
    (&["gve"], &[OverrunCounter::Statistic(&[per_queue("rx_no_buffers_posted[*]", "rx_no_buffers_posted")])]),
    // vmxnet3/vmxnet3_ethtool.c: pktsRxOutOfBuf, once per queue, always under the same indented name.
    (&["vmxnet3"], &[OverrunCounter::Statistic(&[exactly("pkts rx OOB")])]),
    // 8139cp.c: RxMissed, added up. rx_fifo of ethtool is a 16-bit copy of the chip's own counter.
    (&["8139cp"], &[MISSED]),
    // pcnet32.c: the register CSR112 as it is.
    (&["pcnet32"], &[OverrunCounter::Link(LinkCounter::RxMissedErrors, CounterWidth::Bits16)]),
    // e100.c: rx_resource_errors; rx_overrun_errors (also shown as rx_over_errors).
    (&["e100"], &[MISSED, FIFO]),
    // virtio_net.c, hyperv/netvsc_drv.c: the host holds packets back or drops them, and does not report it. (Some
    // virtio devices do, in drop_overruns, which the driver shows only in netdev-genl.) rx_drops and rxN_drops of
    // virtio_net are packets that were malformed, found no memory or were dropped by XDP.
    (&["virtio_net", "hv_netvsc"], &[]),
    // veth.c, veth_xmit: a packet that finds the peer's ring full counts as not sent here, and is not counted at the
    // peer. So does a packet for a peer that is down.
    (&[VETH], &[OverrunCounter::Link(LinkCounter::TxDropped, CounterWidth::Bits64)]),
];

/// Counters of a driver that is not in the table: those that include/uapi/linux/if_link.h defines as lack of room
/// somewhere. Some drivers show one packet in two of them.
const UNKNOWN: &[OverrunCounter] = &[MISSED, FIFO, OVER];

/// Counters of a driver.
pub(super) fn counters(driver: &str) -> &'static [OverrunCounter] {
    let known = DRIVERS.iter().find(|(names, _)| names.contains(&driver));
    known.map_or(UNKNOWN, |(_, counters)| counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_star_matches_only_the_number_of_a_queue() {
        let per_queue = per_queue("rx*_missed", "rx_missed");
        assert!(per_queue.is("rx0_missed") && per_queue.is("  rx127_missed "));
        for other in ["rx_missed", "rx0_missed_bytes", "rxa_missed", "tx0_missed", "rx0_x1_missed", "rx*_missed"] {
            assert!(!per_queue.is(other), "{other}");
        }
    }

    #[test]
    fn a_name_without_a_star_matches_itself_with_any_indentation() {
        let statistic = exactly("pkts rx OOB");
        assert!(statistic.is("pkts rx OOB") && statistic.is("  pkts rx OOB"));
        assert!(!statistic.is("pkts rx OOB 2") && !statistic.is("pkts rx"));
    }
}
