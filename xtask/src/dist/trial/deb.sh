# Inside a clean Debian, in a network of its own; $1: the capabilities of the unit.
set -eu
export DEBIAN_FRONTEND=noninteractive
ip link set lo up
dpkg --install /tmp/tcpmon.deb
test -x /usr/bin/tcpmon
tcpmon --version
# Enabled, as Debian's services are, and the configuration is accepted.
test -L /etc/systemd/system/multi-user.target.wants/tcpmon.service
tcpmon daemon --config /etc/tcpmon/tcpmon.toml --print-config >/tmp/settings
tcpmon daemon --print-config | cmp - /tmp/settings

setpriv --reuid tcpmon --regid tcpmon --clear-groups --inh-caps "-all,$1" --ambient-caps "-all,$1" \
    tcpmon daemon --config /etc/tcpmon/tcpmon.toml 2>/tmp/log &
daemon=$!
counts() { within counted_more || { cat /tmp/log; return 1; }; }
counts
echo '# mine' >>/etc/tcpmon/tcpmon.toml
dpkg --install --force-confdef --force-confold /tmp/newer.deb
counts
tail -n 1 /etc/tcpmon/tcpmon.toml | grep -x '# mine'
kill $daemon
wait $daemon

dpkg --remove tcpmon
test ! -e /usr/bin/tcpmon
test -e /etc/tcpmon/tcpmon.toml
dpkg --purge tcpmon
