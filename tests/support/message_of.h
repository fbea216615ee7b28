// Returns the text of a thrown error, for EXPECT_THAT(MessageOf([&] { ... }), HasSubstr("...")).

#ifndef LOCKSTEP_TESTS_SUPPORT_MESSAGE_OF_H_
#define LOCKSTEP_TESTS_SUPPORT_MESSAGE_OF_H_

#include <exception>
#include <string>

#include "c10/util/Exception.h"

namespace lockstep::tests {

// Returns the message of the exception that `call` throws, or "no error". A c10::Error comes
// without its C++ stack.
template <typename Call>
std::string MessageOf(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_SUPPORT_MESSAGE_OF_H_
