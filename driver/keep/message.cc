#include "driver/keep/message.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace lockstep::driver {
namespace {

// Room for the one descriptor that a packet may carry, aligned as the kernel wants it.
union Ancillary {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

bool Send(int socket, const Packet& packet, int fd) {
  Packet copy = packet;
  iovec data{&copy, sizeof(copy)};
  Ancillary ancillary{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = &ancillary;
    message.msg_controllen = sizeof(ancillary);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ssize_t sent;
  do sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof(copy));
}

std::optional<Received> Receive(int socket) {
  Received received;
  iovec data{&received.packet, sizeof(received.packet)};
  Ancillary ancillary{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = &ancillary;
  message.msg_controllen = sizeof(ancillary);
  ssize_t size;
  do size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (size < 0 && errno == EINTR);
  const cmsghdr* header = size < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS)
    std::memcpy(&received.fd, CMSG_DATA(header), sizeof(int));
  if (size == static_cast<ssize_t>(sizeof(received.packet))) return received;
  if (received.fd >= 0) close(received.fd);
  return std::nullopt;
}

socklen_t AddressOf(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);  // a first byte of 0: no file
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

bool IsOwnUser(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

}  // namespace lockstep::driver
