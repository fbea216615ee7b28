#include "driver/lua/vm/whereabouts.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>

namespace lockstep::lua {
namespace {

// On a busy machine the script's thread may wait for a core.
constexpr std::chrono::seconds kPatience(1);

// State of the script's thread. The handler runs on that thread, so plain variables are enough;
// other threads read main_state and asked.
thread_local lua_State* inside = nullptr;
std::atomic<lua_State*> main_state{nullptr};
pthread_t script_thread;

// One question at a time. The handler allocates nothing and takes no lock.
std::mutex one_question;
std::atomic<bool> asked{false};
sem_t answered;
char answer[LUA_IDSIZE + 16];

// Answers the question, if it is still open, with "train.lua:11". No frame may have a line: a
// finalizer that runs in code that LuaJIT has compiled hides it. The question then stays open.
void Answer(lua_State* state) {
  lua_Debug frame;
  for (int level = 0; lua_getstack(state, level, &frame) != 0; ++level) {
    lua_getinfo(state, "Sl", &frame);
    if (frame.currentline <= 0 || IsLibraryChunk(frame.source)) continue;
    if (!asked.exchange(false)) return;
    char digits[16];
    char* first = digits + sizeof(digits) - 1;
    *first = '\0';
    for (int line = frame.currentline; line > 0; line /= 10)
      *--first = static_cast<char>('0' + line % 10);
    std::strcpy(answer, frame.short_src);
    std::strcat(answer, ":");
    std::strcat(answer, first);
    sem_post(&answered);
    return;
  }
}

void OnHook(lua_State* state, lua_Debug*) {
  lua_sethook(state, nullptr, 0, 0);
  Answer(state);
}

void OnSignal(int) {
  const int error = errno;
  lua_State* const state = main_state;
  if (state != nullptr && asked) {
    if (inside == nullptr) {
      lua_sethook(state, OnHook, LUA_MASKLINE | LUA_MASKCOUNT, 1);
    } else {
      Answer(inside);
    }
  }
  errno = error;
}

}  // namespace

void AnswerForThisThread(lua_State* state) {
  static const bool once = [] {
    sem_init(&answered, 0, 0);
    struct sigaction action {};
    action.sa_handler = OnSignal;
    action.sa_flags = SA_RESTART;
    return sigaction(SIGURG, &action, nullptr) == 0;
  }();
  static_cast<void>(once);
  script_thread = pthread_self();
  main_state = state;
}

void StopAnswering(lua_State* state) { main_state.compare_exchange_strong(state, nullptr); }

std::string FindScriptLine() {
  const std::lock_guard<std::mutex> lock(one_question);
  if (main_state == nullptr) return "";
  timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += kPatience.count();
  asked = true;
  if (pthread_kill(script_thread, SIGURG) != 0) return "";
  while (sem_clockwait(&answered, CLOCK_MONOTONIC, &until) != 0) {
    if (errno == EINTR) continue;
    if (asked.exchange(false)) return "";
    while (sem_wait(&answered) != 0) continue;  // the answer is being written
    break;
  }
  return answer;
}

InsideC::InsideC(lua_State* state) : before_(inside) {
  inside = state;
  // Code that LuaJIT has compiled looks at no hook, but it calls C++ through here.
  if (asked.load(std::memory_order_relaxed) && state != nullptr && main_state != nullptr &&
      pthread_equal(script_thread, pthread_self())) {
    lua_sethook(state, nullptr, 0, 0);
    Answer(state);
  }
}

InsideC::~InsideC() { inside = before_; }

bool IsLibraryChunk(const char* source) {
  return std::strncmp(source, "@lockstep/", 10) == 0 || std::strcmp(source, "@lockstep.lua") == 0;
}

}  // namespace lockstep::lua
