# The beginning of each trial.
get() { curl --silent --show-error --fail "http://127.0.0.1:10793/$1"; }
# The bytes of the scrapes themselves are counted.
counted() { get metrics | grep '^tcpmon_receive_bytes_total{.*process="curl".*} [1-9]'; }
# The same, and more than when this was called before: no page is an old one.
counted_more() {
    page=$(counted) || return 1
    before=${now:-0}
    now=${page##* }
    [ "$now" -gt "$before" ]
}
# Waits until a command succeeds, at most two minutes: emulated CPUs are slow.
within() {
    for attempt in $(seq 600); do
        if "$@"; then return 0; fi
        sleep 0.2
    done
    return 1
}

