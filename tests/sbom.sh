#!/bin/sh
# Writes what is in the two programs, as CycloneDX, into target/sbom.
set -eu
cd "$(dirname "$0")/.."
tool=$(tests/cargo-tool.sh cargo-cyclonedx 0.5.9)
mkdir -p target/sbom
for package in server agent; do
    # It writes beside the manifest and knows no other place.
    trap 'rm -f "$package/$package.cdx.json"' EXIT INT TERM
    "$tool" cyclonedx --quiet --manifest-path "$package/Cargo.toml" --format json --spec-version 1.5 --no-build-deps \
        --target x86_64-unknown-linux-gnu
    program=firewall-$([ "$package" = server ] && echo approver || echo agent)
    # Nobody needs to know where it was built.
    sed "s#file://$PWD#file://#g" "$package/$package.cdx.json" >"target/sbom/$program.cdx.json"
    # Nothing that is linked may be missing. (A few more are listed: what Cargo resolves for features that are off.)
    built=$(cargo tree -p "$package" -e normal --target x86_64-unknown-linux-gnu --prefix none --no-dedupe |
        awk '{ print $1, $2 }' | sed '/^'"$package"' /d' | sort -u)
    listed=$(sed -n 's/^      "\(name\|version\)": "\(.*\)",$/\2/p' "target/sbom/$program.cdx.json" |
        paste -d ' ' - - | sed 's/ / v/' | sort -u)
    missing=$(printf '%s\n%s\n%s\n' "$built" "$listed" "$listed" | sort | uniq -u)
    if [ -n "$missing" ]; then
        echo "sbom: $program lacks: $missing" >&2
        exit 1
    fi
    # The tool writes one for each member of the workspace.
    rm -f ./*/*.cdx.json
done
ls target/sbom/*.cdx.json
