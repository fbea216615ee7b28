#include "driver/cuda/capture.h"

#include "c10/util/Exception.h"

namespace lockstep::driver {

void Capture::Begin() {
  try {
    calls_->Begin();
  } catch (const c10::Error&) {
    calls_->Abandon();
    throw;
  }
}

std::string Capture::End() {
  std::string broken;
  try {
    calls_->End();
    return broken;
  } catch (const c10::Error& error) {
    broken = error.what_without_backtrace();
  }
  try {
    calls_->BeginEmpty();
    calls_->End();
  } catch (const c10::Error&) {
    // The first End had closed the pool, and failed behind that; or CUDA records nothing any more.
    calls_->Abandon();
  }
  calls_->Reset();
  return broken;
}

}  // namespace lockstep::driver
