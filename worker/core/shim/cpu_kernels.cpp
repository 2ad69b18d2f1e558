// CPU kernels for operations libtorch has no kernel for: the retention scan, counter-based dropout, AdamW with its numbers in a
// tensor, and averages of weights.
//
// Each works on rows of contiguous numbers, sequentially along the positions, so that a scan reads and writes every
// number once. Results do not depend on the number of threads: each batch row, each block of words is one task.

#include "aten_guard.h"
#include "parallel.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__GNUC__) && defined(__x86_64__)
#define ENN_X86
#include <immintrin.h>
#endif
#if defined(ENN_X86) && !defined(__clang__)
#define ENN_CLONES __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default"), optimize("O3")))
#define ENN_AVX2 __attribute__((target("avx2"), optimize("O3")))
#else
#define ENN_CLONES
#define ENN_AVX2 __attribute__((target("avx2")))
#endif
#define ENN_INLINE static inline __attribute__((always_inline))

namespace {

// Numbers that are worth a thread.
constexpr int64_t RETENTION_GRAIN = 1 << 16;
constexpr int64_t DROPOUT_GRAIN = 1 << 16;
constexpr int64_t ADAMW_GRAIN = 1 << 17;
// Numbers ahead that are asked for, where several arrays are read side by side; and those between two questions.
constexpr int64_t AHEAD = 1 << 8, ASKED = 64;

// The operands of one batch row of a scan; `stride` is the distance between positions, `w` = heads · width.
template <class T>
struct Row {
  const T* v;
  int64_t v_stride;
  const T* g;
  int64_t g_stride;
  const T* lambda; // w numbers: λ of the number's head.
  const T* first; // Incoming state, or zeros.
  int64_t n;
  int64_t w;
};

template <class T>
ENN_INLINE void causal(const Row<T>& r, T* __restrict y) {
  const T* before = r.first;
  for (int64_t t = 0; t < r.n; ++t) {
    const T* v = r.v + t * r.v_stride;
    T* out = y + t * r.w;
    for (int64_t i = 0; i < r.w; ++i) out[i] = r.lambda[i] * before[i] + v[i];
    before = out;
  }
}

// Adds to the causal scan what later positions give: λ times the reversed scan one position ahead. `carry` is zeroed.
template <class T>
ENN_INLINE void add_reversed(const Row<T>& r, T* __restrict y, T* __restrict carry) {
  for (int64_t t = r.n - 1; t >= 0; --t) {
    const T* v = r.v + t * r.v_stride;
    T* out = y + t * r.w;
    for (int64_t i = 0; i < r.w; ++i) {
      T ahead = r.lambda[i] * carry[i];
      out[i] += ahead;
      carry[i] = ahead + v[i];
    }
  }
}

// `carry` comes in as the gradient of the outgoing state and leaves as that of the incoming one.
template <class T>
ENN_INLINE void causal_backward(const Row<T>& r, const T* y, T* __restrict dv, T* __restrict carry, T* __restrict dlambda) {
  for (int64_t t = r.n - 1; t >= 0; --t) {
    const T* g = r.g + t * r.g_stride;
    const T* before = t > 0 ? y + (t - 1) * r.w : r.first;
    T* out = dv + t * r.w;
    for (int64_t i = 0; i < r.w; ++i) {
      T whole = g[i] + carry[i];
      out[i] = whole;
      dlambda[i] += whole * before[i];
      carry[i] = r.lambda[i] * whole;
    }
  }
}

// `y` is scratch for the causal scan; `carry` and `ahead` are zeroed.
template <class T>
ENN_INLINE void both_backward(const Row<T>& r, T* __restrict y, T* __restrict dv, T* __restrict carry, T* __restrict ahead, T* __restrict dlambda) {
  causal(r, y);
  const T* before = r.first;
  for (int64_t t = 0; t < r.n; ++t) {
    const T* g = r.g + t * r.g_stride;
    T* out = dv + t * r.w;
    for (int64_t i = 0; i < r.w; ++i) out[i] = r.lambda[i] * before[i] + g[i];
    before = out;
  }
  for (int64_t t = r.n - 1; t >= 0; --t) {
    const T* g = r.g + t * r.g_stride;
    const T* v = r.v + t * r.v_stride;
    const T* earlier = t > 0 ? y + (t - 1) * r.w : r.first;
    T* out = dv + t * r.w;
    for (int64_t i = 0; i < r.w; ++i) {
      T whole = g[i] + carry[i];
      dlambda[i] += whole * earlier[i] + out[i] * ahead[i];
      out[i] += carry[i];
      carry[i] = r.lambda[i] * whole;
      ahead[i] = v[i] + r.lambda[i] * ahead[i];
    }
  }
}

ENN_CLONES void run_forward(const Row<float>& r, bool both, float* y, float* carry) {
  causal(r, y);
  if (both) add_reversed(r, y, carry);
}
ENN_CLONES void run_forward(const Row<double>& r, bool both, double* y, double* carry) {
  causal(r, y);
  if (both) add_reversed(r, y, carry);
}
ENN_CLONES void run_causal_backward(const Row<float>& r, const float* y, float* dv, float* carry, float* dlambda) {
  causal_backward(r, y, dv, carry, dlambda);
}
ENN_CLONES void run_causal_backward(const Row<double>& r, const double* y, double* dv, double* carry, double* dlambda) {
  causal_backward(r, y, dv, carry, dlambda);
}
ENN_CLONES void run_both_backward(const Row<float>& r, float* y, float* dv, float* carry, float* ahead, float* dlambda) {
  both_backward(r, y, dv, carry, ahead, dlambda);
}
ENN_CLONES void run_both_backward(const Row<double>& r, double* y, double* dv, double* carry, double* ahead, double* dlambda) {
  both_backward(r, y, dv, carry, ahead, dlambda);
}

// λ repeated over each head's width.
template <class T>
std::vector<T> repeated(const at::Tensor& lambda, int64_t width) {
  auto dense = lambda.contiguous();
  const T* from = dense.const_data_ptr<T>();
  std::vector<T> row(dense.numel() * width);
  for (int64_t h = 0; h < dense.numel(); ++h) std::fill_n(row.begin() + h * width, width, from[h]);
  return row;
}

// The tensor itself if each position's numbers are contiguous, else a copy.
at::Tensor rows_of(const at::Tensor& x) {
  bool dense = x.stride(3) == 1 && (x.size(2) == 1 || x.stride(2) == x.size(3));
  return dense ? x : x.contiguous();
}

template <class T>
at::Tensor forward(const at::Tensor& v_in, const at::Tensor& lambda, const at::Tensor* state, bool both) {
  auto v = rows_of(v_in);
  int64_t b = v.size(0), n = v.size(1), w = v.size(2) * v.size(3);
  auto y = at::empty({b, n, v.size(2), v.size(3)}, v.options());
  auto row = repeated<T>(lambda, v.size(3));
  auto start = state ? state->contiguous() : at::Tensor();
  const T* v_data = v.const_data_ptr<T>();
  const T* start_data = state ? start.const_data_ptr<T>() : nullptr;
  T* y_data = y.mutable_data_ptr<T>();
  enn::parallel_for(0, b, RETENTION_GRAIN / std::max<int64_t>(1, n * w), [&](int64_t from, int64_t to) {
    std::vector<T> zeros(w, T(0)), carry(w);
    for (int64_t i = from; i < to; ++i) {
      const T* first = start_data ? start_data + i * w : zeros.data();
      Row<T> r{v_data + i * v.stride(0), v.stride(1), nullptr, 0, row.data(), first, n, w};
      std::fill(carry.begin(), carry.end(), T(0));
      run_forward(r, both, y_data + i * n * w, carry.data());
    }
  });
  return y;
}

struct Gradients {
  at::Tensor dv, dlambda, dstate;
};

template <class T>
Gradients backward(const at::Tensor& v_in, const at::Tensor& lambda, const at::Tensor& y_in, const at::Tensor& g_in, const at::Tensor* state, const at::Tensor* gstate, bool both) {
  auto v = rows_of(v_in), g = rows_of(g_in), y = y_in.contiguous();
  int64_t b = v.size(0), n = v.size(1), h = v.size(2), d = v.size(3), w = h * d;
  auto dv = at::empty({b, n, h, d}, v.options());
  auto dstate = at::empty({b, h, d}, v.options());
  auto row = repeated<T>(lambda, d);
  auto start = state ? state->contiguous() : at::Tensor();
  auto end = gstate ? gstate->contiguous() : at::Tensor();
  std::vector<double> shares(b * h, 0.0);
  enn::parallel_for(0, b, RETENTION_GRAIN / std::max<int64_t>(1, n * w), [&](int64_t from, int64_t to) {
    std::vector<T> zeros(w, T(0)), ahead(w), share(w), scratch(both ? n * w : 0);
    for (int64_t i = from; i < to; ++i) {
      const T* first = state ? start.const_data_ptr<T>() + i * w : zeros.data();
      Row<T> r{v.const_data_ptr<T>() + i * v.stride(0), v.stride(1), g.const_data_ptr<T>() + i * g.stride(0), g.stride(1), row.data(), first, n, w};
      T* carry = dstate.mutable_data_ptr<T>() + i * w;
      if (gstate) std::copy_n(end.const_data_ptr<T>() + i * w, w, carry);
      else std::fill_n(carry, w, T(0));
      std::fill(share.begin(), share.end(), T(0));
      T* out = dv.mutable_data_ptr<T>() + i * n * w;
      if (both) {
        std::fill(ahead.begin(), ahead.end(), T(0));
        run_both_backward(r, scratch.data(), out, carry, ahead.data(), share.data());
      } else {
        run_causal_backward(r, y.const_data_ptr<T>() + i * n * w, out, carry, share.data());
      }
      for (int64_t j = 0; j < w; ++j) shares[i * h + j / d] += share[j];
    }
  });
  // Summed in batch order, whatever ran where.
  auto dlambda = at::zeros({h}, v.options());
  T* dl = dlambda.mutable_data_ptr<T>();
  for (int64_t j = 0; j < h; ++j) {
    double total = 0;
    for (int64_t i = 0; i < b; ++i) total += shares[i * h + j];
    dl[j] = static_cast<T>(total);
  }
  return {dv, dlambda, dstate};
}

struct Key {
  uint32_t low, high, site, step;
};

// Words that one call of a generator makes: consecutive blocks of Philox-4x32-10, four words each.
constexpr int64_t WORDS = 64;
constexpr uint32_t MULTIPLIER_0 = 0xD2511F53u, MULTIPLIER_1 = 0xCD9E8D57u, WEYL_0 = 0x9E3779B9u, WEYL_1 = 0xBB67AE85u;

void philox_plain(const Key& key, uint64_t block, uint32_t* out) {
  for (int64_t i = 0; i < WORDS / 4; ++i, ++block) {
    uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32), c2 = key.site, c3 = key.step;
    uint32_t k0 = key.low, k1 = key.high;
    for (int round = 0; round < 10; ++round, k0 += WEYL_0, k1 += WEYL_1) {
      uint64_t a = static_cast<uint64_t>(c0) * MULTIPLIER_0, b = static_cast<uint64_t>(c2) * MULTIPLIER_1;
      c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(b);
      c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(a);
    }
    uint32_t* to = out + 4 * i;
    to[0] = c0, to[1] = c1, to[2] = c2, to[3] = c3;
  }
}

#ifdef ENN_X86
// Four lanes of 64 bits per register, of which each word uses the low half: the product instruction reads only that.
ENN_AVX2 void philox_avx2(const Key& key, uint64_t block, uint32_t* out) {
  constexpr int GROUPS = WORDS / 16;
  const __m256i m0 = _mm256_set1_epi64x(MULTIPLIER_0), m1 = _mm256_set1_epi64x(MULTIPLIER_1);
  __m256i c0[GROUPS], c1[GROUPS], c2[GROUPS], c3[GROUPS];
  for (int g = 0; g < GROUPS; ++g) {
    __m256i at = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<int64_t>(block) + 4 * g), _mm256_set_epi64x(3, 2, 1, 0));
    c0[g] = at;
    c1[g] = _mm256_srli_epi64(at, 32);
    c2[g] = _mm256_set1_epi64x(key.site);
    c3[g] = _mm256_set1_epi64x(key.step);
  }
  uint32_t k0 = key.low, k1 = key.high;
  for (int round = 0; round < 10; ++round, k0 += WEYL_0, k1 += WEYL_1) {
    const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
    for (int g = 0; g < GROUPS; ++g) {
      __m256i a = _mm256_mul_epu32(c0[g], m0), b = _mm256_mul_epu32(c2[g], m1);
      c0[g] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), c1[g]), key0);
      c1[g] = b;
      c2[g] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), c3[g]), key1);
      c3[g] = a;
    }
  }
  for (int g = 0; g < GROUPS; ++g) {
    // Words 0 and 1 of each lane side by side, and 2 and 3; then lane by lane.
    __m256i w01 = _mm256_blend_epi32(c0[g], _mm256_slli_epi64(c1[g], 32), 0xAA);
    __m256i w23 = _mm256_blend_epi32(c2[g], _mm256_slli_epi64(c3[g], 32), 0xAA);
    __m256i even = _mm256_unpacklo_epi64(w01, w23), odd = _mm256_unpackhi_epi64(w01, w23);
    auto to = reinterpret_cast<__m256i*>(out + 16 * g);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
}
#endif

using Philox = void (*)(const Key&, uint64_t, uint32_t*);

Philox best_philox() {
#ifdef ENN_X86
  if (__builtin_cpu_supports("avx2")) return philox_avx2;
#endif
  return philox_plain;
}

// y[i] = x[i] · scale where word `first + i` is below `threshold`, else 0, for i in from..to. No `x` means ones.
template <class T>
ENN_INLINE void drop(const Key& key, uint64_t first, uint32_t threshold, T scale, const T* x, T* __restrict y, int64_t from, int64_t to) {
  static const Philox philox = best_philox();
  uint32_t words[WORDS];
  int64_t i = from;
  while (i < to) {
    uint64_t element = first + i;
    philox(key, element / 4, words);
    int64_t skip = element % 4, take = std::min<int64_t>(WORDS - skip, to - i);
    const uint32_t* word = words + skip;
    if (x) {
      for (int64_t j = 0; j < take; ++j) {
        T scaled = x[i + j] * scale;
        y[i + j] = word[j] < threshold ? scaled : T(0);
      }
    } else {
      for (int64_t j = 0; j < take; ++j) y[i + j] = word[j] < threshold ? scale : T(0);
    }
    i += take;
  }
}

ENN_CLONES void run_drop(const Key& key, uint64_t first, uint32_t threshold, float scale, const float* x, float* y, int64_t from, int64_t to) {
  drop(key, first, threshold, scale, x, y, from, to);
}
ENN_CLONES void run_drop(const Key& key, uint64_t first, uint32_t threshold, double scale, const double* x, double* y, int64_t from, int64_t to) {
  drop(key, first, threshold, scale, x, y, from, to);
}

template <class T>
void dropped(const Key& key, uint64_t first, uint32_t threshold, double scale, const at::Tensor* x, at::Tensor& y) {
  const T* from = x ? x->const_data_ptr<T>() : nullptr;
  T* to = y.mutable_data_ptr<T>();
  enn::parallel_for(0, y.numel(), DROPOUT_GRAIN, [&](int64_t begin, int64_t end) {
    run_drop(key, first, threshold, static_cast<T>(scale), from, to, begin, end);
  });
}

// Asks for the numbers that are read a little later. What lies behind the last of them does no harm.
ENN_INLINE void ask(const float* x) {
  for (int64_t i = 0; i < ASKED; i += 16) __builtin_prefetch(x + AHEAD + i);
}

// Numbers of an update: the six of op/optim.rs, and what keeps the denominator from 0.
struct Update {
  float gradient, first, second, shrink, update, spread, eps;
};

// Weight, gradient, first and second moment; each number is read once, and all but the gradient are written once.
ENN_INLINE void one_adamw(const Update& u, float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v, int64_t count) {
  const float gradient = u.gradient, first = u.first, second = u.second, shrink = u.shrink, update = u.update, spread = u.spread, eps = u.eps;
  for (int64_t i = 0; i < count; ++i) {
    const float mean = g[i] * gradient;
    const float momentum = m[i] + first * (mean - m[i]);
    const float square = v[i] + second * (mean * mean - v[i]);
    p[i] = p[i] * shrink + momentum * update / (std::sqrt(square) * spread + eps);
    m[i] = momentum, v[i] = square;
  }
}

// An average and what it takes in: the nearer end is where it starts from, so that a share of 1 gives the weights themselves.
ENN_INLINE void one_average(float share, float* __restrict average, const float* __restrict p, int64_t count) {
  if (share < 0.5f) {
    for (int64_t i = 0; i < count; ++i) average[i] += share * (p[i] - average[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) average[i] = p[i] - (p[i] - average[i]) * (1.0f - share);
  }
}

// The weights' average, if there is one, takes them in while they are at hand.
ENN_CLONES void run_adamw(const Update& u, float* p, const float* g, float* m, float* v, float* average, float share, int64_t count) {
  for (int64_t i = 0; i < count; i += ASKED) {
    const int64_t some = std::min(count - i, ASKED);
    ask(p + i), ask(g + i), ask(m + i), ask(v + i);
    one_adamw(u, p + i, g + i, m + i, v + i, some);
    if (average != nullptr) ask(average + i), one_average(share, average + i, p + i, some);
  }
}

ENN_CLONES void run_average(float share, float* average, const float* p, int64_t count) {
  for (int64_t i = 0; i < count; i += ASKED) {
    ask(average + i), ask(p + i);
    one_average(share, average + i, p + i, std::min(count - i, ASKED));
  }
}

// Numbers whose squares are added up in f32, in so many sums side by side; sums of more are f64.
constexpr int64_t SQUARES = 1 << 12, SIDE = 32;
constexpr int64_t SQUARES_GRAIN = 1 << 17;

ENN_CLONES double run_squares(const float* x, int64_t count) {
  double whole = 0;
  for (int64_t first = 0; first < count; first += SQUARES) {
    const int64_t last = std::min(count, first + SQUARES);
    float sums[SIDE] = {};
    int64_t i = first;
    for (; i + SIDE <= last; i += SIDE) {
      if (i % ASKED == 0) ask(x + i);
      for (int64_t j = 0; j < SIDE; ++j) sums[j] += x[i + j] * x[i + j];
    }
    for (int64_t j = 0; i < last; ++i, ++j) sums[j] += x[i] * x[i];
    for (float sum : sums) whole += sum;
  }
  return whole;
}

bool is_double(const at::Tensor& x) {
  TORCH_CHECK(x.device().is_cpu(), "the CPU kernel got a tensor on ", x.device());
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble, "the CPU kernel got ", x.scalar_type());
  return x.scalar_type() == at::kDouble;
}

} // namespace

extern "C" {

int32_t enn_retention(const at::Tensor* v, const at::Tensor* lambda, const at::Tensor* state, int32_t both, at::Tensor** y) {
  return enn::guarded([&] {
    auto out = is_double(*v) ? forward<double>(*v, *lambda, state, both != 0) : forward<float>(*v, *lambda, state, both != 0);
    *y = new at::Tensor(std::move(out));
  });
}

// outs: dv, dlambda, dstate.
int32_t enn_retention_backward(const at::Tensor* const* ins, int32_t both, at::Tensor** outs) {
  return enn::guarded([&] {
    const at::Tensor &v = *ins[0], &lambda = *ins[1], &y = *ins[2], &g = *ins[3];
    auto made = is_double(v) ? backward<double>(v, lambda, y, g, ins[4], ins[5], both != 0) : backward<float>(v, lambda, y, g, ins[4], ins[5], both != 0);
    outs[0] = new at::Tensor(std::move(made.dv));
    outs[1] = new at::Tensor(std::move(made.dlambda));
    outs[2] = new at::Tensor(std::move(made.dstate));
  });
}

// arrays: weight, gradient, first and second moment, and an average that moves by `share` if there are five; dense f32 of one length,
// all but the gradient written.
int32_t enn_adamw(const at::Tensor* const* arrays, int64_t given, const at::Tensor* numbers, int32_t decays, float eps, float share) {
  return enn::guarded([&] {
    float* data[5] = {};
    const int64_t count = arrays[0]->numel();
    TORCH_CHECK(numbers->numel() == 6, "six numbers, not ", numbers->numel());
    TORCH_CHECK(given == 4 || given == 5, "four arrays or five, not ", given);
    for (int64_t i = 0; i < given; ++i) {
      TORCH_CHECK(!is_double(*arrays[i]) && arrays[i]->is_contiguous() && arrays[i]->numel() == count, "array ", i, " is not as the first");
      data[i] = arrays[i]->mutable_data_ptr<float>();
    }
    const float* n = numbers->const_data_ptr<float>();
    const Update u{n[0], n[1], n[2], decays ? n[3] : 1.0f, n[4], n[5], eps};
    enn::parallel_for(0, count, ADAMW_GRAIN, [&](int64_t from, int64_t to) {
      float* average = data[4] == nullptr ? nullptr : data[4] + from;
      run_adamw(u, data[0] + from, data[1] + from, data[2] + from, data[3] + from, average, share, to - from);
    });
  });
}

// updates: so far, written; taken: whether this one counts; f64. What averages move by: 0 where it does not count.
int32_t enn_average_share(const at::Tensor* updates_in, const at::Tensor* taken, double decay, float* share) {
  return enn::guarded([&] {
    TORCH_CHECK(is_double(*updates_in) && is_double(*taken) && updates_in->numel() == 1 && taken->numel() == 1, "the counts are not f64");
    *share = 0;
    if (*taken->const_data_ptr<double>() < 0.5) return;
    const double updates = *updates_in->mutable_data_ptr<double>() += 1;
    *share = static_cast<float>(decay < 1 ? (1 - decay) / (1 - std::pow(decay, updates)) : 1 / updates);
  });
}

// arrays: averages, written, and weights in turn, dense f32.
int32_t enn_average(const at::Tensor* const* arrays, int64_t count, float share) {
  return enn::guarded([&] {
    if (share == 0) return;
    for (int64_t i = 0; i + 1 < count; i += 2) {
      const at::Tensor &average = *arrays[i], &weights = *arrays[i + 1];
      TORCH_CHECK(!is_double(average) && !is_double(weights) && average.is_contiguous() && weights.is_contiguous() && average.numel() == weights.numel(), "array ", i, " is not as its weights");
      float* to = average.mutable_data_ptr<float>();
      const float* from = weights.const_data_ptr<float>();
      enn::parallel_for(0, average.numel(), ADAMW_GRAIN, [&](int64_t first, int64_t last) { run_average(share, to + first, from + first, last - first); });
    }
  });
}

// Dense f32 arrays, written. libtorch's own way reads large ones before it writes them.
int32_t enn_zero(const at::Tensor* const* arrays, int64_t count) {
  return enn::guarded([&] {
    for (int64_t a = 0; a < count; ++a) {
      const at::Tensor& x = *arrays[a];
      TORCH_CHECK(!is_double(x) && x.is_contiguous(), "array ", a, " is not dense f32");
      float* data = x.mutable_data_ptr<float>();
      enn::parallel_for(0, x.numel(), SQUARES_GRAIN, [&](int64_t from, int64_t to) { std::memset(data + from, 0, (to - from) * sizeof(float)); });
    }
  });
}

// √Σx² of dense f32 arrays.
int32_t enn_global_norm(const at::Tensor* const* arrays, int64_t count, double* norm) {
  return enn::guarded([&] {
    double whole = 0;
    for (int64_t a = 0; a < count; ++a) {
      const at::Tensor& x = *arrays[a];
      TORCH_CHECK(!is_double(x) && x.is_contiguous(), "array ", a, " is not dense f32");
      const float* data = x.const_data_ptr<float>();
      std::vector<double> shares((x.numel() + SQUARES_GRAIN - 1) / SQUARES_GRAIN);
      enn::parallel_for(0, shares.size(), 1, [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i) shares[i] = run_squares(data + i * SQUARES_GRAIN, std::min(SQUARES_GRAIN, x.numel() - i * SQUARES_GRAIN));
      });
      for (double share : shares) whole += share;
    }
    *norm = std::sqrt(whole);
  });
}

// Drops elements of `x`, or with `rows` true makes one factor per row of the first axis.
int32_t enn_dropout(const at::Tensor* x, int32_t rows, const uint64_t* key, uint64_t first, uint32_t threshold, double scale, at::Tensor** y) {
  return enn::guarded([&] {
    Key k{static_cast<uint32_t>(key[0]), static_cast<uint32_t>(key[0] >> 32) ^ static_cast<uint32_t>(key[1] >> 32), static_cast<uint32_t>(key[2]), static_cast<uint32_t>(key[1])};
    bool wide = is_double(*x);
    at::Tensor dense = rows ? at::Tensor() : x->contiguous();
    auto out = rows ? at::empty({x->dim() > 0 ? x->size(0) : 1}, x->options()) : at::empty(x->sizes(), x->options());
    const at::Tensor* from = rows ? nullptr : &dense;
    if (wide) dropped<double>(k, first, threshold, scale, from, out);
    else dropped<float>(k, first, threshold, scale, from, out);
    *y = new at::Tensor(std::move(out));
  });
}
}
