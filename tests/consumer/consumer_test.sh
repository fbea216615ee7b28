#!/usr/bin/env bash
# consumer_test.sh LIBRARY: builds the program of LIBRARY/ in a workspace of its own, which names this one as a
# repository, and compares what it prints.
set -euo pipefail
library=$1
here=$(dirname "$(readlink -f "$TEST_SRCDIR/lockstep/tests/consumer/WORKSPACE.consumer")")
lockstep=$(cd "$here/../.." && pwd)

# Bazel writes files that only it may change, and links that a walk over the folder would follow.
trap 'chmod -R u+w "$TEST_TMPDIR" && rm -rf "$TEST_TMPDIR/root" "$TEST_TMPDIR/consumer"' EXIT

mkdir "$TEST_TMPDIR/consumer"
cd "$TEST_TMPDIR/consumer"
cp "$here/$library"/*.cc .
cp "$here/$library/BUILD.consumer" BUILD
sed "s,%LOCKSTEP%,$lockstep," "$here/WORKSPACE.consumer" >WORKSPACE

# What Debian's Bazel needs, and where libtorch is for a library that takes it. No other option of this workspace.
wanted='--override_repository'
[[ $library == batching ]] || wanted='--override_repository\|--repo_env'
mapfile -t options < <(grep -o -e "\($wanted\).*" "$lockstep/.bazelrc.setup" || true)
unset LIBTORCH
bazel() {
  local command=$1
  shift
  HOME=$TEST_TMPDIR command bazel --output_user_root="$TEST_TMPDIR/root" --batch "$command" "${options[@]}" "$@"
}
bazel build --cxxopt=-std=c++20 --dynamic_mode=off --spawn_strategy=local //:program
diff - <(bazel-bin/program) <"$here/$library/expected.txt"

others=$(bazel query --noimplicit_deps 'deps(//:program)' |
  grep -E '^@(lockstep|libtorch|luajit)//' | grep -vE "^@lockstep//($library|third_party)[/:]" || true)
[[ $library == batching ]] || others=$(grep -v '^@libtorch//' <<<"$others" || true)
[[ -z $others ]] || { echo "the build of $library also takes:" "$others"; exit 1; }
