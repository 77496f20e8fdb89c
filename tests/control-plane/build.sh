#!/bin/sh
# Prints where the control plane for tests and the demo is, and builds it first if it has to.
# The only line on stdout is the path: of our binary, or of a directory of separate binaries.
#
#   CONTROL_PLANE_BIN=<our binary, or a directory>   used as it is, nothing is built
#   KUBEBUILDER_ASSETS=<a directory>                 likewise, if the first is not set
set -eu

fail() {
    echo "control-plane: $1" >&2
    exit 1
}

# A directory must hold every program: half a control plane would only fail later and less clearly.
given() {
    [ -e "$2" ] || fail "$1 names $2, which does not exist: set it to a control-plane binary or a directory of binaries, or unset it."
    if [ -d "$2" ]; then
        for program in kube-apiserver kube-controller-manager etcd kubectl; do
            [ -x "$2/$program" ] || fail "$1 names $2, which holds no executable $program: put Kubernetes' $program there, or unset $1 to have everything built from source."
        done
    elif [ ! -x "$2" ]; then
        fail "$1 names $2, which is not executable: set it to a control-plane binary or a directory of binaries, or unset it."
    fi
    echo "$2"
    exit 0
}

[ -z "${CONTROL_PLANE_BIN:-}" ] || given CONTROL_PLANE_BIN "$CONTROL_PLANE_BIN"
[ -z "${KUBEBUILDER_ASSETS:-}" ] || given KUBEBUILDER_ASSETS "$KUBEBUILDER_ASSETS"

cd "$(dirname "$0")"
command -v go >/dev/null 2>&1 ||
    fail "Go is not installed: install Go $(sed -n 's/^go //p' go.mod) or newer, or set CONTROL_PLANE_BIN to a directory with kube-apiserver, kube-controller-manager, etcd and kubectl."

sha256() { if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi; }
key=$({ cat go.mod go.sum ./*.go build.sh && go version; } | sha256 | cut -c1-64)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/firewall-bootstrap/control-plane/$key"
binary="$cache/control-plane"
if [ -x "$binary" ]; then
    echo "$binary"
    exit 0
fi

mkdir -p "$cache"
# One build at a time where there is flock. Without it two builds are waste, but not wrong: each has
# its own name until it is whole.
exec 9>"$cache/lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi
if [ -x "$binary" ]; then
    echo "$binary"
    exit 0
fi
new="$cache/control-plane.$$"
trap 'rm -f "$new" "$cache/log.$$"' EXIT

export CGO_ENABLED=0
if ! go list -deps . >/dev/null 2>"$cache/log.$$"; then
    fail "the Go modules of go.mod could not be fetched ($(tail -n 1 "$cache/log.$$")): allow access to the module proxy once, or set CONTROL_PLANE_BIN to a directory with kube-apiserver, kube-controller-manager, etcd and kubectl."
fi

echo "control-plane: building Kubernetes from source, once, in 4 to 12 minutes" >&2
release=$(sed -n 's|.*k8s.io/kubernetes \(v[0-9.]*\).*|\1|p' go.mod)
minor=${release#v1.}
package=k8s.io/component-base/version
go build -p 2 -trimpath -buildvcs=false -o "$new" -ldflags "-s -w \
    -X $package.gitVersion=$release -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*} \
    -X $package.gitTreeState=clean" . >&2
mv "$new" "$binary"
echo "$binary"
