#include "driver/files/run_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::StartsWith;

std::string NewFolder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

// Another process that has locked the folder. It ends with this object.
class Holder {
 public:
  explicit Holder(const std::string& folder) {
    int ready[2], end[2];
    EXPECT_TRUE(pipe(ready) == 0 && pipe(end) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(end[1]);
      const absl::StatusOr<RunLock> lock = LockRun(folder);
      char byte = lock.ok() && !lock->is_held_by_another ? 1 : 0;
      std::ignore = write(ready[1], &byte, 1);
      std::ignore = read(end[0], &byte, 1);  // returns when the parent closes its end
      _exit(0);
    }
    close(end[0]);
    close(ready[1]);
    char byte = 0;
    EXPECT_TRUE(read(ready[0], &byte, 1) == 1 && byte == 1);
    close(ready[0]);
    end_ = end[1];
  }
  ~Holder() {
    close(end_);
    waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int end_ = -1;
};

RunLock Lock(const std::string& folder) {
  const absl::StatusOr<RunLock> lock = LockRun(folder);
  EXPECT_TRUE(lock.ok()) << lock.status();
  return lock.value_or(RunLock{});
}

TEST(RunLock, AnotherProcessesLockNamesItUntilItEnds) {
  const std::string folder = NewFolder("held");
  {
    const Holder holder(folder);

    const RunLock lock = Lock(folder);

    EXPECT_TRUE(lock.is_held_by_another);
    EXPECT_THAT(lock.holder, StartsWith(absl::StrCat("process ", holder.pid(), " on ")));
  }
  EXPECT_FALSE(Lock(folder).is_held_by_another);
}

TEST(RunLock, TheHolderMayAskAgain) {
  const std::string folder = NewFolder("again");
  EXPECT_FALSE(Lock(folder).is_held_by_another);

  EXPECT_FALSE(Lock(folder + "/../again").is_held_by_another);
}

TEST(RunLock, DeletingTheFileDoesNotLetASecondRunIn) {
  const std::string folder = NewFolder("deleted");
  const Holder holder(folder);
  std::filesystem::remove(folder + "/run.lock");

  EXPECT_TRUE(Lock(folder).is_held_by_another);
  EXPECT_TRUE(Lock(folder).is_held_by_another);
}

TEST(RunLock, AFolderThatIsNotThereCannotBeLocked) {
  const absl::StatusOr<RunLock> lock = LockRun(NewFolder("gone") + "/below");

  EXPECT_EQ(lock.status().message(), "No such file or directory");
}

}  // namespace
}  // namespace lockstep::driver
