#!/usr/bin/env bash
# More ranks than send to each other gather 20 times, and all name the one that is killed.
set -euo pipefail
sharding/agreement/light_ranks 130 20
