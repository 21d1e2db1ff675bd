//! Whether a dropped segment may have cost data.

/// The reasons that [`effect`] reports as harmless, by the kernel's names, with the kernel function that gives each
/// reason (Linux 6.12 to 7.3, `net/ipv4/tcp_input.c`) and why no data is lost.
pub const HARMLESS: [(&str, &str, &str); 7] = [
    (
        "tcp_old_sequence",
        "tcp_sequence",
        "ends before what was acknowledged: keepalives, window probes, late duplicates",
    ),
    (
        "tcp_old_data",
        "tcp_data_queue",
        "ends where the data in order ends, or before: duplicates, keepalives with a byte",
    ),
    ("tcp_ofomerge", "tcp_data_queue_ofo", "is already in the out-of-order queue, or was there and came again"),
    ("tcp_ofo_drop", "tcp_ofo_queue", "waited out of order, and came again in order meanwhile"),
    ("tcp_rfc7323_paws_ack", "tcp_disordered_ack_check", "an acknowledgement without data, overtaken by others"),
    ("tcp_invalid_syn", "tcp_validate_incoming", "a SYN of a connection that is there, mostly sent twice"),
    ("tcp_reset", "tcp_validate_incoming", "a reset that is not in sequence: the kernel asks the sender what it means"),
];

/// `harmless` if the kernel gives this reason only to segments that carry no new data, `lost` for all others.
pub fn effect(reason: &str) -> &'static str {
    if HARMLESS.iter().any(|(harmless, _, _)| *harmless == reason) { "harmless" } else { "lost" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_reasons_of_segments_without_new_data_are_harmless_and_all_others_are_lost() {
        for reason in ["tcp_old_sequence", "tcp_old_data", "tcp_ofomerge", "tcp_ofo_drop", "tcp_rfc7323_paws_ack"] {
            assert_eq!(effect(reason), "harmless", "{reason}");
        }
        // These segments carry new data, or may do so: the whole segment is dropped, whatever was in it.
        for reason in [
            "proto_mem",
            "socket_backlog",
            "tcp_zerowindow",
            "tcp_overwindow",
            "tcp_ofo_queue_prune",
            "tcp_invalid_sequence",
            "tcp_invalid_end_sequence",
            "tcp_rfc7323_paws",
            "tcp_too_old_ack",
            "tcp_csum",
            "queue_purge",
            "not_specified",
            "a_reason_of_a_kernel_to_come",
        ] {
            assert_eq!(effect(reason), "lost", "{reason}");
        }
    }
}
