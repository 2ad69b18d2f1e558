// Enough of CUDA C++ to run our kernels on a CPU, one block after the other, each thread of a block a fiber.
//
// For checking index arithmetic, barriers and formulas where no GPU is; it says nothing about memory models or speed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <ucontext.h>
#include <vector>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
static dim3 threadIdx, blockIdx, blockDim, gridDim;

#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static

static inline float __uint_as_float(uint32_t x) { float y; std::memcpy(&y, &x, 4); return y; }
static inline float __int_as_float(int x) { return __uint_as_float((uint32_t)x); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline uint32_t __float_as_uint(float x) { uint32_t y; std::memcpy(&y, &x, 4); return y; }
static inline float portable_from_half(uint16_t x) { _Float16 h; std::memcpy(&h, &x, 2); return (float)h; }
static inline uint16_t portable_to_half(float x) { _Float16 h = (_Float16)x; uint16_t y; std::memcpy(&y, &h, 2); return y; }

namespace device {

constexpr size_t STACK_BYTES = 256 << 10;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done = false;
};

struct Barrier {
  int arrived = 0;
  long generation = 0;
};

static std::vector<Fiber> fibers;
static std::vector<Barrier> barriers; // The block's, then one per warp.
static std::vector<int> alive;        // Threads that have not returned: of the block, of each warp.
static std::vector<uint64_t> slots;   // What each thread shows its warp.
static ucontext_t main_context;
static int current;
static long progress;
static std::function<void()> body;

static void leave() { swapcontext(&fibers[current].context, &main_context); }

static void wait(int which) {
  Barrier& b = barriers[which];
  long generation = b.generation;
  ++b.arrived;
  ++progress;
  while (true) {
    if (barriers[which].generation != generation) return;
    if (b.arrived >= alive[which]) {
      b.arrived = 0;
      ++b.generation;
      ++progress;
      return;
    }
    leave();
  }
}

static void start() {
  body();
  fibers[current].done = true;
  --alive[0];
  --alive[1 + current / 32];
  ++progress;
  leave();
}

static void run(unsigned blocks, unsigned tx, unsigned ty, std::function<void()> kernel) {
  body = std::move(kernel);
  int threads = (int)(tx * ty), warps = (threads + 31) / 32;
  gridDim = {blocks, 1, 1};
  blockDim = {tx, ty, 1};
  slots.assign(threads, 0);
  if ((int)fibers.size() < threads) fibers.resize(threads);
  for (unsigned block = 0; block < blocks; ++block) {
    blockIdx = {block, 0, 0};
    barriers.assign(1 + warps, Barrier());
    alive.assign(1 + warps, 0);
    alive[0] = threads;
    for (int i = 0; i < threads; ++i) ++alive[1 + i / 32];
    for (int i = 0; i < threads; ++i) {
      Fiber& f = fibers[i];
      if (!f.stack) f.stack.reset(new char[STACK_BYTES]);
      f.done = false;
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.get();
      f.context.uc_stack.ss_size = STACK_BYTES;
      f.context.uc_link = nullptr;
      makecontext(&f.context, start, 0);
    }
    while (alive[0] > 0) {
      long before = progress;
      for (current = 0; current < threads; ++current) {
        if (fibers[current].done) continue;
        threadIdx = {(unsigned)current % tx, (unsigned)current / tx, 0};
        swapcontext(&main_context, &fibers[current].context);
      }
      if (progress == before) {
        std::fprintf(stderr, "block %u: every thread waits at a barrier some thread never reaches\n", block);
        std::abort();
      }
    }
  }
}

template <class T>
static T exchange(T x, int from) {
  int base = current / 32 * 32;
  int warp = 1 + current / 32;
  std::memcpy(&slots[current], &x, sizeof(T));
  wait(warp);
  T y;
  std::memcpy(&y, &slots[base + from], sizeof(T));
  wait(warp);
  return y;
}

alignas(128) static char dynamic_shared[256 << 10];

// One product of a warp's tensor core: 16×8 sums over 8 (tf32) or 16 (16-bit) depths, in the lanes' layout.
template <class F>
static void product(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bool tf32, F widen) {
  static uint32_t shown_a[1024][4], shown_b[1024][2];
  int lane = current % 32, base = current - lane, warp = 1 + current / 32;
  std::memcpy(shown_a[current], a, sizeof a);
  std::memcpy(shown_b[current], b, sizeof b);
  wait(warp);
  auto half = [&](uint32_t word, int i) { return widen((uint16_t)(word >> (16 * i))); };
  auto left = [&](int row, int k) {
    if (tf32) return __uint_as_float(shown_a[base + row % 8 * 4 + k % 4][row / 8 + k / 4 * 2] & 0xFFFFE000u);
    return half(shown_a[base + row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2);
  };
  auto right = [&](int k, int n) {
    if (tf32) return __uint_as_float(shown_b[base + n * 4 + k % 4][k / 4] & 0xFFFFE000u);
    return half(shown_b[base + n * 4 + k % 8 / 2][k / 8], k % 2);
  };
  float sums[4] = {c[0], c[1], c[2], c[3]};
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < (tf32 ? 8 : 16); ++k) sums[i] += left(lane / 4 + i / 2 * 8, k) * right(k, lane % 4 * 2 + i % 2);
  wait(warp);
  for (int i = 0; i < 4; ++i) c[i] = sums[i];
}

} // namespace device

static inline void __syncthreads() { device::wait(0); }
static inline void __threadfence() {}
static inline void __syncwarp(unsigned = 0xFFFFFFFFu) { device::wait(1 + device::current / 32); }
template <class T>
static inline T __shfl_xor_sync(unsigned, T x, int distance) { return device::exchange(x, (device::current % 32) ^ distance); }
template <class T>
static inline T __shfl_sync(unsigned, T x, int from) { return device::exchange(x, from % 32); }
