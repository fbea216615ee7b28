// The step of each rank of a machine, in memory that the ranks share with their launcher. The
// launcher reads there which step a rank was at when it was killed.
//
//    StepBoard board(2);                                   // in the launcher
//    Start({StepBoard::kVariable, board.fd()});            // ... which hands the descriptor on
//    JoinStepBoard(/*local_rank=*/0);                      // in a rank
//    NoteStep(17);                                         // costs one store to memory
//    board.step(0);                                        // 17, after the rank's death, too
//
// The memory has no name: nothing is left of it when the processes have ended, however they end.
// Thread-safe.

#ifndef LOCKSTEP_DRIVER_RANKS_STEP_BOARD_H_
#define LOCKSTEP_DRIVER_RANKS_STEP_BOARD_H_

#include <atomic>
#include <cstdint>
#include <optional>

namespace lockstep::driver {

class StepBoard {
 public:
  // The environment variable that gives a rank the descriptor's number.
  static constexpr char kVariable[] = "LOCKSTEP_STEP_BOARD";

  // Throws c10::Error if the system has no memory for it.
  explicit StepBoard(int num_ranks);
  StepBoard(const StepBoard&) = delete;
  StepBoard& operator=(const StepBoard&) = delete;
  ~StepBoard();

  // Returns the descriptor, which child processes inherit.
  int fd() const { return fd_; }

  // Returns the rank's last step; nullopt before the first.
  std::optional<int64_t> step(int local_rank) const;

 private:
  const int num_ranks_;
  int fd_ = -1;
  std::atomic<int64_t>* steps_ = nullptr;  // the number of the step plus 1
};

// Joins the board of this process's launcher, if it has one. Closes the descriptor and removes the
// variable, so that children of this process have neither.
void JoinStepBoard(int local_rank);

// Notes the step on the board that this process has joined, if any.
void NoteStep(int64_t step);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_STEP_BOARD_H_
