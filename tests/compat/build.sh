#!/bin/sh
# build.sh [version]: prints the folder with firewall-approver and firewall-agent of a released version (by default the
# newest in this folder), and builds them first if it has to. The only line on stdout is the path.
set -eu

fail() {
    echo "compat: $1" >&2
    exit 1
}

cd "$(dirname "$0")"
version=${1:-$(ls -d v*/ 2>/dev/null | sort -V | tail -n 1 | tr -d /)}
[ -n "$version" ] && [ -f "$version/commit" ] || fail "tests/compat/$version/commit is not there: it names the commit of that version."
commit=$(cat "$version/commit")
target="${XDG_CACHE_HOME:-$HOME/.cache}/firewall-bootstrap/release/$version-$commit"
if [ ! -x "$target/firewall-approver" ] || [ ! -x "$target/firewall-agent" ]; then
    command -v cargo >/dev/null 2>&1 || fail "cargo is not installed: install Rust with rustup."
    if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
        [ "$(git rev-parse --is-shallow-repository 2>/dev/null)" = true ] &&
            fail "commit $commit of $version is not in this clone, which is shallow: git fetch --unshallow"
        fail "commit $commit of $version is not in this clone: git fetch --tags origin, or look at tests/compat/$version/commit."
    fi
    mkdir -p "$target"
    # Two builds at once are waste, but not wrong: each has its own folder until it is whole.
    work="$target/build.$$"
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    mkdir "$work"
    echo "compat: building $version from $commit, once, in a few minutes" >&2
    git -C "$(git rev-parse --show-toplevel)" archive "$commit" | tar -x -C "$work"
    CARGO_TARGET_DIR="$work/target" cargo build --quiet --locked --manifest-path "$work/Cargo.toml" -p server -p agent --bins >&2 ||
        fail "$version cannot be built: look above for why."
    for name in firewall-approver firewall-agent; do
        mv "$work/target/debug/$name" "$target/$name"
    done
fi
echo "$target"
