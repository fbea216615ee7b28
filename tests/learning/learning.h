// Runs of grpo.lua, dpo.lua, kto.lua and reward.lua, and what their metrics say.

#ifndef LOCKSTEP_TESTS_LEARNING_LEARNING_H_
#define LOCKSTEP_TESTS_LEARNING_LEARNING_H_

#include <cstddef>
#include <string>
#include <vector>

#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {

// Returns the command that runs scripts/`script` in the folder, with time for a busy machine.
Command Train(const Folder& folder, const std::string& script, int nproc,
              const std::vector<std::string>& settings);

// Returns a field of the steps, or of an event, in their order.
std::vector<double> Values(const Folder& folder, const std::string& field,
                           const std::string& event = "");

// Returns the mean of `count` values.
double Mean(const std::vector<double>& values, size_t from, size_t count);

// Runs the script twice, and kills all ranks of the second run after step 4. Expects that it goes
// on to the same values of `field` and the same bytes of `file`.
void ExpectSameBitsAfterAKill(const std::string& script, const std::vector<std::string>& settings,
                              const std::string& field, const std::string& file);

// Returns a message as JSON.
std::string Message(const std::string& role, const std::string& content);

// Returns a line of preferences. The arguments are messages, split by commas; without a prompt the
// line has none.
std::string Pair(const std::string& prompt, const std::string& chosen, const std::string& rejected);

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_LEARNING_LEARNING_H_
