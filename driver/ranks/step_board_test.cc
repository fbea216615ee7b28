#include "driver/ranks/step_board.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

TEST(StepBoard, KeepsTheStepOfARankThatIsKilled) {
  const StepBoard board(3);
  EXPECT_EQ(board.step(1), std::nullopt);

  const pid_t rank = fork();
  if (rank == 0) {
    setenv(StepBoard::kVariable, std::to_string(board.fd()).c_str(), 1);
    JoinStepBoard(1);
    NoteStep(0);
    if (std::getenv(StepBoard::kVariable) == nullptr && close(board.fd()) != 0) NoteStep(17);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(rank, &status, 0), rank);

  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(board.step(1), 17);
  EXPECT_EQ(board.step(0), std::nullopt);
  EXPECT_EQ(board.step(2), std::nullopt);
}

TEST(StepBoard, WithoutALauncherStepsAreNotedNowhere) {
  unsetenv(StepBoard::kVariable);
  JoinStepBoard(0);
  NoteStep(1);
  for (const char* number : {"-1", "0", "x", "1000000"}) {
    setenv(StepBoard::kVariable, number, 1);
    JoinStepBoard(0);
    NoteStep(1);
  }
}

}  // namespace
}  // namespace lockstep::driver
