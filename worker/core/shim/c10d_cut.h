// How a process group is ended from any thread, from the moment it begins to form: what a group, its works and its cutters
// share, a store whose waits look at it, and the Gloo device that leads to the connections.
//
// Invariant: Gloo's connections are freed only here, after the thread that serves them ended: a connection that is made or
// lost in the last moment finds nothing freed.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <gloo/transport/device.h>

namespace enn {

using Clock = std::chrono::steady_clock;
using Millis = std::chrono::milliseconds;

// How soon a wait for a store's key asks again, at first and at last. The store's own wait cannot be called back, and says so
// in the log whenever it ends without the key.
constexpr std::chrono::microseconds ASK_AGAIN_FIRST(200);
constexpr std::chrono::microseconds ASK_AGAIN_LAST(20000);

// What a group, its works and its cutters share.
class Line {
 public:
  bool is_cut() const { return cut_.load(std::memory_order_acquire); }

  // Ends the group, formed or not, whatever is in flight. Any thread, any number of times.
  void cut() {
    if (cut_.exchange(true, std::memory_order_acq_rel)) return;
    std::lock_guard<std::mutex> lock(mutex_);
    was_cut_.notify_all();
    if (device_backend_) device_backend_->abort();
    if (!mesh_ || !met_) return;
    // While it forms, a connection may still come in, and must find nobody who would use it. Afterwards its threads may be
    // at work on a connection's end, which needs the device's thread.
    if (!formed_) stop_device();
    if (auto* mesh = dynamic_cast<gloo::transport::tcp::Context*>(mesh_.get())) mesh->signalException("this rank ended the group");
  }

  // Fails when the group was cut. The ranks begin to meet: from here on the list of connections stays as it is.
  void meet() {
    std::lock_guard<std::mutex> lock(mutex_);
    check();
    met_ = true;
  }

  // Fails when the group was cut while it formed.
  void formed() {
    std::lock_guard<std::mutex> lock(mutex_);
    check();
    formed_ = true;
  }

  // Returns after `pause`, or when the group is cut.
  void pause(std::chrono::microseconds pause) {
    std::unique_lock<std::mutex> lock(mutex_);
    was_cut_.wait_for(lock, pause, [this] { return is_cut(); });
  }

  void check() const { TORCH_CHECK(!is_cut(), "this rank ended the group"); }

  void keep(std::shared_ptr<gloo::transport::Device> device, std::shared_ptr<gloo::transport::Context> mesh) {
    std::lock_guard<std::mutex> lock(mutex_);
    device_ = std::move(device);
    mesh_ = std::move(mesh);
  }

  // A backend whose own abort may be called from any thread.
  void keep(c10::intrusive_ptr<c10d::Backend> backend) {
    std::lock_guard<std::mutex> lock(mutex_);
    device_backend_ = std::move(backend);
  }

  // Gives back what was kept, when nobody uses the group any more.
  void release() {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_device();
    mesh_.reset();
    device_.reset();
    device_backend_.reset();
    met_ = formed_ = false;
  }

 private:
  void stop_device() {
    if (auto* device = dynamic_cast<gloo::transport::tcp::Device*>(device_.get())) device->shutdown();
  }

  std::atomic<bool> cut_{false};
  std::mutex mutex_;
  std::condition_variable was_cut_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> mesh_;
  c10::intrusive_ptr<c10d::Backend> device_backend_;
  bool met_ = false;
  bool formed_ = false;
};

// A store for one group: its waits end when the group is cut, and after `limit`.
class GuardedStore final : public c10d::Store {
 public:
  GuardedStore(c10::intrusive_ptr<c10d::Store> inner, std::shared_ptr<Line> line, Millis limit)
      : inner_(std::move(inner)), line_(std::move(line)), limit_(limit), until_(Clock::now() + limit) {}

  // From here on each wait may last as long as the store itself allows.
  void unlimited() { bounded_.store(false, std::memory_order_release); }

  using c10d::Store::compareSet;
  using c10d::Store::set;

  c10::intrusive_ptr<c10d::Store> clone() override {
    auto other = c10::make_intrusive<GuardedStore>(inner_->clone(), line_, limit_);
    other->until_ = until_;
    other->bounded_ = bounded_.load();
    return other;
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override { ready().set(key, value); }
  std::vector<uint8_t> compareSet(
      const std::string& key, const std::vector<uint8_t>& expected, const std::vector<uint8_t>& wanted) override {
    return ready().compareSet(key, expected, wanted);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    wait({key});
    return inner_->get(key);
  }
  int64_t add(const std::string& key, int64_t amount) override { return ready().add(key, amount); }
  bool deleteKey(const std::string& key) override { return ready().deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return ready().check(keys); }
  int64_t getNumKeys() override { return ready().getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, inner_->getTimeout()); }
  void wait(const std::vector<std::string>& keys, const Millis& timeout) override {
    line_->meet();
    auto until = Clock::now() + timeout;
    if (bounded_.load(std::memory_order_acquire)) until = std::min(until, until_);
    auto pause = ASK_AGAIN_FIRST;
    while (!inner_->check(keys)) {
      TORCH_CHECK(Clock::now() < until, "nobody set ", keys.front(), keys.size() > 1 ? " and more" : "", " in time");
      line_->pause(pause);
      line_->check();
      pause = std::min(pause * 5 / 4, ASK_AGAIN_LAST);
    }
  }
  const Millis& getTimeout() const noexcept override { return inner_->getTimeout(); }
  void setTimeout(const Millis& timeout) override { inner_->setTimeout(timeout); }
  void append(const std::string& key, const std::vector<uint8_t>& value) override { ready().append(key, value); }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    wait(keys);
    return inner_->multiGet(keys);
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override {
    ready().multiSet(keys, values);
  }
  bool hasExtendedApi() const override { return inner_->hasExtendedApi(); }

 private:
  c10d::Store& ready() {
    line_->check();
    return *inner_;
  }

  c10::intrusive_ptr<c10d::Store> inner_;
  std::shared_ptr<Line> line_;
  Millis limit_;
  Clock::time_point until_;
  std::atomic<bool> bounded_{true};
};

// Gloo's own device, that leaves the connections it makes in `line`.
class LineDevice final : public gloo::transport::Device {
 public:
  LineDevice(std::shared_ptr<gloo::transport::Device> inner, std::shared_ptr<Line> line)
      : inner_(std::move(inner)), line_(std::move(line)) {}
  ~LineDevice() override = default;

  std::string str() const override { return inner_->str(); }
  const std::string& getPCIBusID() const override { return inner_->getPCIBusID(); }
  int getInterfaceSpeed() const override { return inner_->getInterfaceSpeed(); }
  bool hasGPUDirect() const override { return inner_->hasGPUDirect(); }
  std::shared_ptr<gloo::transport::Context> createContext(int rank, int size) override {
    auto mesh = inner_->createContext(rank, size);
    line_->keep(inner_, mesh);
    return mesh;
  }

 private:
  std::shared_ptr<gloo::transport::Device> inner_;
  std::shared_ptr<Line> line_;
};

} // namespace enn
