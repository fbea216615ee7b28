// Hostile files for tests of readers: good files with a few bytes changed, taken out, put in,
// doubled or cut off at random.
//
//    std::mt19937_64 random = FuzzGenerator();
//    for (int i = 0; i < 1000; ++i) ReadOrRefuse(Mutate(good, /*front=*/200, random));

#ifndef LOCKSTEP_TESTS_SUPPORT_MUTATION_H_
#define LOCKSTEP_TESTS_SUPPORT_MUTATION_H_

#include <cstddef>
#include <random>
#include <string>

namespace lockstep::tests {

// Returns a generator, and prints its seed. LOCKSTEP_FUZZ_SEED sets another one.
std::mt19937_64 FuzzGenerator();

// Returns the file with one to four changes. Three in four of them are within its first `front`
// bytes: headers lie there, and are where most goes wrong.
std::string Mutate(std::string file, size_t front, std::mt19937_64& random);

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_MUTATION_H_
