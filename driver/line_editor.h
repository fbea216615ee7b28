// Lines that somebody types at a terminal, with editing, history and completion by libedit.
//
//   const auto complete = [](const std::string& word) { return NamesThatBeginWith(word); };
//   while (std::optional<std::string> line = ReadLine("> ", complete)) Run(*line);
//
// Lines are kept over sessions, the last 1,000, in ~/.local/state/lockstep/history
// (XDG_STATE_HOME names another place for it). Thread: one thread; libedit's state is the
// process's.

#ifndef LOCKSTEP_DRIVER_LINE_EDITOR_H_
#define LOCKSTEP_DRIVER_LINE_EDITOR_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::driver {

// From what stands before the cursor, back to a space or an operator ("torch.mat"), to what may
// stand in its place. Must not throw.
using Completer = std::function<std::vector<std::string>(const std::string& word)>;

// The next line, without its end; nullopt at the end of input. Where stdin or stdout is no terminal
// it only writes the prompt and reads.
std::optional<std::string> ReadLine(const std::string& prompt, const Completer& complete);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_LINE_EDITOR_H_
