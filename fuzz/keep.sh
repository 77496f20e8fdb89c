#!/bin/sh
# Makes the corpus of a target small again: of what reaches the same code the smallest set, and of that at most 200 files
# below 6 KiB, because it is kept in the project and replayed by every `make test`. Their names are hashes, so which ones
# go is chance.
set -eu
cd "$(dirname "$0")"

for target in "$@"; do
    kept="target/kept/$target"
    rm -rf "$kept"
    mkdir -p "$kept" "target/seeds/$target"
    cargo +nightly fuzz run --sanitizer none "$target" "$kept" "corpus/$target" "target/seeds/$target" -- \
        -set_cover_merge=1 -use_counters=0
    rm -rf "corpus/$target"
    mkdir -p "corpus/$target"
    find "$kept" -type f -size -6144c | sort | head -n 200 | while read -r file; do cp "$file" "corpus/$target/"; done
    echo "$target: $(find "corpus/$target" -type f | wc -l) files, $(du -sb "corpus/$target" | cut -f1) bytes"
done
