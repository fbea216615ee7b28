// Runs a program and collects what it writes.
//
//    absl::StatusOr<ProgramOutput> output = RunProgram({"ffprobe", "-i", path}, 1 << 20);
//    if (!output.ok()) return output.status();         // NotFound: "ffprobe" is not installed
//    if (output->code != 0) return Failed(output->err);
//
// No shell reads the arguments: spaces, quotes and "$" in a path mean themselves. Standard input is
// /dev/null. Signals have their default actions in the program, so it ends if the caller dies while
// it writes. Blocks until the program has ended. Thread-safe.

#ifndef LOCKSTEP_DRIVER_IMAGES_PROGRAM_H_
#define LOCKSTEP_DRIVER_IMAGES_PROGRAM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::images {

struct ProgramOutput {
  int code = 0;     // exit status; 128 plus its number for a signal
  std::string out;  // standard output
  std::string err;  // standard error, its first 16 KiB
};

// Runs `arguments[0]`, which is searched in PATH. Returns:
//    - NotFound if there is no such program.
//    - ResourceExhausted if it writes more than `max_bytes` to standard output; it is killed then.
//    - InvalidArgument without arguments, or if one has a zero byte.
absl::StatusOr<ProgramOutput> RunProgram(const std::vector<std::string>& arguments,
                                         int64_t max_bytes);

}  // namespace lockstep::images

#endif  // LOCKSTEP_DRIVER_IMAGES_PROGRAM_H_
