#include "driver/cuda/capture.h"

#include <string>
#include <vector>

#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// CUDAGraph of libtorch 2.11, call by call, with what its calls leave behind. Each step of
// `failing` fails, the first time that it is reached.
class Libtorch : public CaptureCalls {
 public:
  explicit Libtorch(std::vector<std::string> failing) : failing_(std::move(failing)) {}
  // As CUDAGraph's destructor.
  ~Libtorch() override { Reset(); }

  void Begin() override {
    Step("check the stream");
    is_pool_open_ = true;
    ++pool_uses_;
    Step("begin the capture");
    is_capturing_ = true;
    Step("look up the capture");
    is_listed_ = true;
    is_counting_ = true;  // a generator, from the first random number on
  }

  void End() override {
    is_capturing_ = false;  // cudaStreamEndCapture ends it, also where it returns an error
    Step("end the capture");
    TORCH_CHECK(is_listed_, "capture_end() called before capture_begin().");
    is_listed_ = false;
    is_pool_open_ = false;
    Step("check the graph");
    is_counting_ = false;
    Step("count the nodes");
    has_ended_ = true;
    Step("instantiate");
    has_graph_ = true;
  }

  void BeginEmpty() override {
    Step("begin an empty capture");
    is_capturing_ = true;
  }

  void Reset() override {
    if (has_ended_) --pool_uses_;
    has_ended_ = has_graph_ = false;
  }

  void Abandon() override {
    is_pool_open_ = is_counting_ = false;
    if (pool_uses_ > 0 && !has_ended_) --pool_uses_;
  }

  // Says what is left behind; nothing is what work after the recording needs.
  std::vector<std::string> Left() const {
    std::vector<std::string> left;
    if (is_pool_open_) left.push_back("the pool is open");
    if (is_capturing_) left.push_back("the stream captures");
    if (is_counting_) left.push_back("the generator counts");
    if (pool_uses_ != (has_graph_ ? 1 : 0)) left.push_back("the pool has another number of users");
    return left;
  }
  bool has_graph() const { return has_graph_; }

 private:
  void Step(const std::string& name) {
    if (failing_.empty() || failing_.front() != name) return;
    failing_.erase(failing_.begin());
    TORCH_CHECK(false, "CUDA error: cannot ", name);
  }

  std::vector<std::string> failing_;
  bool is_pool_open_ = false, is_capturing_ = false, is_listed_ = false, is_counting_ = false;
  bool has_ended_ = false, has_graph_ = false;
  int pool_uses_ = 0;
};

TEST(Capture, ARecordingThatWorksLeavesAGraph) {
  Libtorch libtorch({});
  Capture capture(&libtorch);

  capture.Begin();
  EXPECT_EQ(capture.End(), "");

  EXPECT_TRUE(libtorch.has_graph());
  EXPECT_THAT(libtorch.Left(), IsEmpty());
}

// The failure that Capture prevents, without it.
TEST(Capture, AfterCudasErrorLibtorchLeavesItsPoolOpen) {
  Libtorch libtorch({"end the capture"});

  libtorch.Begin();
  EXPECT_THROW(libtorch.End(), c10::Error);
  libtorch.Reset();

  EXPECT_THAT(libtorch.Left(), ::testing::ElementsAre("the pool is open", "the generator counts",
                                                      "the pool has another number of users"));
}

TEST(Capture, ABeginThatFailsAnywhereLeavesNothing) {
  for (const char* step : {"check the stream", "begin the capture"}) {
    SCOPED_TRACE(step);
    Libtorch libtorch({step});
    Capture capture(&libtorch);

    EXPECT_THROW(capture.Begin(), c10::Error);

    EXPECT_THAT(libtorch.Left(), IsEmpty());
  }
}

TEST(Capture, AnEndThatFailsAnywhereLeavesNothingAndSaysWhy) {
  for (const char* step :
       {"end the capture", "check the graph", "count the nodes", "instantiate"}) {
    for (const char* next : {"", "begin an empty capture", "end the capture", "check the graph",
                             "count the nodes", "instantiate"}) {
      SCOPED_TRACE(std::string(step) + ", then " + next);
      Libtorch libtorch({step, next});
      Capture capture(&libtorch);

      capture.Begin();
      const std::string broken = capture.End();

      EXPECT_THAT(broken, HasSubstr(std::string("cannot ") + step));
      EXPECT_FALSE(libtorch.has_graph());
      EXPECT_THAT(libtorch.Left(), IsEmpty());
    }
  }
}

}  // namespace
}  // namespace lockstep::driver
