#!/bin/sh
# boot.sh ROOT: boots the Debian in this folder with a systemd of its own, in namespaces and below a cgroup of its own. The
# network alone is that of the machine. Says the process id of its init on stdout. Ends with its standard input, and takes
# everything with it, the folder too.
set -eu

root=$1
cgroups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
[ -n "$cgroups" ] || { echo "package: no cgroup2 is mounted on this machine: systemd in a namespace needs it" >&2; exit 1; }
own=$cgroups/firewall-package-$$
mkdir "$own"

exec 3<&0
# In the cgroup first: what a namespace was made in is what it shows as its root.
ROOT=$root OWN=$own setpriv --pdeathsig KILL sh -c '
    echo $$ >"$OWN/cgroup.procs"
    exec unshare --mount --pid --uts --ipc --cgroup --fork --kill-child sh -s
' >"$root.log" 2>&1 3<&- <<'INNER' &
set -eu
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
cd "$ROOT"
mount -t proc proc proc
# The settings of the kernel are everybody's.
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=0755 run run
mount -t tmpfs -o mode=1777 tmp tmp
mount -t tmpfs -o mode=0755 dev dev
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
ln -s /proc/self/fd dev/fd
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
hostname firewall
mkdir -p run/outside
pivot_root . run/outside
exec chroot . sh -c '
    umount -l /run/outside
    exec env -i container=other PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        setpriv --bounding-set -sys_module,-sys_time,-sys_rawio,-syslog,-mac_admin,-wake_alarm \
        /lib/systemd/systemd --log-target=journal --show-status=no
' </dev/null
INNER
outside=$!
init=
while [ -z "$init" ] && kill -0 "$outside" 2>/dev/null; do
    init=$(cat "/proc/$outside/task/$outside/children" 2>/dev/null || true)
    [ -n "$init" ] || sleep 0.05
done
echo "$init"
cat <&3 >/dev/null || true
kill -9 "$outside" 2>/dev/null || true
wait "$outside" 2>/dev/null || true
# Deepest first; a process that is being killed may hold one for a moment.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    find "$own" -depth -type d -exec rmdir {} + 2>/dev/null || true
    [ -d "$own" ] || break
    sleep 0.2
done
rm -rf "$root" "$root.log"
