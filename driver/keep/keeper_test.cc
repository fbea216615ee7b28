#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "driver/keep/client.h"
#include "driver/keep/message.h"
#include "driver/keep/name.h"
#include "driver/keep/slab.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Program() {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/lockstep/driver/keep/lockstep_keep");
}

// A name that no other test of this machine has.
std::string NewName() {
  static int count = 0;
  return absl::StrCat("lockstep-keeper-test-", getpid(), "-", ++count);
}

KeeperClient Start(const std::string& name, int watch = 0) {
  absl::StatusOr<KeeperClient> client =
      KeeperClient::Start(Program(), name, watch > 0 ? watch : getpid(), 600);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

Slab SlabOf(const std::string& text) {
  absl::StatusOr<Slab> slab = Slab::Make(text.size());
  EXPECT_TRUE(slab.ok()) << slab.status();
  std::memcpy(slab->data(), text.data(), text.size());
  return *std::move(slab);
}

Snapshot Of(int owner, int64_t step, int world = 2) {
  Snapshot snapshot;
  snapshot.owner = owner;
  snapshot.step = step;
  snapshot.world = world;
  return snapshot;
}

std::string TextOf(KeeperClient& client, int owner, int64_t step) {
  const absl::StatusOr<int> fd = client.Get(owner, step);
  if (!fd.ok()) return std::string(fd.status().message());
  const absl::StatusOr<Slab> slab = Slab::Take(*fd);
  return std::string(slab->data(), slab->bytes());
}

// "owner:step" of each snapshot.
std::vector<std::string> Listed(KeeperClient& client) {
  std::vector<std::string> texts;
  const absl::StatusOr<std::vector<Snapshot>> snapshots = client.List();
  EXPECT_TRUE(snapshots.ok()) << snapshots.status();
  for (const Snapshot& one : *snapshots) texts.push_back(absl::StrCat(one.owner, ":", one.step));
  return texts;
}

// Waits until no keeper has the name: it ends by itself.
void ExpectEnds(const std::string& name) {
  while (KeeperClient::Connect(name).ok()) usleep(1000);
}

// Returns whether a process of this user has the memory open.
bool IsOpenSomewhere(const struct stat& memory) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const auto& process : fs::directory_iterator("/proc")) {
    for (fs::directory_iterator it(process.path() / "fd", error), end; !error && it != end;
         it.increment(error)) {
      struct stat other {};
      if (stat(it->path().c_str(), &other) == 0 && other.st_ino == memory.st_ino &&
          other.st_dev == memory.st_dev)
        return true;
    }
  }
  return false;
}

// Returns the process whose command line has the name, or 0.
pid_t ProcessOf(const std::string& name) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    const std::string arguments((std::istreambuf_iterator<char>(file)), {});
    if (arguments.find("--name=" + name + std::string(1, '\0')) != std::string::npos)
      return std::atoi(entry.path().filename().c_str());
  }
  return 0;
}

// Returns the number of descriptors that a process has open.
int64_t NumOpen(pid_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator files(absl::StrCat("/proc/", pid, "/fd"), error);
  return std::distance(files, {});
}

TEST(Keeper, MemoryOutlivesTheProcessThatHandedItOver) {
  const std::string name = NewName();
  KeeperClient keeper = Start(name);
  const pid_t child = fork();
  if (child == 0) {
    absl::StatusOr<KeeperClient> own = KeeperClient::Connect(name);
    const bool is_put = own.ok() && own->Put(Of(1, 8), SlabOf("weights").fd()).ok();
    if (is_put) kill(getpid(), SIGKILL);
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));

  EXPECT_EQ(TextOf(keeper, 1, 8), "weights");
}

TEST(Keeper, HoldsTheLastTwoOfEachRank) {
  KeeperClient keeper = Start(NewName());

  for (const int step : {2, 4, 6}) {
    for (const int owner : {0, 1}) {
      ASSERT_TRUE(keeper.Put(Of(owner, step), SlabOf(absl::StrCat(owner, " ", step)).fd()).ok());
    }
  }

  EXPECT_THAT(Listed(keeper), ElementsAre("0:4", "1:4", "0:6", "1:6"));
  EXPECT_EQ(TextOf(keeper, 1, 4), "1 4");
  EXPECT_EQ(TextOf(keeper, 1, 2), "the keeper has no snapshot of rank 1 after 2 steps");
}

TEST(Keeper, AStepThatIsDoneAgainReplacesItAndTheLaterOnes) {
  KeeperClient keeper = Start(NewName());
  for (const int step : {2, 4}) ASSERT_TRUE(keeper.Put(Of(0, step), SlabOf("old").fd()).ok());

  ASSERT_TRUE(keeper.Put(Of(0, 2), SlabOf("new").fd()).ok());

  EXPECT_THAT(Listed(keeper), ElementsAre("0:2"));
  EXPECT_EQ(TextOf(keeper, 0, 2), "new");
}

TEST(Keeper, ARankOfAnEarlierStartOfTheRunReplacesAndDropsNothing) {
  const std::string name = NewName();
  KeeperClient earlier = Start(name);
  ASSERT_TRUE(earlier.Begin(1).ok());
  ASSERT_TRUE(earlier.Put(Of(0, 2), SlabOf("old").fd()).ok());
  absl::StatusOr<KeeperClient> newer = KeeperClient::Connect(name);
  ASSERT_TRUE(newer.ok()) << newer.status();
  EXPECT_EQ(newer->newest_start(), 1);
  ASSERT_TRUE(newer->Begin(2).ok());
  ASSERT_TRUE(newer->Put(Of(0, 4), SlabOf("new").fd()).ok());

  EXPECT_TRUE(absl::IsFailedPrecondition(earlier.Put(Of(0, 4), SlabOf("old").fd())));
  EXPECT_TRUE(absl::IsFailedPrecondition(earlier.Drop(0, 2)));
  EXPECT_TRUE(absl::IsFailedPrecondition(earlier.Begin(1)));

  EXPECT_THAT(Listed(*newer), ElementsAre("0:2", "0:4"));
  EXPECT_EQ(TextOf(*newer, 0, 4), "new");
}

// The machine had other ranks in the earlier start.
TEST(Keeper, SnapshotsOfAnEarlierStartGoWhenTwoNewerOnesAreThere) {
  KeeperClient keeper = Start(NewName());
  for (const int owner : {0, 1}) ASSERT_TRUE(keeper.Put(Of(owner, 5), SlabOf("x").fd()).ok());
  for (const int64_t step : {7, 9, 11}) {
    Snapshot newer = Of(0, step);
    newer.start = 2;
    ASSERT_TRUE(keeper.Put(newer, SlabOf("x").fd()).ok());
  }

  EXPECT_THAT(Listed(keeper), ElementsAre("0:9", "0:11"));
}

TEST(Keeper, SnapshotsOfAnotherNumberOfRanksGoWhenTwoNewerOnesAreThere) {
  KeeperClient keeper = Start(NewName());
  for (const int owner : {0, 1, 2}) ASSERT_TRUE(keeper.Put(Of(owner, 5, 3), SlabOf("x").fd()).ok());

  for (const int step : {6, 7}) ASSERT_TRUE(keeper.Put(Of(0, step, 1), SlabOf("y").fd()).ok());

  EXPECT_THAT(Listed(keeper), ElementsAre("0:6", "0:7"));
}

TEST(Keeper, EndsWhenItHoldsNothingAndNobodyIsConnected) {
  const std::string name = NewName();
  {
    KeeperClient keeper = Start(name);
    ASSERT_TRUE(keeper.Put(Of(0, 1), SlabOf("x").fd()).ok());
    ASSERT_TRUE(keeper.Drop(0, 1).ok());
    EXPECT_THAT(Listed(keeper), IsEmpty());
  }
  ExpectEnds(name);
}

TEST(Keeper, StaysWhileItHoldsASnapshotAndEndsWithTheProcessThatItWatches) {
  const std::string name = NewName();
  const pid_t watched = fork();
  if (watched == 0) {
    pause();
    _exit(0);
  }
  {
    KeeperClient keeper = Start(name, watched);
    ASSERT_TRUE(keeper.Put(Of(0, 1), SlabOf("x").fd()).ok());
  }
  {
    absl::StatusOr<KeeperClient> later = KeeperClient::Connect(name);
    ASSERT_TRUE(later.ok()) << later.status();
    EXPECT_EQ(TextOf(*later, 0, 1), "x");
  }

  kill(watched, SIGKILL);
  waitpid(watched, nullptr, 0);

  ExpectEnds(name);
}

TEST(Keeper, AKilledKeeperLeavesNoMemoryAndCallsSaySo) {
  const std::string name = NewName();
  KeeperClient keeper = Start(name);
  struct stat memory {};
  {
    const Slab slab = SlabOf("weights");
    ASSERT_EQ(fstat(slab.fd(), &memory), 0);
    ASSERT_TRUE(keeper.Put(Of(0, 1), slab.fd()).ok());
  }
  EXPECT_TRUE(IsOpenSomewhere(memory));

  const pid_t pid = ProcessOf(name);
  ASSERT_GT(pid, 0);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);

  EXPECT_EQ(keeper.Drop(0, 1).message(), "the keeper is gone");
  EXPECT_FALSE(IsOpenSomewhere(memory));
}

Packet CountRequest() {
  Packet packet;
  packet.request = Request::kCount;
  return packet;
}

TEST(Keeper, ADescriptorThatComesWithAnotherRequestIsClosed) {
  const std::string name = NewName();
  KeeperClient keeper = Start(name);
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t size = AddressOf(name, address);
  ASSERT_EQ(connect(connection, reinterpret_cast<sockaddr*>(&address), size), 0);
  struct stat memory {};
  {
    const Slab slab = SlabOf("weights");
    ASSERT_EQ(fstat(slab.fd(), &memory), 0);
    ASSERT_TRUE(Send(connection, CountRequest(), slab.fd()));
    ASSERT_TRUE(Receive(connection).has_value());
  }

  EXPECT_FALSE(IsOpenSomewhere(memory));
  close(connection);
}

TEST(Keeper, ServesWhoWaitedWhileItHadNoFreeDescriptor) {
  const std::string name = NewName();
  KeeperClient keeper = Start(name);
  const pid_t pid = ProcessOf(name);
  ASSERT_GT(pid, 0);
  rlimit before{};
  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit none = {3, before.rlim_max};
  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, &none, nullptr), 0);
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t size = AddressOf(name, address);
  ASSERT_EQ(connect(connection, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_TRUE(Send(connection, CountRequest(), -1));
  for (int i = 0; i < 100; ++i) EXPECT_THAT(Listed(keeper), IsEmpty());

  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, &before, nullptr), 0);

  EXPECT_TRUE(Receive(connection).has_value());
  close(connection);
}

TEST(Keeper, StaysUntilASnapshotWasDropped) {
  const std::string name = NewName();
  pid_t pid = 0;
  int64_t num_open = 0;
  {
    const KeeperClient first = Start(name);
    pid = ProcessOf(name);
    ASSERT_GT(pid, 0);
    num_open = NumOpen(pid);
  }
  while (NumOpen(pid) == num_open) usleep(1000);  // until it sees that nobody is connected

  const absl::StatusOr<KeeperClient> later = KeeperClient::Connect(name);

  EXPECT_TRUE(later.ok()) << later.status();
}

// Returns the names that processes get which ask for one at the same time.
std::vector<std::string> NamesOfProcesses(int count, const std::string& folder) {
  int go[2];
  int names[2];
  if (pipe(go) != 0 || pipe(names) != 0) return {};
  for (int i = 0; i < count; ++i) {
    if (fork() != 0) continue;
    char byte = 0;
    close(go[1]);
    if (read(go[0], &byte, 1) != 0) _exit(1);
    const std::string name = KeeperName(folder) + "\n";
    _exit(write(names[1], name.data(), name.size()) < 0 ? 1 : 0);
  }
  for (const int fd : {go[0], go[1], names[1]}) close(fd);
  std::string all;
  char buffer[1024];
  for (ssize_t size; (size = read(names[0], buffer, sizeof(buffer))) > 0;)
    all.append(buffer, static_cast<size_t>(size));
  close(names[0]);
  return absl::StrSplit(all, '\n', absl::SkipEmpty());
}

TEST(KeeperName, ProcessesThatMakeItTogetherGetOne) {
  for (int round = 0; round < 30; ++round) {
    const std::string folder =
        absl::StrCat(std::getenv("TEST_TMPDIR"), "/", getpid(), "together", round);
    std::filesystem::create_directories(folder);

    const std::vector<std::string> names = NamesOfProcesses(8, folder);

    EXPECT_EQ(names, std::vector<std::string>(8, KeeperName(folder)));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  }
}

TEST(KeeperName, AFileWithoutANumberIsReplaced) {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", getpid(), "torn");
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/keep.id") << "12ab";

  const std::string name = KeeperName(folder);

  EXPECT_EQ(name.size(), std::strlen("lockstep-keep-") + 16 + absl::StrCat("-", kProtocol).size());
  EXPECT_EQ(KeeperName(folder), name);
}

TEST(KeeperName, IsTheFoldersOwn) {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", getpid());
  for (const char* suffix : {"a", "b"})
    std::filesystem::create_directories(absl::StrCat(folder, suffix));

  const std::string name = KeeperName(folder + "a");

  EXPECT_EQ(KeeperName(folder + "a"), name);
  EXPECT_NE(KeeperName(folder + "b"), name);
  std::filesystem::remove(folder + "a/keep.id");
  EXPECT_NE(KeeperName(folder + "a"), name);  // another run has come into the folder
  EXPECT_EQ(KeeperName(folder + "none"), "");
}

TEST(Keeper, TwoThatAreStartedTogetherAreOne) {
  const std::string name = NewName();

  KeeperClient first = Start(name);
  KeeperClient second = Start(name);

  EXPECT_EQ(first.number(), second.number());
}

TEST(Keeper, OneThatIsNotNeededLeavesNoZombie) {
  const pid_t child = fork();  // the other tests' keepers are not its children
  if (child == 0) {
    const std::string name = NewName() + "-zombie";
    const KeeperClient first = Start(name);
    const KeeperClient second = Start(name);
    kill(ProcessOf(name), SIGKILL);
    int num_children = 0;
    while (waitpid(-1, nullptr, 0) > 0) ++num_children;
    _exit(num_children == 1 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);

  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep::driver
