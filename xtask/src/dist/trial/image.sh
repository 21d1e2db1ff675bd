# $1: the root of the image, which has no shell.
set -eu
ip link set lo up
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
chroot "$1" /usr/bin/tcpmon daemon &
daemon=$!
within counted
kill $daemon
wait $daemon
