#include "driver/files/file_wait.h"

#include <future>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

TEST(FileWait, TheOldestOfAllThreadsIsFoundWhileItLasts) {
  EXPECT_FALSE(FileWait::Oldest().has_value());
  const std::string first = "/shared/first", second = "/shared/second";
  std::promise<void> both_wait, end_first;
  std::thread reader([&] {
    const FileWait wait("open", first);
    both_wait.set_value();
    end_first.get_future().wait();
  });
  both_wait.get_future().wait();
  const FileWait wait("read", second);

  ASSERT_TRUE(FileWait::Oldest().has_value());
  EXPECT_EQ(FileWait::Oldest()->what, "open /shared/first");
  end_first.set_value();
  reader.join();
  ASSERT_TRUE(FileWait::Oldest().has_value());
  EXPECT_EQ(FileWait::Oldest()->what, "read /shared/second");
}

TEST(FileWait, OneThatEndsIsGone) {
  const std::string path = "/shared/file";
  { const FileWait wait("open", path); }

  EXPECT_FALSE(FileWait::Oldest().has_value());
}

}  // namespace
}  // namespace lockstep::driver
