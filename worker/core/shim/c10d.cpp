// C face of libtorch's c10d: the TCPStore client and the process groups Gloo (always) and NCCL (ENN_CUDA).
//
// Contract of every function: returns ENN_OK, ENN_FAILED or ENN_TIMED_OUT; after the latter two enn_c10d_error() gives
// the sentence for this thread. No C++ exception crosses. Pointers come from the `_new`/`_connect` functions and end in
// the matching `_free`/`_end`; nothing else frees them. Tensors are borrowed: c10d keeps its own reference. Functions on a
// group are called from one thread at a time, `enn_cut_now` and `enn_cut_is` from any.

#include "c10d_cut.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/prctl.h>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef ENN_CUDA
#include <c10/core/Event.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace {

constexpr int32_t ENN_OK = 0;
constexpr int32_t ENN_FAILED = 1;
constexpr int32_t ENN_TIMED_OUT = 2;

// A wait on another thread's work looks this often whether it is still wanted.
constexpr std::chrono::milliseconds GLANCE(50);

thread_local std::string last_error;

int32_t failed(std::string message) {
  last_error = std::move(message);
  return ENN_FAILED;
}

// c10::Error::what() carries a C++ backtrace, which says nothing to a user.
std::string text_of(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

template <class F>
int32_t guarded(F&& body) {
  try {
    return body();
  } catch (...) {
    return failed(text_of(std::current_exception()));
  }
}

// c10d reads zero as "no timeout"; nothing here waits without a limit.
std::chrono::milliseconds at_least_one(int64_t ms) {
  return std::chrono::milliseconds(std::max<int64_t>(ms, 1));
}

} // namespace

struct enn_store {
  c10::intrusive_ptr<c10d::Store> store;
};

struct enn_cut {
  std::shared_ptr<enn::Line> line;
};

struct enn_group {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::shared_ptr<enn::Line> line;
  bool on_device;
};

struct enn_work {
  c10::intrusive_ptr<c10d::Work> work;
  std::shared_ptr<enn::Line> line;
  bool on_device;
};

namespace {

// Runs `body` on a thread of its own and waits for it at most `timeout`. When that passes, the thread is left behind with
// what it holds, and waiting for it is what the caller must not do. With a `line`, it is left behind when that is cut, too.
template <class F>
int32_t within(std::chrono::milliseconds timeout, const char* what, const enn::Line* line, F body) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::string error;
  };
  auto state = std::make_shared<State>();
  std::thread([state, body = std::move(body)]() mutable {
    std::string error;
    try {
      body();
    } catch (...) {
      error = text_of(std::current_exception());
      if (error.empty()) error = "an error without a message";
    }
    std::lock_guard<std::mutex> lock(state->mutex);
    state->done = true;
    state->error = std::move(error);
    state->changed.notify_all();
  }).detach();
  const auto until = enn::Clock::now() + timeout;
  std::unique_lock<std::mutex> lock(state->mutex);
  while (!state->changed.wait_until(lock, std::min(until, enn::Clock::now() + GLANCE), [&] { return state->done; })) {
    if (line != nullptr) line->check();
    if (enn::Clock::now() < until) continue;
    last_error = std::string(what) + " did not end in time";
    return ENN_TIMED_OUT;
  }
  return state->error.empty() ? ENN_OK : failed(state->error);
}

// A pause may be so much longer than it was to be.
constexpr std::chrono::milliseconds LATE(2);
// Pauses between looks at a device.
constexpr std::chrono::nanoseconds SOON(20'000), SELDOM(1'000'000);

// What a work that is completed came to; the current stream sees its results.
int32_t ended(const c10::intrusive_ptr<c10d::Work>& work) {
  if (auto error = work->exception()) return failed(text_of(error));
  work->synchronize();
  return ENN_OK;
}

// Whether what this thread's stream was given before is done.
class Computed {
 public:
#ifdef ENN_CUDA
  Computed() {
    event.record(c10::cuda::getCurrentCUDAStream());
  }
  explicit operator bool() {
    return done = done || event.query();
  }

 private:
  c10::Event event{c10::DeviceType::CUDA};
  bool done = false;
#else
  explicit operator bool() {
    return true;
  }
#endif
};

// Lets this thread sleep for as short as it says, where Linux adds 50 µs.
class ShortSleeps {
 public:
  ShortSleeps() : before_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1UL); }
  ~ShortSleeps() {
    // 0 is the process's own.
    prctl(PR_SET_TIMERSLACK, before_ > 0 ? static_cast<unsigned long>(before_) : 0UL);
  }
  ShortSleeps(const ShortSleeps&) = delete;
  ShortSleeps& operator=(const ShortSleeps&) = delete;

 private:
  int before_;
};

// Waits on the host until the work ended, the group was cut, or the deadline passed. CUDA works have no condition variable, so they are
// looked at with growing pauses, a five-hundredth of the time waited: the device has nothing to do until the end is seen. The others are
// waited for from when this rank's own stream is done; a look that comes late is this process's own doing, which was stopped or had no
// processor.
int32_t await_device(const c10::intrusive_ptr<c10d::Work>& work, const enn::Line& line, std::chrono::milliseconds timeout, std::chrono::nanoseconds& waited) {
  const auto begun = std::chrono::steady_clock::now();
  if (work->isCompleted()) return ended(work);
  const ShortSleeps exact;
  Computed computed;
  for (auto looked = begun; !work->isCompleted();) {
    line.check();
    if (looked - begun >= timeout) {
      last_error = "the collective did not end in time";
      return ENN_TIMED_OUT;
    }
    const auto pause = std::clamp<std::chrono::nanoseconds>((looked - begun) / 512, SOON, SELDOM);
    std::this_thread::sleep_for(pause);
    const auto now = std::chrono::steady_clock::now();
    if (computed) waited += std::min<std::chrono::nanoseconds>(now - looked, pause + LATE);
    looked = now;
  }
  return ended(work);
}

template <class F>
int32_t start(enn_group* group, enn_work** out, F&& begin) {
  return guarded([&] {
    group->line->check();
    auto work = begin(*group->backend);
    TORCH_CHECK(work, "the process group returned no work");
    *out = new enn_work{std::move(work), group->line, group->on_device};
    return ENN_OK;
  });
}

} // namespace

extern "C" {

// Sentence of the last failure on this thread; valid until the next call on it.
const char* enn_c10d_error() {
  return last_error.c_str();
}

int32_t enn_store_connect(const char* host, uint16_t port, const char* prefix, int64_t timeout_ms, enn_store** out) {
  return guarded([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = false;
    options.waitWorkers = false;
    options.timeout = at_least_one(timeout_ms);
    c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::TCPStore>(std::string(host), options);
    if (*prefix != '\0') store = c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), store);
    *out = new enn_store{std::move(store)};
    return ENN_OK;
  });
}

// The same connection, with `prefix` before every key.
int32_t enn_store_prefixed(enn_store* store, const char* prefix, enn_store** out) {
  return guarded([&] {
    *out = new enn_store{c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), store->store)};
    return ENN_OK;
  });
}

void enn_store_free(enn_store* store) {
  delete store;
}

int32_t enn_store_set(enn_store* store, const char* key, const uint8_t* data, size_t bytes) {
  return guarded([&] {
    store->store->set(key, std::vector<uint8_t>(data, data + bytes));
    return ENN_OK;
  });
}

// Hands the value to `sink(context, data, bytes)`, called once before this returns.
int32_t enn_store_get(enn_store* store, const char* key, void (*sink)(void*, const uint8_t*, size_t), void* context) {
  return guarded([&] {
    auto value = store->store->get(key);
    sink(context, value.data(), value.size());
    return ENN_OK;
  });
}

int32_t enn_store_compare_set(
    enn_store* store, const char* key, const uint8_t* expected, size_t expected_bytes, const uint8_t* wanted,
    size_t wanted_bytes, void (*sink)(void*, const uint8_t*, size_t), void* context) {
  return guarded([&] {
    auto value = store->store->compareSet(
        key, std::vector<uint8_t>(expected, expected + expected_bytes), std::vector<uint8_t>(wanted, wanted + wanted_bytes));
    sink(context, value.data(), value.size());
    return ENN_OK;
  });
}

int32_t enn_store_append(enn_store* store, const char* key, const uint8_t* data, size_t bytes) {
  return guarded([&] {
    store->store->append(key, std::vector<uint8_t>(data, data + bytes));
    return ENN_OK;
  });
}

int32_t enn_store_add(enn_store* store, const char* key, int64_t amount, int64_t* sum) {
  return guarded([&] {
    *sum = store->store->add(key, amount);
    return ENN_OK;
  });
}

int32_t enn_store_check(enn_store* store, const char* key, int32_t* present) {
  return guarded([&] {
    *present = store->store->check({key}) ? 1 : 0;
    return ENN_OK;
  });
}

int32_t enn_store_wait(enn_store* store, const char* key, int64_t timeout_ms) {
  return guarded([&] {
    store->store->wait({key}, at_least_one(timeout_ms));
    return ENN_OK;
  });
}

int32_t enn_store_delete(enn_store* store, const char* key, int32_t* deleted) {
  return guarded([&] {
    *deleted = store->store->deleteKey(key) ? 1 : 0;
    return ENN_OK;
  });
}

// What ends a group: made before the group, given to it, freed when nobody wants to end it any more.
enn_cut* enn_cut_new() {
  return new enn_cut{std::make_shared<enn::Line>()};
}

void enn_cut_free(enn_cut* cut) {
  delete cut;
}

// Ends the group, whether it forms, is formed, or is gone. Any thread.
int32_t enn_cut_now(enn_cut* cut) {
  return guarded([&] {
    cut->line->cut();
    return ENN_OK;
  });
}

int32_t enn_cut_is(enn_cut* cut) {
  return cut->line->is_cut() ? 1 : 0;
}

// The same store; waits end when `cut` is cut, and `timeout_ms` from now.
int32_t enn_store_guarded(enn_store* store, enn_cut* cut, int64_t timeout_ms, enn_store** out) {
  return guarded([&] {
    *out = new enn_store{c10::make_intrusive<enn::GuardedStore>(store->store, cut->line, at_least_one(timeout_ms))};
    return ENN_OK;
  });
}

// Meets the other `size` ranks in `store` within `form_ms` and connects to them from the local address `bind`.
int32_t enn_gloo_new(
    enn_store* store, enn_cut* cut, int32_t rank, int32_t size, const char* bind, int32_t threads, int64_t form_ms,
    int64_t timeout_ms, enn_group** out) {
  return guarded([&] {
    const auto line = cut->line;
    const auto limit = at_least_one(form_ms);
    try {
      auto options = c10d::ProcessGroupGloo::Options::create(limit);
      options->threads = threads;
      auto device = *bind == '\0' ? c10d::ProcessGroupGloo::createDefaultDevice()
                                  : c10d::ProcessGroupGloo::createDeviceForHostname(bind);
      options->devices.push_back(std::make_shared<enn::LineDevice>(std::move(device), line));
      auto guard = c10::make_intrusive<enn::GuardedStore>(store->store, line, limit);
      auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(guard, rank, size, options);
      backend->setTimeout(at_least_one(timeout_ms));
      line->formed();
      *out = new enn_group{std::move(backend), line, false};
      return ENN_OK;
    } catch (...) {
      const auto message = text_of(std::current_exception());
      line->release();
      return failed(message);
    }
  });
}

#ifdef ENN_CUDA
// Meets the other `size` ranks in `store` and connects to them, all within `form_ms`. NCCL's own connecting cannot be cut:
// when it is given up, its thread is left behind.
int32_t enn_nccl_new(
    enn_store* store, enn_cut* cut, int32_t rank, int32_t size, int32_t device, int64_t form_ms, int64_t timeout_ms,
    enn_group** out) {
  return guarded([&] {
    const auto line = cut->line;
    const auto index = static_cast<c10::DeviceIndex>(device);
    c10::cuda::set_device(index);
    auto guard = c10::make_intrusive<enn::GuardedStore>(store->store, line, at_least_one(form_ms));
    // Whoever does not come is noticed here, where waiting can be given up, and not inside NCCL.
    guard->set("nccl/rank-" + std::to_string(rank), std::vector<uint8_t>{1});
    for (int32_t peer = 0; peer < size; ++peer) guard->wait({"nccl/rank-" + std::to_string(peer)});
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = at_least_one(timeout_ms);
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(guard, rank, size, options);
    backend->setBoundDeviceId(at::Device(at::kCUDA, index));
    const auto status = within(at_least_one(form_ms), "connecting the devices", line.get(), [backend, index] {
      c10::cuda::set_device(index);
      backend->eagerConnectSingleDevice(at::Device(at::kCUDA, index));
    });
    if (status != ENN_OK) return status;
    guard->unlimited();
    line->keep(backend);
    line->formed();
    *out = new enn_group{std::move(backend), line, true};
    return ENN_OK;
  });
}
#endif

// `reduce`: 0 sum, 1 minimum, 2 maximum. In place; every rank gives a dense tensor of the same shape and kind.
int32_t enn_group_all_reduce(enn_group* group, at::Tensor* tensor, int32_t reduce, enn_work** out) {
  return start(group, out, [&](c10d::Backend& backend) {
    c10d::AllreduceOptions options;
    options.reduceOp = reduce == 0 ? c10d::ReduceOp::SUM : reduce == 1 ? c10d::ReduceOp::MIN : c10d::ReduceOp::MAX;
    std::vector<at::Tensor> tensors{*tensor};
    return backend.allreduce(tensors, options);
  });
}

// In place: afterwards every rank holds what `root` gave.
int32_t enn_group_broadcast(enn_group* group, at::Tensor* tensor, int32_t root, enn_work** out) {
  return start(group, out, [&](c10d::Backend& backend) {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.rootTensor = 0;
    std::vector<at::Tensor> tensors{*tensor};
    return backend.broadcast(tensors, options);
  });
}

// `own` is this rank's part of `whole`; afterwards `whole` holds every rank's.
int32_t enn_group_all_gather(enn_group* group, at::Tensor* whole, at::Tensor* own, enn_work** out) {
  return start(group, out, [&](c10d::Backend& backend) { return backend._allgather_base(*whole, *own); });
}

// `own` is this rank's part of `whole`; afterwards it holds the sum over the ranks.
int32_t enn_group_reduce_scatter(enn_group* group, at::Tensor* whole, at::Tensor* own, enn_work** out) {
  return start(group, out, [&](c10d::Backend& backend) { return backend._reduce_scatter_base(*own, *whole); });
}

int32_t enn_group_barrier(enn_group* group, int64_t timeout_ms, enn_work** out) {
  return start(group, out, [&](c10d::Backend& backend) {
    c10d::BarrierOptions options;
    options.timeout = at_least_one(timeout_ms);
    return backend.barrier(options);
  });
}

// Ends the group and frees it. `abort` != 0 cuts collectives in flight; else they are cut when `timeout_ms` passed.
int32_t enn_group_end(enn_group* group, int32_t abort, int64_t timeout_ms) {
  return guarded([&] {
    std::unique_ptr<enn_group> owned(group);
    auto line = owned->line;
    auto backend = std::move(owned->backend);
    const auto end = [backend = std::move(backend), line, abort]() mutable {
      if (abort != 0) line->cut();
      if (!line->is_cut()) backend->shutdown();
      backend.reset();
      line->release();
    };
    const auto status = within(at_least_one(timeout_ms), "the process group", nullptr, std::move(end));
    if (status == ENN_TIMED_OUT) {
      const auto message = last_error;
      line->cut();
      last_error = message;
    }
    return status;
  });
}

// `waited_ns`: how long this rank waited for the others, whatever comes of it.
int32_t enn_work_wait(enn_work* work, int64_t timeout_ms, int64_t* waited_ns) {
  const auto begun = std::chrono::steady_clock::now();
  std::chrono::nanoseconds waited{};
  const auto status = guarded([&] {
    const auto timeout = at_least_one(timeout_ms);
    if (work->on_device) return await_device(work->work, *work->line, timeout, waited);
    try {
      work->work->wait(timeout);
      return ENN_OK;
    } catch (...) {
      failed(text_of(std::current_exception()));
      return work->work->isCompleted() ? ENN_FAILED : ENN_TIMED_OUT;
    }
  });
  if (!work->on_device) waited = std::chrono::steady_clock::now() - begun;
  *waited_ns = waited.count();
  return status;
}

// Device works: lets the current stream wait for the work, without the host. Host works: the same as enn_work_wait.
int32_t enn_work_order(enn_work* work, int64_t timeout_ms) {
  if (!work->on_device) {
    int64_t waited_ns = 0;
    return enn_work_wait(work, timeout_ms, &waited_ns);
  }
  return guarded([&] {
    work->work->synchronize();
    return ENN_OK;
  });
}

int32_t enn_work_is_done(enn_work* work, int32_t* done) {
  return guarded([&] {
    *done = work->work->isCompleted() ? 1 : 0;
    return ENN_OK;
  });
}

void enn_work_free(enn_work* work) {
  delete work;
}

} // extern "C"
