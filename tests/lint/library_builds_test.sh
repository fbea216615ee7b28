#!/usr/bin/env bash
# `bazel test //LIBRARY/...` builds nothing of another library, of the driver or of Lua: asks Bazel about all targets of
# each library, its tests and benchmarks too. (transitive_test asks about what is public, and names the breach.)
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
libraries='batching sharding checkpoint tiled_mlp mimo kernels'

bazel() { HOME=$TEST_TMPDIR command bazel --output_user_root="$TEST_TMPDIR/root" --max_idle_secs=60 "$@"; }
trap 'bazel shutdown && chmod -R u+w "$TEST_TMPDIR" && rm -rf "$TEST_TMPDIR/root"' EXIT
query() {
  bazel query --noshow_progress --noimplicit_deps --output=label "$1" 2>"$TEST_TMPDIR/errors" ||
    { cat "$TEST_TMPDIR/errors" >&2; exit 1; }
}

# Prints what the targets below some folders reach of `foreign`, a pattern for folders.
reached() { query "deps(set($1))" | grep -E "^(//($2)[/:]|@+luajit\b)" || true; }

status=0
for library in $libraries; do
  others=$(tr ' ' '\n' <<<"$libraries driver scripts" | grep -vx "$library" | paste -sd '|')
  found=$(reached "//$library/..." "$others")
  [[ -z $found ]] || { echo "bazel test //$library/... also builds:" "$found"; status=1; }
done

# The same question about a package that does build the driver: the query and the pattern find it.
[[ -n $(reached //scripts/... driver) ]] || { echo "the query finds no driver below //scripts"; status=1; }
exit $status
