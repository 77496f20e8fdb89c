#!/bin/sh
# Builds firewall-agent as it is shipped: static, for any distribution of this architecture, and without a path of the machine
# that built it. The only line on stdout is where it is.
set -eu

fail() {
    echo "agent: $1" >&2
    exit 1
}

cd "$(dirname "$0")/../.."
target=$(uname -m)-unknown-linux-musl
if ! command -v musl-gcc >/dev/null 2>&1; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing musl-tools" >&2
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends musl-tools >/dev/null
    else
        fail "musl-gcc is missing: sudo apt-get install -y musl-tools"
    fi
fi
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
    rustup target add "$target" >&2 || fail "rustup target add $target failed: look above for why."
fi
# Names of files are in messages of panics and of the crypto library. They are the same wherever it is built.
registry=${CARGO_HOME:-$HOME/.cargo}
RUSTFLAGS="--remap-path-prefix=$PWD=/firewall-bootstrap --remap-path-prefix=$registry=/cargo"
CFLAGS="-ffile-prefix-map=$registry=/cargo -ffile-prefix-map=$PWD=/firewall-bootstrap"
export RUSTFLAGS CFLAGS
"${CARGO:-cargo}" build --quiet --release --target "$target" -p agent --bin firewall-agent >&2 ||
    fail "it cannot be built: look above for why."
echo "${CARGO_TARGET_DIR:-$PWD/target}/$target/release/firewall-agent"
