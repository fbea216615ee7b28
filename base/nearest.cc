#include "base/nearest.h"

#include <algorithm>

namespace lockstep::base {
namespace {

size_t CommonPrefix(const std::string& a, const std::string& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

}  // namespace

// Optimal string alignment distance, https://en.wikipedia.org/wiki/Damerau-Levenshtein_distance.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

std::string Nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string nearest;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  size_t longest = 0;  // of what equally near words have in common with it at their start
  for (const std::string& candidate : known) {
    // A word without an underscore is never a misspelt internal name.
    if (candidate[0] == '_' && word[0] != '_') continue;
    const size_t distance = EditDistance(word, candidate);
    const size_t common = CommonPrefix(word, candidate);
    if (distance < least || (distance == least && !nearest.empty() && common > longest)) {
      least = distance;
      longest = common;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace lockstep::base
