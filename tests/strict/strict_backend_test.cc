// Each rule of the strict backend, broken and kept. A rank is a thread.

#include "tests/strict/strict_backend.h"

#include <barrier>
#include <chrono>
#include <csignal>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"

namespace lockstep::tests {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Tensors = StrictBackend::Tensors;
using WorkPointer = StrictBackend::WorkPointer;

// A rank's operations on its group.
using Body = std::function<void(StrictBackend& group, int rank)>;

// Runs the body as every rank of a group; returns each rank's error, "" where it has none. A rank
// leaves the group when its body has ended.
std::vector<std::string> RunOnRanks(int size, const Body& body) {
  // Gloo writes to a rank that has left without MSG_NOSIGNAL. With the signal ignored, the write
  // fails with EPIPE, which Gloo reports; else it ends the process without a message.
  std::signal(SIGPIPE, SIG_IGN);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  std::barrier connected(size);  // a rank that leaves does not disturb those that still connect
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(30));
        options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
        StrictBackend group(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options),
                            "world", ranks);
        connected.arrive_and_wait();
        body(group, rank);
      } catch (const c10::Error& error) {
        errors[static_cast<size_t>(rank)] = error.what_without_backtrace();
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

at::Tensor Ones(int64_t size, at::ScalarType dtype = at::kFloat) { return at::ones({size}, dtype); }

WorkPointer Send(StrictBackend& group, const at::Tensor& x, int to, int tag = 0) {
  Tensors tensors = {x};
  return group.send(tensors, to, tag);
}

WorkPointer Receive(StrictBackend& group, const at::Tensor& x, int from, int tag = 0) {
  Tensors tensors = {x};
  return group.recv(tensors, from, tag);
}

WorkPointer AllReduce(StrictBackend& group, const at::Tensor& x,
                      c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM) {
  Tensors tensors = {x};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return group.allreduce(tensors, options);
}

WorkPointer Broadcast(StrictBackend& group, const at::Tensor& x, int from) {
  Tensors tensors = {x};
  c10d::BroadcastOptions options;
  options.rootRank = from;
  return group.broadcast(tensors, options);
}

TEST(StrictBackend, CarriesWhatNcclCarries) {
  const auto errors = RunOnRanks(3, [](StrictBackend& group, int rank) {
    const at::Tensor sum = at::full({2}, rank + 1.0);
    AllReduce(group, sum)->wait();
    EXPECT_TRUE(at::equal(sum, at::full({2}, 6.0)));

    const int next = (rank + 1) % 3, last = (rank + 2) % 3;
    const at::Tensor from_next = at::zeros({3}), from_last = at::zeros({2});
    group.startCoalescing();
    Send(group, at::full({2}, static_cast<double>(rank)), next);
    Send(group, at::full({3}, static_cast<double>(rank)), last);
    Receive(group, from_next, next);
    Receive(group, from_last, last);
    group.endCoalescing()->wait();
    EXPECT_TRUE(at::equal(from_next, at::full({3}, static_cast<double>(next))));
    EXPECT_TRUE(at::equal(from_last, at::full({2}, static_cast<double>(last))));

    if (rank == 0) Send(group, at::full({2}, 7.0), 1)->wait();
    const at::Tensor seven = at::zeros({2});
    if (rank == 1) Receive(group, seven, 0)->wait();
    EXPECT_TRUE(rank != 1 || at::equal(seven, at::full({2}, 7.0)));

    at::Tensor all = at::zeros({6}), own = at::full({2}, static_cast<double>(rank));
    group._allgather_base(all, own, {})->wait();
    EXPECT_TRUE(at::equal(all, at::arange(3).repeat_interleave(2).to(at::kFloat)));

    // Rank r gives 1, 2, 3 elements to ranks 0, 1, 2.
    at::Tensor given = at::full({6}, static_cast<double>(rank)),
               taken = at::zeros({3 * (rank + 1)});
    std::vector<int64_t> takes(3, rank + 1), gives = {1, 2, 3};
    group.alltoall_base(taken, given, takes, gives, {})->wait();
    EXPECT_EQ(taken.sum().item<double>(), 3 * (rank + 1));
    group.barrier({})->wait();
  });

  EXPECT_THAT(errors, Each(IsEmpty()));
}

// --- The operations of two ranks match in order of issue

TEST(StrictBackend, TagsDoNotTellMessagesApart) {
  for (const bool in_order : {false, true}) {
    const auto errors = RunOnRanks(2, [in_order](StrictBackend& group, int rank) {
      const auto message = [&](int tag) {
        return rank == 0 ? Send(group, Ones(2), 1, tag) : Receive(group, Ones(2), 0, tag);
      };
      const WorkPointer first = message(rank == 0 || in_order ? 5 : 6);
      const WorkPointer second = message(rank == 0 || in_order ? 6 : 5);
      first->wait();
      second->wait();
    });

    if (in_order) {
      EXPECT_THAT(errors, Each(IsEmpty()));
    } else {
      EXPECT_THAT(errors, Each(HasSubstr("the tags are 5 and 6; NCCL ignores tags")));
    }
  }
}

TEST(StrictBackend, TwoRanksThatSendToEachOtherDoSoInABatch) {
  for (const bool in_batch : {false, true}) {
    const auto errors = RunOnRanks(2, [in_batch](StrictBackend& group, int rank) {
      if (in_batch) group.startCoalescing();
      const WorkPointer sent = Send(group, Ones(2), 1 - rank);
      const WorkPointer received = Receive(group, Ones(2), 1 - rank);
      if (in_batch) {
        group.endCoalescing()->wait();
      } else {
        sent->wait();
        received->wait();
      }
    });

    if (in_batch) {
      EXPECT_THAT(errors, Each(IsEmpty()));
    } else {
      EXPECT_THAT(errors,
                  Each(AllOf(HasSubstr("rank 0 issued \"send 2 of Float to rank 1\", rank 1 "
                                       "issued \"send 2 of Float to rank 0\""),
                             HasSubstr("each send waits for the other's receive"))));
    }
  }
}

TEST(StrictBackend, AMessageInABatchIsNotWaitedForAlone) {
  const auto errors = RunOnRanks(1, [](StrictBackend& group, int) {
    group.startCoalescing();
    EXPECT_EQ(group.endCoalescing(), nullptr);
    Send(group, Ones(1), 0);
  });
  EXPECT_THAT(errors, Each(HasSubstr("on that rank itself")));

  const auto early = RunOnRanks(2, [](StrictBackend& group, int rank) {
    group.startCoalescing();
    Send(group, Ones(1), 1 - rank)->wait();
  });
  EXPECT_THAT(early, Each(HasSubstr("wait for the batch")));
}

// --- A communicator's first operation needs all of its ranks

TEST(StrictBackend, TheFirstBatchNeedsEveryRankOfTheGroup) {
  for (const bool met : {false, true}) {
    const auto errors = RunOnRanks(3, [met](StrictBackend& group, int rank) {
      if (met) AllReduce(group, Ones(1))->wait();
      if (rank == 2) return;  // which has no rows
      group.startCoalescing();
      rank == 0 ? Send(group, Ones(2), 1) : Receive(group, Ones(2), 0);
      group.endCoalescing()->wait();
    });

    if (met) {
      EXPECT_THAT(errors, Each(IsEmpty()));
    } else {
      EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 0 waited for rank 2 to come for the first"),
                                   HasSubstr("\"send 2 of Float to rank 1\" here"),
                                   HasSubstr("needs all of its ranks")));
      EXPECT_THAT(errors[1], HasSubstr("rank 1 waited for rank 2 to come for the first"));
      EXPECT_EQ(errors[2], "");
    }
  }
}

TEST(StrictBackend, TheFirstMessageOfAPairWaitsForBothOnTheCallingThread) {
  const auto errors = RunOnRanks(2, [](StrictBackend& group, int rank) {
    if (rank == 0) Send(group, Ones(2), 1);
  });

  EXPECT_THAT(errors[0], HasSubstr("the communicator of two ranks"));
}

// --- A communicator has one order

TEST(StrictBackend, CollectivesHaveOneOrderOnAllRanks) {
  for (const bool alike : {false, true}) {
    const auto errors = RunOnRanks(3, [alike](StrictBackend& group, int rank) {
      const bool swaps = rank == 2 && !alike;
      const WorkPointer first = swaps ? Broadcast(group, Ones(2), 0) : AllReduce(group, Ones(2));
      const WorkPointer second = swaps ? AllReduce(group, Ones(2)) : Broadcast(group, Ones(2), 0);
      first->wait();
      second->wait();
    });

    if (alike) {
      EXPECT_THAT(errors, Each(IsEmpty()));
    } else {
      EXPECT_THAT(errors, Each(AllOf(HasSubstr("issued \"all_reduce 2 of Float sum\", rank 2 "
                                               "issued \"broadcast 2 of Float from rank 0\""),
                                     HasSubstr("by their order alone"))));
    }
  }
}

TEST(StrictBackend, ABatchDoesNotOvertakeACollective) {
  for (const bool alike : {false, true}) {
    const auto errors = RunOnRanks(2, [alike](StrictBackend& group, int rank) {
      const bool batch_first = alike || rank == 0;
      WorkPointer sum = batch_first ? nullptr : AllReduce(group, Ones(1));
      group.startCoalescing();
      rank == 0 ? Send(group, Ones(2), 1) : Receive(group, Ones(2), 0);
      const WorkPointer batch = group.endCoalescing();
      if (batch_first) sum = AllReduce(group, Ones(1));
      batch->wait();
      sum->wait();
    });

    if (alike) {
      EXPECT_THAT(errors, Each(IsEmpty()));
    } else {
      EXPECT_THAT(errors[0], HasSubstr("rank 0 has issued 0 collectives of the group before it, "
                                       "rank 1 has issued 1; a communicator runs"));
    }
  }
}

TEST(StrictBackend, OneThreadIssuesAll) {
  const auto errors = RunOnRanks(2, [](StrictBackend& group, int) {
    AllReduce(group, Ones(1))->wait();
    std::string message;
    std::thread([&] {
      try {
        AllReduce(group, Ones(1));
      } catch (const c10::Error& error) {
        message = error.what_without_backtrace();
      }
    }).join();
    EXPECT_THAT(message, HasSubstr("issue all from one thread"));
    AllReduce(group, Ones(1))->wait();
  });

  EXPECT_THAT(errors, Each(IsEmpty()));
}

// --- Both sides name one size and one dtype

TEST(StrictBackend, SizesAndDtypesOfBothSidesAgree) {
  struct Case {
    at::Tensor sent, received;
    const char* error;
  };
  const std::vector<Case> cases = {
      {Ones(4), Ones(4), ""},
      {Ones(0), Ones(0), ""},
      {Ones(4), at::ones({2, 2}), ""},
      {Ones(4), Ones(6), "rank 1 issued \"recv 6 of Float from rank 0\": both sides must name"},
      {Ones(6), Ones(4), "rank 0 issued \"send 6 of Float to rank 1\""},
      {Ones(4), Ones(2, at::kDouble), "NCCL does not compare them"},
      {Ones(4), Ones(4, at::kInt), "NCCL does not compare them"},
  };
  for (const bool in_batch : {false, true}) {
    for (const Case& each : cases) {
      const auto errors = RunOnRanks(2, [&](StrictBackend& group, int rank) {
        if (in_batch) group.startCoalescing();
        WorkPointer work = rank == 0 ? Send(group, each.sent, 1) : Receive(group, each.received, 0);
        if (in_batch) work = group.endCoalescing();
        work->wait();
      });
      if (*each.error == 0) {
        EXPECT_THAT(errors, Each(IsEmpty()));
      } else {
        EXPECT_THAT(errors, Each(HasSubstr(each.error)));
      }
    }
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kInt}) {
    const int64_t size = dtype == at::kInt ? 2 : 3;
    const auto errors = RunOnRanks(2, [&](StrictBackend& group, int rank) {
      AllReduce(group, rank == 0 ? Ones(2) : Ones(size, dtype))->wait();
    });
    EXPECT_THAT(errors, Each(HasSubstr("with equal sizes and dtypes, on every rank")));
  }
}

// --- Backward has one order

// Identity whose backward adds up the gradient over ranks.
struct SumGradient : public torch::autograd::Function<SumGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            StrictBackend* group) {
    context->saved_data["group"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(group));
    return x.view_as(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* group = reinterpret_cast<StrictBackend*>(
        static_cast<intptr_t>(context->saved_data["group"].toInt()));
    const at::Tensor sum = gradients[0].clone();
    AllReduce(*group, sum)->wait();
    return {sum, {}};
  }
};

TEST(StrictBackend, BackwardRunsInOneOrderOnAllRanks) {
  for (const bool alike : {false, true}) {
    const auto errors = RunOnRanks(2, [alike](StrictBackend& group, int rank) {
      const at::Tensor first = Ones(2).requires_grad_(), second = Ones(2).requires_grad_();
      const at::Tensor of_first = SumGradient::apply(first, &group).sum();
      const at::Tensor of_second = SumGradient::apply(second, &group).sum();
      // Two all_reduces of one size, which NCCL would add up crosswise.
      const bool swaps = rank == 1 && !alike;
      (swaps ? of_second : of_first).backward();
      (swaps ? of_first : of_second).backward();
      EXPECT_TRUE(at::equal(first.grad(), at::full({2}, 2.0)));
    });

    if (alike) {
      EXPECT_THAT(errors, Each(IsEmpty()));
    } else {
      EXPECT_THAT(errors, Each(HasSubstr("on rank 0 for a later part of forward than the operation "
                                         "before, on rank 1 for an earlier one")));
    }
  }
}

// A hook of a rank whose backward comes first overtakes the rank that still runs forward.
TEST(StrictBackend, AHookDoesNotOvertakeForward) {
  const auto errors = RunOnRanks(2, [](StrictBackend& group, int rank) {
    const at::Tensor x = Ones(2).requires_grad_();
    const at::Tensor loss = SumGradient::apply(x, &group).sum();
    if (rank == 0) loss.backward();
    const at::Tensor metric = Ones(1);
    AllReduce(group, metric)->wait();
    if (rank == 1) loss.backward();
  });

  EXPECT_THAT(errors, Each(HasSubstr("rank 0 issued \"all_reduce 2 of Float sum\", rank 1 issued "
                                     "\"all_reduce 1 of Float sum\"")));
}

// --- What NCCL cannot do

TEST(StrictBackend, TakesWhatNcclTakes) {
  struct Case {
    Body body;
    const char* error;
  };
  const std::vector<Case> cases = {
      {[](StrictBackend& group, int) {
         AllReduce(group, at::ones({2, 3}).t());
       },
       "NCCL takes contiguous tensors alone"},
      {[](StrictBackend& group, int) { AllReduce(group, Ones(2, at::kShort)); },
       "NCCL has no dtype Short"},
      {[](StrictBackend& group, int) { AllReduce(group, Ones(2, at::kInt), c10d::ReduceOp::BOR); },
       "NCCL has no reduction of this kind"},
      {[](StrictBackend& group, int) {
         Tensors two = {Ones(2), Ones(2)};
         group.allreduce(two, {});
       },
       "NCCL takes one tensor for each call, not 2"},
      {[](StrictBackend& group, int) {
         Tensors one = {Ones(2)};
         group.recvAnysource(one, 0);
       },
       "does not support"},
  };
  for (const Case& each : cases) EXPECT_THAT(RunOnRanks(1, each.body), Each(HasSubstr(each.error)));
}

TEST(StrictBackend, OperationsAfterAFailureFail) {
  const auto errors = RunOnRanks(2, [](StrictBackend& group, int rank) {
    const WorkPointer wrong = AllReduce(group, Ones(rank + 1));
    const WorkPointer right = AllReduce(group, Ones(1));
    EXPECT_THROW(wrong->wait(), c10::Error);
    right->wait();
  });

  EXPECT_THAT(errors, Each(HasSubstr("an operation before this one failed")));
}

// Messages that were issued before their sizes were compared: NCCL would have begun to carry them.
TEST(StrictBackend, AnUnnoticedFailureFailsTheNextOperation) {
  const auto errors = RunOnRanks(2, [](StrictBackend& group, int rank) {
    AllReduce(group, Ones(1))->wait();
    group.startCoalescing();
    rank == 0 ? Send(group, Ones(15), 1) : Receive(group, Ones(3), 0);
    const WorkPointer rows = group.endCoalescing();
    while (!rows->isCompleted()) std::this_thread::yield();

    Send(group, Ones(1), 1 - rank);
  });

  EXPECT_THAT(errors, Each(AllOf(HasSubstr("failed, and nobody has waited for it: "),
                                 HasSubstr("rank 1 issued \"recv 3 of Float from rank 0\""))));
}

}  // namespace
}  // namespace lockstep::tests
