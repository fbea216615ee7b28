#include "driver/network/network.h"

#include <unistd.h>

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(IsLoopback, KnowsTheNamesOfThisMachine) {
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1"})
    EXPECT_TRUE(IsLoopback(host)) << host;
  for (const char* host : {"", "10.0.0.1", "localhost.example", "fd00::1", "node127.0"})
    EXPECT_FALSE(IsLoopback(host)) << host;
}

TEST(ListenOn, TheKernelChoosesAPort) {
  const absl::StatusOr<int> fd = ListenOn("127.0.0.1", 0);

  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_GT(PortOf(*fd), 0);
  close(*fd);
}

TEST(ListenOn, ErrorsNameTheAddressAndTheReason) {
  const absl::StatusOr<int> first = ListenOn("127.0.0.1", 0);
  ASSERT_TRUE(first.ok()) << first.status();

  const absl::Status taken = ListenOn("127.0.0.1", PortOf(*first)).status();
  const absl::Status no_number = ListenOn("localhost", 0).status();
  const absl::Status foreign = ListenOn("192.0.2.1", 0).status();
  close(*first);

  EXPECT_EQ(taken.message(), "cannot listen on 127.0.0.1: Address already in use");
  EXPECT_EQ(no_number.message(), "expected an IPv4 or IPv6 address in numbers, got \"localhost\"");
  EXPECT_THAT(std::string(foreign.message()), HasSubstr("cannot listen on 192.0.2.1: "));
}

TEST(NumberOfLocalhost, LeavesOtherHostsAsTheyAre) {
  EXPECT_EQ(NumberOfLocalhost("localhost"), "127.0.0.1");
  for (const char* host : {"node1", "::1", "10.0.0.1"}) EXPECT_EQ(NumberOfLocalhost(host), host);
}

TEST(AddressTowards, LoopbackIsReachedFromLoopback) {
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1"}) {
    const absl::StatusOr<std::string> address = AddressTowards(host);

    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_TRUE(IsLoopback(*address)) << *address;
  }
}

TEST(AddressTowards, AnUnknownNameIsAnError) {
  EXPECT_THAT(std::string(AddressTowards("no such host").status().message()),
              HasSubstr("cannot look up no such host: "));
}

TEST(AddressesOfInterfaces, TakesAList) {
  const auto addresses = AddressesOfInterfaces("lo,lo");

  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_THAT(*addresses, ElementsAre("127.0.0.1", "127.0.0.1"));
}

TEST(AddressesOfInterfaces, ErrorsNameTheInterface) {
  for (const char* names : {"nosuch0", "lo,nosuch0", "nosuch0,lo"}) {
    EXPECT_EQ(AddressesOfInterfaces(names).status().message(),
              "\"nosuch0\" is an interface that this machine lacks or that has no address");
  }
}

}  // namespace
}  // namespace lockstep::driver
