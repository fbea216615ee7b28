#!/usr/bin/env bash
# Builds plan.cc in a workspace of its own, which names this one as a repository and has no libtorch, and
# compares what it prints.
set -euo pipefail
here=$(dirname "$(readlink -f "$TEST_SRCDIR/lockstep/tests/consumer/plan.cc")")
lockstep=$(cd "$here/../.." && pwd)

mkdir "$TEST_TMPDIR/consumer"
cd "$TEST_TMPDIR/consumer"
cp "$here/plan.cc" .
cp "$here/BUILD.consumer" BUILD
sed "s,%LOCKSTEP%,$lockstep," "$here/WORKSPACE.consumer" >WORKSPACE

# What Debian's Bazel needs, and nothing else of this machine's: LIBTORCH stays unset.
mapfile -t overrides < <(grep -o -e '--override_repository.*' "$lockstep/.bazelrc.setup" || true)
unset LIBTORCH
bazel() { HOME=$TEST_TMPDIR command bazel --output_user_root="$TEST_TMPDIR/root" --batch "$@"; }
bazel build "${overrides[@]}" --cxxopt=-std=c++20 --spawn_strategy=local //:plan

diff - <(bazel-bin/plan) <<'END'
step 0 rank 0: sample 0
step 0 rank 1: sample 1
step 1 rank 0: sample 3
step 1 rank 1: sample 2
END

# Bazel writes files that only it may change.
chmod -R u+w "$TEST_TMPDIR"
