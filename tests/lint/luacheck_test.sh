#!/usr/bin/env bash
# Runs luacheck over every Lua file of the workspace that this file belongs to; .luacheckrc says how.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
if ! command -v luacheck >/dev/null; then
  echo "luacheck is not installed; third_party/setup installs it (apt-get install lua-check)" >&2
  exit 1
fi
# Found here, not by luacheck: it would follow Bazel's links.
find . -name 'bazel-*' -prune -o -name '*.lua' -type f -print0 | xargs -0 --no-run-if-empty luacheck --quiet --codes --no-color
