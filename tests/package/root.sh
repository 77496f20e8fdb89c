#!/bin/sh
# root.sh: prints where a Debian with systemd is that packages are tried in, and makes it first if it has to. The only line on
# stdout is the path. Nothing is changed there: each test takes a copy.
set -eu

fail() {
    echo "package: $1" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || fail "a Debian with a systemd of its own takes root: sudo make test-package"
release=bookworm
if ! command -v debootstrap >/dev/null 2>&1; then
    command -v apt-get >/dev/null 2>&1 || fail "debootstrap is missing"
    echo "installing debootstrap" >&2
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends debootstrap >/dev/null
fi
root="${XDG_CACHE_HOME:-$HOME/.cache}/firewall-bootstrap/debian/$release"
if [ ! -d "$root" ]; then
    mkdir -p "$(dirname "$root")"
    new="$root.$$"
    trap 'rm -rf "$new" "$new.log"' EXIT
    trap 'exit 1' HUP INT TERM
    echo "package: making a Debian ($release), once, in about a minute" >&2
    debootstrap --variant=minbase --include=systemd,systemd-sysv,init-system-helpers "$release" "$new" \
        http://deb.debian.org/debian >"$new.log" 2>&1 || {
        tail -n 3 "$new.log" >&2
        fail "debootstrap failed: allow access to deb.debian.org once, and look above for why."
    }
    rm -rf "$new"/var/cache/apt/archives/*.deb "$new"/var/lib/apt/lists/*
    mv "$new" "$root"
fi
echo "$root"
