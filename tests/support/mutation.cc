#include "tests/support/mutation.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace lockstep::tests {

std::mt19937_64 FuzzGenerator() {
  const char* given = std::getenv("LOCKSTEP_FUZZ_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20261122;
  std::printf("seed %llu (LOCKSTEP_FUZZ_SEED sets another)\n",
              static_cast<unsigned long long>(seed));
  return std::mt19937_64(seed);
}

std::string Mutate(std::string file, size_t front, std::mt19937_64& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); };
  for (size_t times = 1 + below(4); times > 0 && !file.empty(); --times) {
    const size_t at = below(random() % 4 == 0 ? file.size() : std::min(file.size(), front));
    switch (random() % 6) {
      case 0: file[at] = static_cast<char>(random()); break;
      case 1: file[at] = static_cast<char>(file[at] ^ (1 << random() % 8)); break;
      case 2: file.erase(at, 1 + below(16)); break;
      case 3: file.insert(at, std::string(1 + below(16), static_cast<char>(random()))); break;
      case 4: file.insert(at, file.substr(below(file.size()), below(64))); break;
      default: file.resize(at);
    }
  }
  return file;
}

}  // namespace lockstep::tests
