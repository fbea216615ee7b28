#!/usr/bin/env bash
# consumer_test.sh workspace|modules FOLDER...: builds the program of each FOLDER/ in a workspace, which names this one as
# a repository, and compares what it prints and what it takes. FOLDER is a library, or LIBRARY_torch for its targets on
# libtorch. With `modules` this workspace is named in a MODULE.bazel, which takes a Bazel of at least 7, and the registry
# of its modules.
set -euo pipefail
named_by=$1
folders=("${@:2}")
here=$(dirname "$(readlink -f "$TEST_SRCDIR/lockstep/tests/consumer/WORKSPACE.consumer")")
lockstep=$(cd "$here/../.." && pwd)

# Bazel writes files that only it may change, and links that a walk over the folder would follow.
trap 'run_bazel shutdown || true; chmod -R u+w "$TEST_TMPDIR"; rm -rf "$TEST_TMPDIR/root" "$TEST_TMPDIR/consumer"' EXIT

# The options that Debian's Bazel needs, and libtorch's folder for libraries that use it; no other option of this one,
# but the user's cache of what was built before.
wanted='--override_repository'
[[ ${folders[0]} != *_torch ]] || wanted='--override_repository\|--repo_env'
options=()
if [[ $named_by == workspace ]]; then
  mapfile -t options < <(grep -o -e "\($wanted\).*" "$lockstep/.bazelrc.setup" || true)
fi
home=$(getent passwd "$(id -u)" | cut -d: -f6)
mapfile -t cache < <(cat "$home/.bazelrc" "$lockstep/.bazelrc.user" 2>/dev/null | grep -oE -e '--disk_cache=[^ ]+' || true)
unset LIBTORCH
run_bazel() { HOME=$TEST_TMPDIR command bazel --output_user_root="$TEST_TMPDIR/root" --max_idle_secs=60 "$@"; }
bazel() {
  local command=$1
  shift
  run_bazel "$command" "${options[@]}" "$@"
}

mkdir "$TEST_TMPDIR/consumer"
cd "$TEST_TMPDIR/consumer"
if [[ $named_by == modules ]]; then
  touch WORKSPACE
  known=$(run_bazel help build)
  if ! grep -q enable_bzlmod <<<"$known"; then
    echo "NOT TRIED: MODULE.bazel, since this Bazel knows no modules ($(command bazel --version)); 7 and newer do" |
      tee "${TEST_WARNINGS_OUTPUT_FILE:-/dev/null}"
    exit 0
  fi
  rm WORKSPACE
  sed "s,/path/to/lockstep,$lockstep," "$here/MODULE.consumer" >MODULE.bazel
  options+=(--enable_bzlmod)
else
  sed "s,/path/to/lockstep,$lockstep," "$here/WORKSPACE.consumer" >WORKSPACE
fi
programs=()
for folder in "${folders[@]}"; do
  program=$(basename "$here/$folder"/*.cc .cc)
  mkdir "$folder"
  cp "$here/$folder/$program.cc" "$folder"
  cp "$here/$folder/BUILD.consumer" "$folder/BUILD"
  programs+=("//$folder:$program")
done

# Built as C++17 a library is refused in one line, before any compilation.
if [[ ${folders[0]} == batching && $named_by == workspace ]]; then
  if bazel build --cxxopt=-std=c++17 "${programs[0]}" 2>"$TEST_TMPDIR/refusal"; then
    echo "a build as C++17 must be refused" && exit 1
  fi
  grep -c "^Error in fail: Lockstep is C++20, and this build is -std=c++17: add --cxxopt=-std=c++20" "$TEST_TMPDIR/refusal" |
    grep -qx 1 || { echo "the refusal must be one line, not:" && cat "$TEST_TMPDIR/refusal" && exit 1; }
fi
bazel build --cxxopt=-std=c++20 --dynamic_mode=off --spawn_strategy=local "${cache[@]}" "${programs[@]}"
for program in "${programs[@]}"; do
  folder=${program#//}
  folder=${folder%:*}
  echo "$folder"
  diff - <("bazel-bin/$folder/${program#*:}") <"$here/$folder/expected.txt"
  [[ $named_by == workspace ]] || continue

  # A query that fails ends the test here, and one that lists nothing is not "nothing else".
  library=${folder%_torch}
  taken=$(bazel query --noimplicit_deps "deps($program)")
  grep -q "^@lockstep//$library" <<<"$taken" || { echo "the build of $program does not take @lockstep//$library:" "$taken"; exit 1; }
  others=$(sed -nE '/^@(lockstep|libtorch|luajit)\/\//p' <<<"$taken" | sed -E "/^@lockstep\/\/($library|base|third_party)[\/:]/d")
  [[ $folder == "$library" ]] || others=$(sed '/^@libtorch\/\//d' <<<"$others")
  [[ -z $others ]] || { echo "the build of $program also takes:" "$others"; exit 1; }
done
