#!/bin/sh
# version_header.sh MODULE.bazel: prints base/version.h, which has the version of the module.
set -eu
version=$(sed -n 's/^    version = "\([0-9][0-9.]*\)",$/\1/p' "$1")
[ -n "$version" ] || { echo "version_header: $1 has no line with a version" >&2; exit 1; }
cat <<END
// The version of Lockstep, "major.minor.patch". Written by base/version_header.sh.

#ifndef LOCKSTEP_BASE_VERSION_H_
#define LOCKSTEP_BASE_VERSION_H_

namespace lockstep::base {

inline constexpr char kVersion[] = "$version";

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_VERSION_H_
END
