#!/bin/sh
# Prints the folder with the machine for tests, and builds it first if it has to: disk.raw (Debian with systemd, root/
# laid over it), vmlinuz and initrd.img. The only line on stdout is the path.
set -eu

fail() {
    echo "machine: $1" >&2
    exit 1
}

cd "$(dirname "$0")"
PATH=$PATH:/usr/sbin:/sbin
SUITE=bookworm
MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
# The cloud kernel has VRFs and virtio, and little else.
PACKAGES=systemd,systemd-sysv,udev,dbus,iproute2,kmod,e2fsprogs,qemu-guest-agent,linux-image-cloud-amd64

key=$({ cat build.sh; find root -type f | LC_ALL=C sort | xargs sha256sum; } | sha256sum | cut -c1-64)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/firewall-bootstrap/machine/$key"
if [ -e "$cache/disk.raw" ]; then
    echo "$cache"
    exit 0
fi
[ "$(id -u)" -eq 0 ] || fail "debootstrap needs root: sudo -E $PWD/build.sh, once"

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ -e "$cache/disk.raw" ]; then
    echo "$cache"
    exit 0
fi
new=$(mktemp -d "$cache/new.XXXXXX")
trap 'rm -rf "$new"' EXIT
trap 'exit 1' INT TERM HUP

echo "machine: building a Debian root, once, in two to four minutes" >&2
debootstrap --variant=minbase --include="$PACKAGES" "$SUITE" "$new/root" "$MIRROR" >"$cache/log" 2>&1 ||
    fail "debootstrap failed, the whole of it in $cache/log: $(tail -n 3 "$cache/log")"

# Only what this machine boots from: an initrd that is half the size boots in half the time where the CPU is emulated.
echo 'MODULES=list' >"$new/root/etc/initramfs-tools/conf.d/modules"
printf '%s\n' virtio_pci virtio_blk ext4 >"$new/root/etc/initramfs-tools/modules"
chroot "$new/root" update-initramfs -u >>"$cache/log" 2>&1 || fail "update-initramfs failed: $(tail -n 3 "$cache/log")"
cp "$new"/root/boot/vmlinuz-* "$new/vmlinuz"
cp "$new"/root/boot/initrd.img-* "$new/initrd.img"

rm -rf "$new"/root/var/cache/apt/* "$new"/root/var/lib/apt/lists/* "$new"/root/usr/share/doc/*
cp -r root/. "$new/root/"
echo firewall >"$new/root/etc/hostname"
# The journal outlives a reboot, and each boot is the same machine.
mkdir -p "$new/root/var/log/journal"
tr -d - </proc/sys/kernel/random/uuid >"$new/root/etc/machine-id"
systemctl --root="$new/root" enable --quiet systemd-networkd.service found.service firewall-controller.service
# Packages come when nothing waits for them.
systemctl --root="$new/root" mask --quiet apt-daily.timer apt-daily-upgrade.timer

mkfs.ext4 -q -F -L firewall -d "$new/root" "$new/disk.raw" 2G >/dev/null
rm -rf "$new/root"
mv "$new/vmlinuz" "$new/initrd.img" "$cache/"
mv "$new/disk.raw" "$cache/disk.raw"
echo "$cache"
