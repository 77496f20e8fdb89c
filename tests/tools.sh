#!/bin/sh
# The Debian packages that the tests use beside the compilers: installed where that can be done without asking, named
# with the command that installs them where it cannot.
set -eu

# Debian has programs for administrators where not every user looks.
PATH=$PATH:/usr/sbin
missing=
for tool in strace faketime haproxy prometheus tinyproxy ip systemd-analyze; do
	case $tool in
	# Without its service, and by the name that Debian has for it.
	tinyproxy) package=tinyproxy-bin ;;
	ip) package=iproute2 ;;
	systemd-analyze) package=systemd ;;
	*) package=$tool ;;
	esac
	command -v "$tool" >/dev/null 2>&1 || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
	echo "installing$missing" >&2
	apt-get update -qq
	# shellcheck disable=SC2086 # a list of words
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
else
	echo "the tests need$missing: sudo apt-get install -y$missing" >&2
	exit 1
fi
