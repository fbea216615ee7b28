#include "driver/line_editor.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <system_error>
#include <utility>

#include "editline/readline.h"

namespace lockstep::driver {
namespace {

// libedit's callbacks carry no data of ours.
const Completer* completer = nullptr;
std::vector<std::string> candidates;

char* NextCandidate(const char* /*word*/, int index) {
  const auto i = static_cast<size_t>(index);
  return i < candidates.size() ? strdup(candidates[i].c_str()) : nullptr;  // libedit frees it
}

char** Complete(const char* word, int /*start*/, int /*end*/) {
  rl_attempted_completion_over = 1;  // no names of files where nothing fits
  candidates = (*completer)(word);
  return candidates.empty() ? nullptr : rl_completion_matches(word, NextCandidate);
}

// "" where there is no place for it.
std::string HistoryFile() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (state != nullptr && *state != '\0') {
    folder = state;
  } else if (home != nullptr && *home != '\0') {
    folder = std::filesystem::path(home) / ".local/state";
  } else {
    return "";
  }
  std::error_code error;
  std::filesystem::create_directories(folder / "lockstep", error);
  return error ? "" : (folder / "lockstep/history").string();
}

std::optional<std::string> ReadPlainLine(const std::string& prompt) {
  std::fputs(prompt.c_str(), stdout);
  std::fflush(stdout);
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

}  // namespace

std::optional<std::string> ReadLine(const std::string& prompt, const Completer& complete) {
  if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) return ReadPlainLine(prompt);
  static const std::string* const history = [] {
    static char name[] = "lockstep";
    // A dot and a colon are parts of a word: torch.matmul, x:relu.
    static char breaks[] = " \t\n\"'`@$><=;|&{}()[],+-*/%^#~";
    rl_readline_name = name;
    rl_basic_word_break_characters = breaks;
    rl_completer_word_break_characters = breaks;
    rl_completion_append_character = '\0';
    rl_attempted_completion_function = Complete;
    using_history();
    constexpr int kMaxLines = 1000;
    stifle_history(kMaxLines);
    auto* file = new std::string(HistoryFile());
    if (!file->empty()) read_history(file->c_str());
    return file;
  }();
  completer = &complete;
  const std::unique_ptr<char, decltype(&std::free)> line(readline(prompt.c_str()), std::free);
  completer = nullptr;
  if (line == nullptr) return std::nullopt;
  if (*line != '\0') {
    add_history(line.get());
    if (!history->empty()) write_history(history->c_str());
  }
  return std::string(line.get());
}

}  // namespace lockstep::driver
