// Reads lines from a terminal, with editing, history and completion by libedit.
//
//    const auto complete = [](const std::string& word) { return NamesThatBeginWith(word); };
//    for (TypedLine line; !(line = ReadLine("> ", complete)).is_end;) {
//      if (!line.is_interrupted) Run(line.text);
//    }
//
// Ctrl-C clears the line. After the first call, a SIGINT does nothing unless a line is being read;
// a caller that runs a line handles SIGINT meanwhile. Without a terminal SIGINT keeps its effect.
//
// The last 1,000 lines are kept across sessions in ~/.local/state/lockstep/history (XDG_STATE_HOME
// changes the place). Thread: one thread, because libedit's state is global.

#ifndef LOCKSTEP_DRIVER_TERMINAL_LINE_EDITOR_H_
#define LOCKSTEP_DRIVER_TERMINAL_LINE_EDITOR_H_

#include <functional>
#include <string>
#include <vector>

namespace lockstep::driver {

// Maps the word before the cursor, back to a space or an operator ("torch.mat"), to words that may
// replace it. Must not throw.
using Completer = std::function<std::vector<std::string>(const std::string& word)>;

struct TypedLine {
  std::string text;             // without its end
  bool is_end = false;          // the input has ended: there is no line
  bool is_interrupted = false;  // by Ctrl-C: ignore the line
};

// Returns whether a user types: stdin and stdout are terminals.
bool HasTerminal();

// Returns the next line. Without a terminal it only writes the prompt and reads.
TypedLine ReadLine(const std::string& prompt, const Completer& complete);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_TERMINAL_LINE_EDITOR_H_
