#!/bin/sh
# What the machine for tests takes: root (for debootstrap, and for a network of its own), and Debian packages, which are
# installed.
set -eu

# Debian has programs for administrators where not every user looks.
PATH=$PATH:/usr/sbin:/sbin
[ "$(uname -m)" = x86_64 ] || { echo "the machine for tests is an x86_64 one, and so has to be this one" >&2; exit 1; }
missing=
while read -r tool package; do
	command -v "$tool" >/dev/null 2>&1 || missing="$missing $package"
done <<END
qemu-system-x86_64 qemu-system-x86
qemu-img qemu-utils
debootstrap debootstrap
mkfs.ext4 e2fsprogs
ip iproute2
END
if [ "$(id -u)" -ne 0 ]; then
	echo "the machine for tests needs root: sudo -E env PATH=\"\$PATH\" make test-machine" >&2
	exit 1
fi
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null 2>&1 || { echo "the machine for tests needs$missing" >&2; exit 1; }
echo "installing$missing" >&2
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
