// The test's program is its own template: main() serves before all else, as that of the driver
// does.
#include "driver/launch/template_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

extern char** environ;

namespace lockstep::driver {
namespace {

using ::testing::ElementsAre;

constexpr char kSharedVariable[] = "SHARED_FD";
// Makes a template start a thread, so that it refuses to fork.
constexpr char kThreadVariable[] = "TEMPLATE_HAS_A_THREAD";

std::string ReadAll(int fd) {
  std::string result;
  char part[4096];
  ssize_t size;
  while ((size = read(fd, part, sizeof(part))) > 0) result.append(part, static_cast<size_t>(size));
  return result;
}

std::vector<std::string> Environment() {
  std::vector<std::string> result;
  for (char** text = environ; *text != nullptr; ++text) result.emplace_back(*text);
  return result;
}

int NumOpenFiles() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// A forked process and the ends of what it writes.
struct Forked {
  pid_t pid = -1;
  std::string out;
  std::string err;
  int status = 0;
};

// Forks, reads all that the process writes, and waits for its end, which only a parent can.
Forked ForkAndWait(TemplateProcess& ranks, std::vector<std::string> arguments,
                   std::vector<std::string> environment = {}, int shared = -1) {
  int out[2];
  int err[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
  const int own_shared = shared >= 0 ? shared : open("/dev/null", O_RDONLY | O_CLOEXEC);
  Forked result;
  result.pid = ranks.Fork({.arguments = std::move(arguments),
                           .environment = std::move(environment),
                           .out = out[1],
                           .err = err[1],
                           .shared = own_shared,
                           .shared_variable = kSharedVariable});
  close(out[1]);
  close(err[1]);
  if (shared < 0) close(own_shared);
  result.out = ReadAll(out[0]);
  result.err = ReadAll(err[0]);
  close(out[0]);
  close(err[0]);
  if (result.pid > 1) {
    EXPECT_EQ(waitpid(result.pid, &result.status, 0), result.pid);
  }
  return result;
}

// What a forked process does: see main().
int RunForked(const std::vector<std::string>& arguments) {
  const std::string& what = arguments.at(0);
  if (what == "places") {
    std::printf("%d %d %d\n", getppid(), getpgrp(), getpid());
  } else if (what == "texts") {
    std::fputs(absl::StrCat(absl::StrJoin(arguments, "|"), "\n", absl::StrJoin(Environment(), "|"))
                   .c_str(),
               stdout);
    std::fputs("to stderr", stderr);
  } else if (what == "shared") {
    return dprintf(std::atoi(std::getenv(kSharedVariable)), "written by the rank") > 0 ? 0 : 1;
  } else if (what == "files") {
    std::printf("%d", NumOpenFiles());
  } else if (what == "killed") {
    raise(SIGKILL);
  }
  return what == "fails" ? 7 : 0;
}

TEST(TemplateProcess, ForksAChildOfTheLauncherInAGroupOfItsOwn) {
  TemplateProcess ranks;
  ranks.Start();

  const Forked rank = ForkAndWait(ranks, {"places"});

  EXPECT_EQ(rank.out, absl::StrCat(getpid(), " ", rank.pid, " ", rank.pid, "\n"));
  EXPECT_EQ(rank.status, 0);
}

// Returns a child of this process, or -1.
pid_t AnyChild() {
  std::FILE* file =
      std::fopen(absl::StrCat("/proc/self/task/", getpid(), "/children").c_str(), "r");
  int pid = -1;
  if (file == nullptr || std::fscanf(file, "%d", &pid) != 1) pid = -1;
  if (file != nullptr) std::fclose(file);
  return pid;
}

// An orphan comes to this process as the template's launcher. The template ends before it.
TEST(TemplateProcess, OrphansAndTheTemplateItselfAreReapedButNotOwnChildren) {
  TemplateProcess ranks;
  ranks.Start();
  siginfo_t info{};
  kill(AnyChild(), SIGKILL);
  ASSERT_EQ(waitid(P_ALL, 0, &info, WEXITED | WNOWAIT), 0);
  pid_t own = -1;
  char program[] = "sh", option[] = "-c", text[] = "true &";
  char* argv[] = {program, option, text, nullptr};
  ASSERT_EQ(posix_spawnp(&own, program, nullptr, nullptr, argv, environ), 0);

  // The shell and its orphan end when they want to.
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(own), &info, WEXITED | WNOWAIT), 0);
  ranks.ReapAdopted([&](pid_t pid) { return pid == own; });
  int status = -1;
  EXPECT_EQ(waitpid(own, &status, 0), own);
  EXPECT_EQ(status, 0);
  while (AnyChild() >= 0) ranks.ReapAdopted([](pid_t) { return false; });

  EXPECT_EQ(ranks.Fork({}), -1);
}

TEST(TemplateProcess, TheRankHasTheArgumentsTheEnvironmentAndTheStreamsOfItsStart) {
  TemplateProcess ranks;
  ranks.Start();

  const Forked rank = ForkAndWait(ranks, {"texts", "", "two words"},
                                  {"A=1", "EMPTY=", "LONG=" + std::string(1 << 20, 'x')});

  const std::vector<std::string> lines = absl::StrSplit(rank.out, '\n');
  ASSERT_EQ(lines.size(), 2);
  EXPECT_EQ(lines[0], "texts||two words");
  std::vector<std::string> environment = absl::StrSplit(lines[1], '|');
  ASSERT_EQ(environment.size(), 4);
  EXPECT_THAT(environment.back(), ::testing::StartsWith(absl::StrCat(kSharedVariable, "=")));
  environment.pop_back();
  EXPECT_THAT(environment, ElementsAre("A=1", "EMPTY=", "LONG=" + std::string(1 << 20, 'x')));
  EXPECT_EQ(rank.err, "to stderr");
}

TEST(TemplateProcess, TheRankInheritsTheSharedFileAndNoOther) {
  TemplateProcess ranks;
  ranks.Start();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);

  EXPECT_EQ(ForkAndWait(ranks, {"shared"}, {}, ends[1]).status, 0);

  close(ends[1]);
  EXPECT_EQ(ReadAll(ends[0]), "written by the rank");
  close(ends[0]);
  EXPECT_EQ(ForkAndWait(ranks, {"files"}).out, "4");  // stdin, stdout, stderr, the shared one
}

TEST(TemplateProcess, TheLauncherGetsTheExitCodeOrTheSignal) {
  TemplateProcess ranks;
  ranks.Start();

  const int failed = ForkAndWait(ranks, {"fails"}).status;
  const int killed = ForkAndWait(ranks, {"killed"}).status;

  EXPECT_TRUE(WIFEXITED(failed) && WEXITSTATUS(failed) == 7) << failed;
  EXPECT_TRUE(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL) << killed;
}

TEST(TemplateProcess, ForksAsOftenAsAskedAndLeavesNothing) {
  const int before = NumOpenFiles();
  {
    TemplateProcess ranks;
    ranks.Start();
    ranks.Start();  // runs already
    for (int i = 0; i < 20; ++i) EXPECT_EQ(ForkAndWait(ranks, {"nothing"}).status, 0);
  }

  EXPECT_EQ(NumOpenFiles(), before);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // no child, ended or not
  EXPECT_EQ(errno, ECHILD);
}

TEST(TemplateProcess, WithoutATemplateForkSaysSo) {
  TemplateProcess ranks;

  EXPECT_EQ(ForkAndWait(ranks, {"nothing"}).pid, -1);
}

// The forked process would have a lock that no thread of it ever frees.
TEST(TemplateProcess, OneWithThreadsRefuses) {
  setenv(kThreadVariable, "1", 1);
  TemplateProcess ranks;
  ranks.Start();
  unsetenv(kThreadVariable);

  EXPECT_EQ(ForkAndWait(ranks, {"nothing"}).pid, -1);

  EXPECT_EQ(ForkAndWait(ranks, {"nothing"}).pid, -1);
  ranks.Start();
  EXPECT_EQ(ForkAndWait(ranks, {"nothing"}).status, 0);
}

// The template has the launcher's stdout, which is at its end when both are gone.
TEST(TemplateProcess, EndsWithItsLauncher) {
  int out[2];
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
  char program[] = "launcher";
  char option[] = "--killed_launcher";
  char* argv[] = {program, option, nullptr};
  pid_t launcher = -1;
  ASSERT_EQ(posix_spawn(&launcher, "/proc/self/exe", &files, nullptr, argv, environ), 0);
  posix_spawn_file_actions_destroy(&files);
  close(out[1]);

  EXPECT_EQ(ReadAll(out[0]), "forked");

  close(out[0]);
  int status = 0;
  EXPECT_EQ(waitpid(launcher, &status, 0), launcher);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

int RunKilledLauncher() {
  TemplateProcess ranks;
  ranks.Start();
  if (ForkAndWait(ranks, {"nothing"}).pid > 1) dprintf(STDOUT_FILENO, "forked");
  return raise(SIGKILL);
}

int Main(int argc, char** argv) {
  if (std::getenv("LOCKSTEP_TEMPLATE") != nullptr && std::getenv(kThreadVariable) != nullptr)
    std::thread([] { pause(); }).detach();
  if (const auto arguments = ServeAsTemplate()) {
    const int code = RunForked(*arguments);
    std::fflush(stdout);
    _exit(code);
  }
  if (argc > 1 && std::strcmp(argv[1], "--killed_launcher") == 0) return RunKilledLauncher();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace lockstep::driver

int main(int argc, char** argv) { return lockstep::driver::Main(argc, argv); }
