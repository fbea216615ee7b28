// Lines that somebody types at a terminal, with editing, history and completion by libedit.
//
//   const auto complete = [](const std::string& word) { return NamesThatBeginWith(word); };
//   for (TypedLine line; !(line = ReadLine("> ", complete)).is_end;) {
//     if (!line.is_interrupted) Run(line.text);
//   }
//
// Ctrl-C clears the line. From the first call on a SIGINT does nothing where no line is read: who
// runs one catches it there. Where there is no terminal SIGINT stays as it is.
//
// Lines are kept over sessions, the last 1,000, in ~/.local/state/lockstep/history
// (XDG_STATE_HOME names another place for it). Thread: one thread; libedit's state is the
// process's.

#ifndef LOCKSTEP_DRIVER_TERMINAL_LINE_EDITOR_H_
#define LOCKSTEP_DRIVER_TERMINAL_LINE_EDITOR_H_

#include <functional>
#include <string>
#include <vector>

namespace lockstep::driver {

// From what stands before the cursor, back to a space or an operator ("torch.mat"), to what may
// stand in its place. Must not throw.
using Completer = std::function<std::vector<std::string>(const std::string& word)>;

struct TypedLine {
  std::string text;             // without its end
  bool is_end = false;          // of the input: there is no line
  bool is_interrupted = false;  // by Ctrl-C: the line is void
};

// Whether somebody types: stdin and stdout are terminals.
bool HasTerminal();

// The next line. Without a terminal it only writes the prompt and reads.
TypedLine ReadLine(const std::string& prompt, const Completer& complete);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_TERMINAL_LINE_EDITOR_H_
