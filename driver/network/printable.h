// Makes text from other processes safe for a terminal.
//
//    std::fprintf(stderr, "lockstep: %s\n", Printable(failure.text).c_str());
//
// Reasons and reports come through the run's store, and any process that reaches its port can write
// there. A terminal would execute the escape sequences in them.

#ifndef LOCKSTEP_DRIVER_NETWORK_PRINTABLE_H_
#define LOCKSTEP_DRIVER_NETWORK_PRINTABLE_H_

#include <string>

namespace lockstep::driver {

// Returns `text` with each byte that is neither part of a printable UTF-8 character, nor a tab, nor
// a line's end as "\x1b". Printable(Printable(text)) is Printable(text).
std::string Printable(const std::string& text);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_NETWORK_PRINTABLE_H_
