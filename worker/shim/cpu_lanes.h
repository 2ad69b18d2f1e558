// Sixteen f32 at once: one register with AVX-512, two with AVX2. On other processors libtorch's own kernels run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__) && defined(__x86_64__)
#define ENN_X86
#endif
#define ENN_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define ENN_O3
#else
#define ENN_O3 optimize("O3"),
#endif
#define ENN_512 __attribute__((ENN_O3 target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define ENN_256 __attribute__((ENN_O3 target("avx2,fma")))

namespace enn {

constexpr int64_t LANES = 16;

typedef float Lane __attribute__((vector_size(64)));
typedef int32_t LaneInt __attribute__((vector_size(64)));
// The same at any address.
typedef float LaneAt __attribute__((vector_size(64), aligned(4), may_alias));

// References, for a vector that is passed by value has no fixed place where the caller may lack its registers.
ENN_INLINE void load(Lane& into, const float* from) { into = *reinterpret_cast<const LaneAt*>(from); }
ENN_INLINE void store(float* to, const Lane& from) { *reinterpret_cast<LaneAt*>(to) = from; }

// How wide this processor's registers are.
enum class Wide { None, Avx2, Avx512 };

inline Wide best() {
#ifdef ENN_X86
  static const Wide found = [] {
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool half = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return wide && half ? Wide::Avx512 : half ? Wide::Avx2 : Wide::None;
  }();
  return found;
#else
  return Wide::None;
#endif
}

// That of the two which this processor can run; it can run one.
template <class F>
F* chosen(F* wide, F* half) { return best() == Wide::Avx512 ? wide : half; }

// Up to sixteen numbers, zeros behind them.
ENN_INLINE void load_part(Lane& into, const float* from, int64_t count) {
  if (count >= LANES) return load(into, from);
  float part[LANES] = {};
  for (int64_t j = 0; j < count; ++j) part[j] = from[j];
  load(into, part);
}

ENN_INLINE void store_part(float* to, const Lane& from, int64_t count) {
  if (count >= LANES) return store(to, from);
  float part[LANES];
  store(part, from);
  for (int64_t j = 0; j < count; ++j) to[j] = part[j];
}

// The sum of sixteen numbers, in pairs.
ENN_INLINE float total(const Lane& x) {
#if defined(__clang__) || __GNUC__ >= 12
  Lane sum = x + __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  sum += __builtin_shufflevector(sum, sum, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  sum += __builtin_shufflevector(sum, sum, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  sum += __builtin_shufflevector(sum, sum, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  return sum[0];
#else
  float part[LANES];
  store(part, x);
  for (int64_t half = LANES / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) part[j] += part[j + half];
  }
  return part[0];
#endif
}

// Below this the exponential is no normal number: it counts as 0.
constexpr float EXP_MIN = -87.3f;

// e to the x for x ≤ 88, to two units in the last place: 2ⁿ times a polynomial of the rest (Cephes' coefficients).
ENN_INLINE void exponential(Lane& x) {
  const Lane none = {};
  const Lane within = x < EXP_MIN ? none + EXP_MIN : x;
  const Lane shifted = within * 1.44269504f + 12582912.0f;
  const Lane n = shifted - 12582912.0f;
  const Lane r = within - n * 0.693359375f - n * -2.12194440e-4f;
  Lane y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const LaneInt power = (reinterpret_cast<const LaneInt&>(shifted) - 0x4B400000 + 127) << 23;
  y *= reinterpret_cast<const Lane&>(power);
  x = x < EXP_MIN ? none : y;
}

inline int64_t padded(int64_t columns) { return (columns + LANES - 1) / LANES * LANES; }

} // namespace enn
