# Inside a virtual machine, started by systemd. Each line of output is read by `unit.rs`.
exec >/dev/ttyS1 2>&1
export DEBIAN_FRONTEND=noninteractive
failed() {
    echo "failed: $1"
    systemctl status --no-pager --full tcpmon.service tcpmon.socket
    journalctl --no-pager --lines 40
    printf '\001' | dd of=/dev/port bs=1 seek=244 status=none
}
is() { [ "$(systemctl show --value --property "$1" tcpmon.service)" = "$2" ]; }
not() { ! "$@"; }
pid() { systemctl show --value --property MainPID tcpmon.service; }
other_pid() { [ "$(pid)" != "$1" ] && [ "$(pid)" != 0 ] && is ActiveState active; }

dpkg --install /tmp/tcpmon.deb || failed install
within is ActiveState active || failed "the unit starts"
is User tcpmon || failed "it runs as its user"
[ "$(stat --format %U /proc/$(pid))" = tcpmon ] || failed "its process is its user's"
within get healthz || failed "it answers"
within counted || failed "bytes are counted"
echo status
get status
echo "end of status"
systemd-analyze security tcpmon.service | tail -n 1
[ "$(stat --format %G:%a /run/tcpmon/tcpmon.sock)" = tcpmon:660 ] || failed "the local socket is its group's"
as_member() { setpriv --reuid=nobody --regid=tcpmon --clear-groups --no-new-privs "$@"; }
as_member tcpmon top --once --format json >/dev/null || failed "a member of its group runs top"

first=$(pid)
systemctl reload tcpmon || failed reload
within get healthz || failed "it answers after a reload"
[ "$(pid)" = "$first" ] || failed "a reload keeps the process"
dpkg --install /tmp/newer.deb || failed upgrade
within other_pid "$first" || failed "an upgrade restarts it"
within get healthz || failed "it answers after the upgrade"

# A process that has stopped is replaced by the watchdog.
mkdir -p /run/systemd/system/tcpmon.service.d
printf '[Service]\nWatchdogSec=10\n' >/run/systemd/system/tcpmon.service.d/trial.conf
systemctl daemon-reload
systemctl restart tcpmon || failed restart
stopped=$(pid)
kill -STOP "$stopped"
within other_pid "$stopped" || failed "the watchdog replaces it"
journalctl --no-pager --unit tcpmon | grep --quiet 'Watchdog timeout' || failed "it was the watchdog"
rm -r /run/systemd/system/tcpmon.service.d
systemctl daemon-reload

# An address that comes after the start, as by DHCP or VRRP.
get_late() { curl --silent --fail --max-time 5 http://192.0.2.7:10793/healthz >/dev/null; }
sed -i 's/^#listen_address = .*/listen_address = ["127.0.0.1:10793", "192.0.2.7:10793"]/' /etc/tcpmon/tcpmon.toml
systemctl restart tcpmon || failed "it starts without one of its addresses"
within get healthz || failed "it answers at the address that is there"
not get_late || failed "nothing answers at an address that is not there"
is NRestarts 0 || failed "it was not started again and again"
ip address add 192.0.2.7/32 dev lo || failed "adding the address"
within get_late || failed "it answers at an address that came later"
sed -i 's/^listen_address/#listen_address/' /etc/tcpmon/tcpmon.toml

# A name to listen on that comes after the start: systemd tries for as long as it takes, here without 5 s in between.
# A burst of one start is a limit only with an interval: that of $1, of the unit, or the default of 10 s.
drop_in=/run/systemd/system/tcpmon.service.d/trial.conf
limited() {
    printf '[Unit]\n%s\nStartLimitBurst=1\n[Service]\nRestartSec=100ms\n' "$1" >"$drop_in"
    systemctl daemon-reload
    systemctl reset-failed tcpmon
    systemctl restart --no-block tcpmon
}
tried() { [ "$(systemctl show --value --property NRestarts tcpmon.service)" -ge "$1" ]; }
sed -i 's/^#listen_address = .*/listen_address = ["late.example:10793"]/' /etc/tcpmon/tcpmon.toml
mkdir -p "${drop_in%/*}"
limited StartLimitIntervalSec=1h
within is ActiveState failed || failed "systemd gives up where starts are limited"
limited ''
within tried 10 || failed "it is started again and again while its name does not resolve"
not get healthz 2>/dev/null || failed "nothing answers at a name that does not resolve"
echo '127.0.0.1 late.example' >>/etc/hosts
within get healthz || failed "it answers at a name that came later"
within is ActiveState active || failed "it runs with a name that came later"
rm -r "${drop_in%/*}"
systemctl daemon-reload
sed -i 's/^listen_address/#listen_address/' /etc/tcpmon/tcpmon.toml

sed -i 's/^#systemd_socket = false/systemd_socket = true/' /etc/tcpmon/tcpmon.toml
systemctl stop tcpmon.service
systemctl enable --now tcpmon.socket || failed "the socket starts"
is ActiveState inactive || failed "only the socket is active"
within get metrics >/dev/null || failed "a connection starts the unit"
is ActiveState active || failed "the socket has started the unit"

dpkg --purge tcpmon || failed purge
is ActiveState inactive || failed "a purge stops it"
not get healthz 2>/dev/null || failed "nothing answers after a purge"
not getent passwd tcpmon || failed "the user is gone"
echo "all went well"
printf '\000' | dd of=/dev/port bs=1 seek=244 status=none
