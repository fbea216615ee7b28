#include "driver/terminal/line_editor.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <system_error>

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

TypedLine ReadPlainLine(const std::string& prompt) {
  std::fputs(prompt.c_str(), stdout);
  std::fflush(stdout);
  TypedLine line;
  line.is_end = !std::getline(std::cin, line.text);
  return line;
}

std::atomic<bool> sigint_came{false};
std::atomic<bool> sigwinch_came{false};
static_assert(std::atomic<bool>::is_always_lock_free);
pthread_t reader;

// On any thread; poll is on the reader's.
void NoteSignal(int signal) {
  (signal == SIGINT ? sigint_came : sigwinch_came) = true;
  if (pthread_equal(pthread_self(), reader) == 0) pthread_kill(reader, signal);
}

// Returns the terminal, opened anew so that a read never waits; stdin if it cannot be opened.
// Ctrl-C takes away what was typed, also after poll has seen it. A read that waits then sees the
// signal with the next key. Others share stdin's own flags.
int Terminal() {
  static const int terminal = [] {
    const char* const name = ttyname(STDIN_FILENO);
    const int own = name == nullptr ? -1 : open(name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return own < 0 ? STDIN_FILENO : own;
  }();
  return terminal;
}

// The next byte that is typed; -1 at the end of input. Nothing where a signal came.
std::optional<int> ReadByte() {
  pollfd ready{STDIN_FILENO, POLLIN, 0};
  sigset_t none;
  sigemptyset(&none);
  // Signals come here alone: one that came before the wait would be seen after the next key.
  if (ppoll(&ready, 1, nullptr, &none) < 0) return std::nullopt;
  unsigned char byte = 0;
  const ssize_t size = read(Terminal(), &byte, 1);
  if (size < 0 && (errno == EINTR || errno == EAGAIN)) return std::nullopt;
  return size == 1 ? byte : -1;
}

// Returns the next character in the locale, and skips invalid bytes. libedit's own reading can stop
// only at a line end, so this function ends a line that Ctrl-C cancels.
int ReadCharacter(FILE* /*input*/) {
  std::mbstate_t partial{};
  for (;;) {
    if (sigint_came) return '\n';
    if (sigwinch_came.exchange(false)) rl_resize_terminal();
    const std::optional<int> byte = ReadByte();
    if (!byte.has_value()) continue;
    if (*byte < 0) return -1;
    const char narrow = static_cast<char>(*byte);
    wchar_t wide = 0;
    const size_t used = std::mbrtowc(&wide, &narrow, 1, &partial);
    if (used == 0 || used == 1) return static_cast<int>(wide);
    if (used == static_cast<size_t>(-1)) partial = {};
  }
}

// Catches signals while a line is read.
class SignalsWhileReading {
 public:
  SignalsWhileReading() {
    reader = pthread_self();
    sigint_came = false;
    sigset_t signals;
    sigemptyset(&signals);
    for (int i = 0; i < 2; ++i) sigaddset(&signals, kSignals[i]);
    pthread_sigmask(SIG_BLOCK, &signals, &mask_);
    struct sigaction action {};
    action.sa_handler = NoteSignal;
    action.sa_flags = SA_RESTART;
    for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &action, &before_[i]);
  }

  ~SignalsWhileReading() {
    for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &before_[i], nullptr);
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }

 private:
  static constexpr int kSignals[] = {SIGINT, SIGWINCH};
  sigset_t mask_;
  struct sigaction before_[2];
};

// Sets libedit up; returns where lines are kept, "" for nowhere.
const std::string& History() {
  static const std::string* const history = [] {
    // Uses the user's locale, or one that reads every text.
    if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1)
      std::setlocale(LC_CTYPE, "C.UTF-8");
    static char name[] = "lockstep";
    // A dot and a colon are parts of a word: torch.matmul, x:relu.
    static char breaks[] = " \t\n\"'`@$><=;|&{}()[],+-*/%^#~";
    rl_readline_name = name;
    rl_basic_word_break_characters = breaks;
    rl_completer_word_break_characters = breaks;
    rl_completion_append_character = '\0';
    rl_attempted_completion_function = Complete;
    rl_catch_signals = 0;
    rl_getc_function = ReadCharacter;
    signal(SIGINT, SIG_IGN);
    using_history();
    constexpr int kMaxLines = 1000;
    stifle_history(kMaxLines);
    auto* file = new std::string(HistoryFile());
    if (!file->empty()) read_history(file->c_str());
    return file;
  }();
  return *history;
}

}  // namespace

bool HasTerminal() { return isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0; }

TypedLine ReadLine(const std::string& prompt, const Completer& complete) {
  if (!HasTerminal()) return ReadPlainLine(prompt);
  const std::string& history = History();
  completer = &complete;
  TypedLine line;
  {
    const SignalsWhileReading signals;
    const std::unique_ptr<char, decltype(&std::free)> text(readline(prompt.c_str()), std::free);
    line.is_interrupted = sigint_came;
    line.is_end = text == nullptr && !line.is_interrupted;
    if (text != nullptr && !line.is_interrupted) line.text = text.get();
  }
  completer = nullptr;
  if (!line.text.empty()) {
    add_history(line.text.c_str());
    if (!history.empty()) write_history(history.c_str());
  }
  return line;
}

}  // namespace lockstep::driver
