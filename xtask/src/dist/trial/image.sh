# $1: the root of the image, which has no shell.
set -eu
ip link set lo up
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
chroot "$1" /usr/bin/tcpmon daemon &
daemon=$!
# The bytes of the scrapes themselves are counted.
for attempt in $(seq 200); do
    if curl --silent --fail http://127.0.0.1:10793/metrics |
        grep '^tcpmon_receive_bytes_total{.*process="curl".*} [1-9]'; then
        kill $daemon
        wait $daemon
        exit
    fi
    kill -0 $daemon
    sleep 0.1
done
exit 1
