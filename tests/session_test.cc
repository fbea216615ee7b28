// The interactive session at a terminal: a pseudo-terminal that types.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace lockstep::tests {
namespace {

using ::testing::HasSubstr;

// A session that runs until its end of input.
class Session {
 public:
  explicit Session(const Folder& folder, const std::string& preload = "")
      : terminal_(posix_openpt(O_RDWR | O_NOCTTY)) {
    if (terminal_ < 0 || grantpt(terminal_) != 0 || unlockpt(terminal_) != 0) {
      ADD_FAILURE() << "no pseudo-terminal";
      return;
    }
    const std::string name = ptsname(terminal_);
    const std::string program = DataFile("driver/lockstep");
    const std::string& home = folder.path();
    pid_ = fork();
    if (pid_ < 0) ADD_FAILURE() << "no process";
    if (pid_ != 0) return;
    setsid();
    const int side = open(name.c_str(), O_RDWR);
    for (int fd : {0, 1, 2}) dup2(side, fd);
    setenv("XDG_STATE_HOME", home.c_str(), 1);
    setenv("TERM", "xterm", 1);
    if (!preload.empty()) setenv("LD_PRELOAD", preload.c_str(), 1);
    execl(program.c_str(), program.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }

  ~Session() {
    if (pid_ > 0) {  // kill(-1, ...) would end every process of the user
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (terminal_ >= 0) close(terminal_);
  }

  // Without a terminal or a process there is nothing to talk to.
  bool started() const { return pid_ > 0; }

  void Type(const std::string& text) {
    ASSERT_TRUE(started());
    ASSERT_EQ(write(terminal_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  // Reads until `text` has been shown since the last call; returns all that was.
  std::string ReadUntil(const std::string& text) {
    constexpr int kPatienceMs = 60000;
    std::string shown;
    if (!started()) return shown;
    pollfd ready{terminal_, POLLIN, 0};
    while (shown.find(text) == std::string::npos && poll(&ready, 1, kPatienceMs) > 0) {
      char block[4096];
      const ssize_t count = read(terminal_, block, sizeof(block));
      if (count <= 0) break;
      shown.append(block, static_cast<size_t>(count));
    }
    EXPECT_THAT(shown, HasSubstr(text)) << "\"" << text << "\" is not in: " << shown;
    return shown;
  }

  // Types until the session ends, ten seconds at most: a signal that comes before the last one was
  // handled is lost.
  void TypeUntilEnd(const std::string& text) {
    for (int i = 0; i < 100 && started(); ++i) {
      Type(text);
      if (WaitUntilGone(pid_, absl::Milliseconds(100))) return;
    }
  }

  // As a shell tells it: 128 + n where signal n ended the session.
  int WaitForEnd() {
    if (!started() || !WaitUntilGone(pid_)) return -1;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  int terminal_;
  pid_t pid_ = -1;
};

TEST(Session, TabCompletesAnOperatorsName) {
  const Folder folder;
  Session session(folder);
  session.ReadUntil("> ");

  session.Type("torch.logsumex\t(torch.zeros({1}), {0}):item() + 41\n");

  session.ReadUntil("41\r\n");
}

TEST(Session, HistoryOutlivesTheSession) {
  const Folder folder;
  {
    Session session(folder);
    session.ReadUntil("> ");
    session.Type("20 + 22\n");
    session.ReadUntil("42\r\n> ");
  }

  Session session(folder);
  session.ReadUntil("> ");
  session.Type("\x1b[A\n");  // the line before

  session.ReadUntil("42\r\n");
}

TEST(Session, AnErrorDoesNotEndIt) {
  const Folder folder;
  Session session(folder);
  session.ReadUntil("> ");

  session.Type("torch.matmull\n");
  session.ReadUntil("did you mean \"matmul\"?");
  session.Type("? torch.matmul\n");
  session.ReadUntil("torch.matmul(Tensor self, Tensor other) -> Tensor");
}

TEST(Session, AnyTextMayBeTyped) {
  const Folder folder;
  Session session(folder);
  session.ReadUntil("> ");

  session.Type("#'\xc3\xa4\xe2\x82\xac\xff' + 37\n");  // 2 bytes, 3 bytes, and an invalid one

  session.ReadUntil("42\r\n");
}

// --- Ctrl-C --------------------------------------------------------------------------------------

constexpr char kCtrlC[] = "\x03";

TEST(Session, CtrlCInterruptsWhatRunsAndTheSessionGoesOn) {
  const char* const kLoops[] = {
      "while true do end",                                   // what the JIT would compile
      "while true do torch.ones({8}):sum() end",             // in C++, mostly
      "coroutine.wrap(function() while true do end end)()",  // on another stack of Lua's
      "lockstep.scope(function() while true do end end)",    // called by the library
      "io.popen('sleep 1000'):read()",                       // a wait
  };
  const Folder folder;
  Session session(folder);
  session.ReadUntil("> ");
  for (const char* loop : kLoops) {
    SCOPED_TRACE(loop);
    // The line break and the output then come from the program, so it runs.
    session.Type(absl::StrCat("print('run' .. 'ning'); ", loop, "\n"));
    session.ReadUntil("running\r\n");

    session.Type(kCtrlC);

    EXPECT_THAT(session.ReadUntil("> "), HasSubstr("typed:1: interrupted"));
    session.Type("20 + 22\n");
    session.ReadUntil("42\r\n> ");
  }
}

TEST(Session, CtrlCAtThePromptClearsTheLineAndWhatIsUnfinished) {
  const Folder folder;
  Session session(folder);
  session.ReadUntil("> ");
  session.Type("x = = =");
  session.ReadUntil("= = =");

  session.Type(kCtrlC);
  session.ReadUntil("> ");
  session.Type("x = {\n");
  session.ReadUntil(">> ");
  session.Type("1,");
  session.ReadUntil("1,");
  session.Type(kCtrlC);
  session.ReadUntil("> ");

  session.Type("type(x) .. 40 + 2\n");
  session.ReadUntil("nil42\r\n");
}

// Ctrl-C takes keys that wait away. A session that was about to read one of them must not wait for
// the next.
TEST(Session, CtrlCThatTakesAKeyAwayClearsTheLine) {
  const Folder folder;
  Session session(folder, DataFile("tests/support/late_read.so"));
  session.ReadUntil("> ");
  session.Type("x");
  session.ReadUntil("late");

  session.Type(kCtrlC);
  session.ReadUntil("> ");

  session.Type("40 + 2\n");
  session.ReadUntil("42\r\n");
}

TEST(Session, ASecondCtrlCInterruptsWhatCaughtTheFirst) {
  const Folder folder;
  Session session(folder);
  session.ReadUntil("> ");
  session.Type(
      "pcall(function() print('run' .. 'ning'); while true do end end) print('cau' .. 'ght') "
      "while true do end\n");
  session.ReadUntil("running\r\n");

  session.Type(kCtrlC);
  session.ReadUntil("caught\r\n");
  session.Type(kCtrlC);

  EXPECT_THAT(session.ReadUntil("> "), HasSubstr("typed:1: interrupted"));
  session.Type("20 + 22\n");
  session.ReadUntil("42\r\n> ");
}

TEST(Session, ASecondCtrlCEndsWorkThatIgnoresTheFirst) {
  const Folder folder;
  Session session(folder);
  session.ReadUntil("> ");
  // In C, for years: each "a?" is tried with and without its "a". Again where it was interrupted
  // before it had begun.
  session.Type(
      "repeat until pcall(function() print('run' .. 'ning'); "
      "('a'):rep(60):find(('a?'):rep(60) .. ('a'):rep(60)) end)\n");
  session.ReadUntil("running\r\n");

  session.Type(kCtrlC);
  session.TypeUntilEnd(kCtrlC);

  EXPECT_EQ(session.WaitForEnd(), 128 + SIGINT);
}

}  // namespace
}  // namespace lockstep::tests
