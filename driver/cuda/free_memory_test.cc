#include "driver/cuda/free_memory.h"

#include <memory>

#include "c10/cuda/CUDACachingAllocator.h"
#include "gtest/gtest.h"

extern "C" lockstep::driver::FreeMemoryVariable lockstep_free_memory;

namespace lockstep::driver {
namespace {

int calls = 0;

TEST(FreeMemory, TheAllocatorsCallbackCallsTheFunctionThatIsSet) {
  ASSERT_TRUE(c10::FreeCudaMemoryCallbacksRegistry()->Has("lockstep"));
  const std::unique_ptr<c10::FreeMemoryCallback> callback =
      c10::FreeCudaMemoryCallbacksRegistry()->Create("lockstep");
  EXPECT_FALSE(callback->Execute());

  lockstep_free_memory = +[] { return ++calls > 0; };
  EXPECT_TRUE(callback->Execute());
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace lockstep::driver
