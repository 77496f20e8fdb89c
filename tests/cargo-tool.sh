#!/bin/sh
# cargo-tool.sh NAME VERSION: prints where a tool of cargo's is, and builds it first if it has to. The only line on stdout
# is the path.
set -eu

name=$1 version=$2
# One of that very version may be there.
if [ "$("$name" --version 2>/dev/null | awk '{ print $2 }')" = "$version" ]; then
    command -v "$name"
    exit 0
fi
root="${XDG_CACHE_HOME:-$HOME/.cache}/firewall-bootstrap/tools/$name-$version"
if [ ! -x "$root/bin/$name" ]; then
    echo "$name $version: building, once, in some minutes" >&2
    # Outside of the project: its toolchain file and its target folder are not for tools.
    (cd / && cargo install --quiet --locked --root "$root" "$name@$version" >&2) || {
        echo "$name $version cannot be built: allow access to crates.io once, and look above for why." >&2
        exit 1
    }
fi
echo "$root/bin/$name"
