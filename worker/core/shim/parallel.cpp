// The threads that help with the pieces of a loop. Each thread that computes has helpers of its own. They look out for the next loop for
// a while, giving the core to whoever wants it, and then sleep.

#include "parallel.h"

#include <ATen/Parallel.h>

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace {

// Pieces for each thread, where they are worth it: who loses its core in the midst of one holds up little.
constexpr int64_t SHARES = 4;
// Pieces that a claim can count.
constexpr int64_t PIECES_MAX = 0xffff;
// Numbers that a register holds at most, of the narrowest kind.
constexpr int64_t TOGETHER = 64;
// Looks at the pieces that others still do, before the caller sleeps: some microseconds.
constexpr int LOOKS = 1000;
// How long a helper looks out for the next loop.
constexpr std::chrono::microseconds LOOKOUT{200};
// It was without a core meanwhile.
constexpr std::chrono::microseconds AWAY{50};
// A loop of so small a part of what is worth waking a thread for is worth one that looks out.
constexpr int64_t AWAKE = 16;
// So many loops in a row in which no helper did a piece: from then on one of so many small ones is tried.
constexpr int HELPED_MAX = 32, TRIED = 64;

// Whether this thread is in a loop already.
thread_local bool inside = false;

void sleep_on(std::atomic<uint32_t>& word, uint32_t value) { syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0); }
void wake(std::atomic<uint32_t>& word, int64_t most) { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, static_cast<int>(most), nullptr, nullptr, 0); }

void look_away() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

struct Loop {
  int64_t begin, end, each;
  c10::function_ref<void(int64_t, int64_t)>* part;
};

// A thread and its helpers, which share this. In a child of fork() there are no helpers, and the thread does everything.
class Team {
 public:
  // As many as the system lets there be.
  static std::shared_ptr<Team> start(int threads) {
    auto team = std::make_shared<Team>();
    team->threads_ = threads;
    try {
      for (; team->helpers_ + 1 < threads; ++team->helpers_) std::thread([team] { team->help(); }).detach();
    } catch (const std::system_error&) {
    }
    return team;
  }

  int threads() const { return threads_; }

  // When it returns every piece has been done, or one of them has failed: what that one threw is thrown.
  void run(const Loop& loop, int64_t pieces) {
    loop_ = loop;
    left_.store(static_cast<uint32_t>(pieces), std::memory_order_relaxed);
    const uint64_t number = (claims_.load(std::memory_order_relaxed) >> 32) + 1;
    claims_.store(number << 32 | static_cast<uint64_t>(pieces) << 16, std::memory_order_release);
    calls_.fetch_add(1);
    // Who is about to sleep sees the call.
    if (asleep_.load() > 0) wake(calls_, std::min<int64_t>(helpers_, pieces - 1));
    inside = true;
    int64_t own = 0;
    while (take()) ++own;
    inside = false;
    wait();
    helped_ = own < pieces ? HELPED_MAX : std::max(helped_ - 1, 0);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  // Whether helpers are likely to do a part of a loop that is not worth waking them for. Where the cores are busy they do not.
  bool helps() { return helped_ > 0 || ++passed_ % TRIED == 0; }

  // The helpers end.
  void dismiss() {
    is_over_.store(true, std::memory_order_relaxed);
    calls_.fetch_add(1, std::memory_order_release);
    wake(calls_, helpers_);
  }

 private:
  static constexpr uint32_t CALLER_SLEEPS = 1u << 31;
  // From one yield to the next.
  static constexpr int LOOKS_BETWEEN = 200;

  void help() {
    inside = true;
    pthread_setname_np(pthread_self(), "enn-loop");
    for (;;) {
      const uint32_t calls = calls_.load(std::memory_order_acquire);
      if (is_over_.load(std::memory_order_relaxed)) return;
      while (take()) {}
      if (look_out(calls)) continue;
      asleep_.fetch_add(1);
      // Not at all, where there was another call meanwhile.
      sleep_on(calls_, calls);
      asleep_.fetch_sub(1);
    }
  }

  // Whether there is another call soon, and nobody else wants this core.
  bool look_out(uint32_t calls) const {
    using Clock = std::chrono::steady_clock;
    auto now = Clock::now();
    for (const auto until = now + LOOKOUT; now < until;) {
      for (int look = 0; look < LOOKS_BETWEEN; ++look) {
        if (calls_.load(std::memory_order_acquire) != calls) return true;
        look_away();
      }
      std::this_thread::yield();
      const auto before = std::exchange(now, Clock::now());
      if (now - before > AWAY) break;
    }
    return calls_.load(std::memory_order_acquire) != calls;
  }

  // Does a piece; false: all have been begun.
  bool take() {
    uint64_t claim = claims_.load(std::memory_order_acquire);
    do {
      if ((claim & PIECES_MAX) >= (claim >> 16 & PIECES_MAX)) return false;
    } while (!claims_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel, std::memory_order_acquire));
    // From here on the loop does not end before this piece.
    const int64_t from = loop_.begin + static_cast<int64_t>(claim & PIECES_MAX) * loop_.each;
    try {
      (*loop_.part)(from, std::min(loop_.end, from + loop_.each));
    } catch (...) {
      if (!has_failed_.test_and_set()) error_ = std::current_exception();
    }
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == (CALLER_SLEEPS | 1)) wake(left_, 1);
    return true;
  }

  // Until the pieces that others have begun are done.
  void wait() {
    uint32_t left = left_.load(std::memory_order_acquire);
    for (int look = 0; left > 0 && look < LOOKS; ++look, left = left_.load(std::memory_order_acquire)) look_away();
    if (left > 0) {
      left = left_.fetch_or(CALLER_SLEEPS, std::memory_order_acq_rel) | CALLER_SLEEPS;
      for (; left != CALLER_SLEEPS; left = left_.load(std::memory_order_acquire)) sleep_on(left_, left);
    }
    has_failed_.clear();
  }

  int threads_ = 1, helpers_ = 0;
  // Number of the loop, its pieces, and how many of them were begun, in 32, 16 and 16 bits: nobody begins one of another loop.
  std::atomic<uint64_t> claims_{0};
  // Loops that were begun: helpers sleep on it. Pieces that are not done: the caller sleeps on it, and says so in it.
  std::atomic<uint32_t> calls_{0}, left_{0};
  // Helpers that are asleep, or about to be.
  std::atomic<int32_t> asleep_{0};
  // The caller's: see HELPED_MAX, and small loops that it did alone.
  int helped_ = HELPED_MAX;
  uint32_t passed_ = 0;
  std::atomic<bool> is_over_{false};
  Loop loop_{};
  std::atomic_flag has_failed_ = ATOMIC_FLAG_INIT;
  std::exception_ptr error_;
};

// That of this thread, made when it is first needed.
class Own {
 public:
  ~Own() { dismiss(); }

  Team& of(int threads) {
    if (!team_ || team_->threads() != threads) {
      dismiss();
      team_ = Team::start(threads);
    }
    return *team_;
  }

 private:
  void dismiss() {
    if (team_) team_->dismiss();
    team_.reset();
  }

  std::shared_ptr<Team> team_;
};

thread_local Own own;

} // namespace

void enn::parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> part) {
  if (begin >= end) return;
  const int64_t numbers = end - begin;
  const int64_t small = std::max<int64_t>(1, grain / AWAKE);
  const int threads = numbers <= small || inside || at::in_parallel_region() ? 1 : threads_of_loops();
  if (threads <= 1) return part(begin, end);
  auto& team = own.of(threads);
  if (numbers <= grain && !team.helps()) return part(begin, end);
  grain = small;
  const int64_t least = std::max<int64_t>(1, grain / SHARES), unit = least >= TOGETHER ? TOGETHER : 1;
  const int64_t most = std::min({(numbers + least - 1) / least, threads * SHARES, PIECES_MAX});
  const int64_t each = ((numbers + most - 1) / most + unit - 1) / unit * unit;
  team.run({begin, end, each, &part}, (numbers + each - 1) / each);
}

extern "C" {

// Threads that do pieces of a loop at the same time; each waits for the others, a second at most.
int32_t enn_threads_at_work() {
  const int32_t threads = std::max(1, enn::threads_of_loops());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::atomic<int32_t> there = 0;
  enn::parallel_for(0, threads * SHARES, 1, [&](int64_t, int64_t) {
    const auto is_early = [&] { return std::chrono::steady_clock::now() < until; };
    if (is_early()) ++there;
    while (there < threads && is_early()) std::this_thread::yield();
  });
  return std::min(threads, there.load());
}
}
