#!/usr/bin/env bash
# clang_tidy.sh REPORT SOURCE [FLAG]...: writes to REPORT what clang-tidy finds in SOURCE, compiled with FLAGs, and in the headers
# that it includes. Run in the folder of .clang-tidy. Fails if clang-tidy itself does.
set -euo pipefail
report=$1 source=$2
shift 2
if ! command -v clang-tidy >/dev/null; then
  echo "clang-tidy is not installed; third_party/setup installs it (apt-get install clang-tidy)" >&2
  exit 1
fi
code=0
# Its standard error only counts the warnings that it does not show.
found=$(clang-tidy --quiet --config-file=.clang-tidy "$source" -- "$@" 2>"$report") || code=$?
if ((code)) && [[ -z $found ]]; then
  echo "clang-tidy ended with $code and named no fault:" >&2
  cat "$report" >&2
  exit 1
fi
printf '%s' "$found" | sed -e "s,^$PWD/,," -e 's,^\./,,' >"$report"
