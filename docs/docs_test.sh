#!/usr/bin/env bash
# The Lua blocks of each page, one after another, are one script: runs it on two ranks, and holds that README
# shows scripts/digits_mlp.lua as it is. Lines keep their numbers, so that an error names the page's line.
set -euo pipefail

blocks() { awk '/^```lua$/ {inside = 1; print ""; next} /^```/ {inside = 0} {print inside ? $0 : ""}' "$1"; }

failed=0
for page in docs/*.md; do
  name=$(basename "$page" .md)
  blocks "$page" >"$TEST_TMPDIR/$name.md.lua"
  grep -q '[^[:space:]]' "$TEST_TMPDIR/$name.md.lua" || continue
  echo "== $page"
  # A folder for each page: a page would go on from the state that another one has saved.
  driver/lockstep --nproc 2 --timeout 30 --run-dir "$TEST_TMPDIR/run-$name" "$TEST_TMPDIR/$name.md.lua" || failed=1
done

# A script that needs other ranks says so.
alone=$(driver/lockstep --nproc 1 --run-dir "$TEST_TMPDIR/run" "$TEST_TMPDIR/mimo.md.lua" 2>&1) && failed=1
[[ $alone == *"needs 2 or more ranks"* ]] || {
  echo "docs/mimo.md: its script must say on one rank that it needs more, not: $alone" >&2
  failed=1
}

awk '/^```lua$/ {inside = 1; next} /^```/ {inside = 0} inside' README.md | diff - scripts/digits_mlp.lua || {
  echo "README.md must show scripts/digits_mlp.lua as it is" >&2
  failed=1
}
exit "$failed"
