#!/usr/bin/env bash
# Lists the C++ files of the workspace that clang-format would change; .clang-format says how.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
if ! command -v clang-format >/dev/null; then
  echo "clang-format is not installed; third_party/setup installs it (apt-get install clang-format)" >&2
  exit 1
fi

mapfile -t files < <(find . \( -path './bazel-*' -o -path './.*' -o -path ./runs \) -prune -o \
  -type f \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print | sort)
((${#files[@]} > 0)) || { echo "no C++ file below $PWD" >&2; exit 1; }
# One process for all files: starting one for each takes most of a minute.
mapfile -t unformatted < <(clang-format --dry-run "${files[@]}" 2>&1 | sed -n 's,^\./\([^:]*\):.*\[-Wclang-format-violations\]$,\1,p' | sort -u)
if ((${#unformatted[@]} > 0)); then
  echo "${#unformatted[@]} of ${#files[@]} C++ files are not formatted. Format them with"
  echo "  clang-format -i ${unformatted[*]}"
  exit 1
fi
