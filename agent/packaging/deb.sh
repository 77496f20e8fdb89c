#!/bin/sh
# deb.sh [VERSION]: makes the Debian package of firewall-agent. The only line on stdout is where it is.
set -eu

cd "$(dirname "$0")/../.."
binary=$(agent/packaging/build.sh)
tool=$(tests/cargo-tool.sh cargo-deb 3.8.0)
version=${1:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)-1}
target=$(basename "$(dirname "$(dirname "$binary")")")
# The same commit makes the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
# Not the folder in which cargo-deb works: it takes the packages of other versions away there.
deb=$PWD/target/deb/firewall-agent_${version}_$(dpkg --print-architecture).deb
mkdir -p target/deb
"$tool" deb --quiet --package agent --target "$target" --no-build --no-strip --no-dbgsym \
    --deb-version "$version" --output "$deb.$$" >/dev/null
mv "$deb.$$" "$deb"
echo "$deb"
