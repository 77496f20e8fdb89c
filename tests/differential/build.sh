#!/bin/sh
# Prints where the program is that signs requests as Kubernetes does, and builds it first if it has to.
# The only line on stdout is the path.
set -eu

fail() {
    echo "differential: $1" >&2
    exit 1
}

cd "$(dirname "$0")"
command -v go >/dev/null 2>&1 || fail "Go is not installed: install Go $(sed -n 's/^go //p' go.mod) or newer."

sha256() { if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi; }
key=$({ cat go.mod go.sum ./*.go build.sh && go version; } | sha256 | cut -c1-64)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/firewall-bootstrap/differential/$key"
binary="$cache/differential"
if [ ! -x "$binary" ]; then
    mkdir -p "$cache"
    # Two builds at once are waste, but not wrong: each has its own name until it is whole.
    new="$cache/differential.$$"
    trap 'rm -f "$new"' EXIT
    echo "differential: building, once, in about a minute" >&2
    CGO_ENABLED=0 go build -p 2 -trimpath -buildvcs=false -ldflags "-s -w" -o "$new" . >&2 ||
        fail "it cannot be built: allow access to the module proxy once, and look above for why."
    mv "$new" "$binary"
fi
echo "$binary"
