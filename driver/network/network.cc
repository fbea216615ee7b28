#include "driver/network/network.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lockstep::driver {
namespace {

socklen_t SizeOf(const sockaddr* address) {
  return address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

// Returns "" where the address is of neither family.
std::string NumericAddress(const sockaddr* address) {
  char text[NI_MAXHOST] = "";
  if (address->sa_family != AF_INET && address->sa_family != AF_INET6) return "";
  getnameinfo(address, SizeOf(address), text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

bool IsLinkLocal(const sockaddr* address) {
  if (address->sa_family != AF_INET6) return false;
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Returns the address from which packets to `to` would leave, "" where there is no way.
std::string SourceFor(const addrinfo& to) {
  const int fd = socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  auto* const name = reinterpret_cast<sockaddr*>(&own);
  const bool fine =
      connect(fd, to.ai_addr, to.ai_addrlen) == 0 && getsockname(fd, name, &size) == 0;
  close(fd);
  return fine ? NumericAddress(name) : "";
}

}  // namespace

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

absl::StatusOr<int> ListenOn(const std::string& address, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected an IPv4 or IPv6 address in numbers, got \"", address, "\""));
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool fine =
      fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
  const std::string reason = std::strerror(errno);
  freeaddrinfo(found);
  if (fine) return fd;
  if (fd >= 0) close(fd);
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", reason));
}

uint16_t PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string NumberOfLocalhost(const std::string& host) {
  return host == "localhost" ? "127.0.0.1" : host;
}

absl::StatusOr<std::string> AddressTowards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(NumberOfLocalhost(host).c_str(), "9", &hints, &found);
  if (error != 0)
    return absl::NotFoundError(absl::StrCat("cannot look up ", host, ": ", gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::string loopback;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
      const std::string source = to->ai_family == family ? SourceFor(*to) : "";
      if (!source.empty() && !IsLoopback(source)) return source;
      if (loopback.empty()) loopback = source;
    }
  }
  if (!loopback.empty()) return loopback;
  return absl::UnavailableError(absl::StrCat("there is no way from this machine to ", host));
}

absl::StatusOr<std::vector<std::string>> AddressesOfInterfaces(const std::string& names) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot list this machine's network interfaces: ", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, freeifaddrs);
  std::vector<std::string> addresses;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(names, ','))) {
    std::string address;
    for (const int family : {AF_INET, AF_INET6}) {
      for (const ifaddrs* i = found; i != nullptr && address.empty(); i = i->ifa_next) {
        if (name == i->ifa_name && i->ifa_addr != nullptr && i->ifa_addr->sa_family == family &&
            !IsLinkLocal(i->ifa_addr))
          address = NumericAddress(i->ifa_addr);
      }
    }
    if (address.empty()) {
      return absl::NotFoundError(absl::StrCat(
          "\"", name, "\" is an interface that this machine lacks or that has no address"));
    }
    addresses.push_back(address);
  }
  return addresses;
}

}  // namespace lockstep::driver
