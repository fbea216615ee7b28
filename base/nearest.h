// The word that a misspelled one probably stands for, for the end of an error message.
//
//    base::Nearest("--nprocs", {"--nproc", "--set"});   // "--nproc"
//    base::Nearest("--verbose", {"--nproc", "--set"});  // "": none is near
//
// Thread-safe.

#ifndef LOCKSTEP_BASE_NEAREST_H_
#define LOCKSTEP_BASE_NEAREST_H_

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::base {

// Returns the number of edits (insertions, deletions, substitutions, swaps of neighbours) that turn
// one word into the other.
size_t EditDistance(const std::string& a, const std::string& b);

// Returns the word of `known` with the fewest edits to `word`, or "" where each needs more than a
// third of its letters. If several are equally near, the one with the longest common beginning
// wins.
std::string Nearest(const std::string& word, const std::vector<std::string>& known);

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_NEAREST_H_
