// Sixteen f32 at once: one register with AVX-512 (Lane512), two with AVX2 (Lane256). On other processors libtorch's own kernels run.
//
// What computes with lanes is a template over the two: a vector type wider than the processor's registers would live in memory, where
// each operation loads and stores it.
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

typedef float Lane512 __attribute__((vector_size(64)));
typedef int32_t Int512 __attribute__((vector_size(64)));
typedef float Half __attribute__((vector_size(32)));
typedef int32_t HalfInt __attribute__((vector_size(32)));
// The same at any address.
typedef float Lane512At __attribute__((vector_size(64), aligned(4), may_alias));
typedef float HalfAt __attribute__((vector_size(32), aligned(4), may_alias));

struct Int256 {
  HalfInt low, high;
};
struct Lane256 {
  Half low, high;
};

#define ENN_PAIRS(op) \
  ENN_INLINE Lane256 operator op(const Lane256& a, const Lane256& b) { return {a.low op b.low, a.high op b.high}; } \
  ENN_INLINE Lane256 operator op(const Lane256& a, float b) { return {a.low op b, a.high op b}; } \
  ENN_INLINE Lane256 operator op(float a, const Lane256& b) { return {a op b.low, a op b.high}; } \
  ENN_INLINE void operator op##=(Lane256& a, const Lane256& b) { a.low op##= b.low, a.high op##= b.high; } \
  ENN_INLINE void operator op##=(Lane256& a, float b) { a.low op##= b, a.high op##= b; }
ENN_PAIRS(+)
ENN_PAIRS(-)
ENN_PAIRS(*)
ENN_PAIRS(/)
#undef ENN_PAIRS
ENN_INLINE Lane256 operator-(const Lane256& a) { return {-a.low, -a.high}; }
ENN_INLINE Int256 operator<(const Lane256& a, float b) { return {a.low < b, a.high < b}; }
ENN_INLINE Int256 operator>(const Lane256& a, float b) { return {a.low > b, a.high > b}; }
ENN_INLINE Int256 operator>(const Lane256& a, const Lane256& b) { return {a.low > b.low, a.high > b.high}; }

// `yes` where the mask holds, else `no`.
ENN_INLINE void pick(Lane512& into, const Int512& mask, const Lane512& yes, const Lane512& no) { into = mask ? yes : no; }
ENN_INLINE void pick(Lane256& into, const Int256& mask, const Lane256& yes, const Lane256& no) {
  into = {mask.low ? yes.low : no.low, mask.high ? yes.high : no.high};
}

// References, for a vector that is passed by value has no fixed place where the caller may lack its registers.
ENN_INLINE void load(Lane512& into, const float* from) { into = *reinterpret_cast<const Lane512At*>(from); }
ENN_INLINE void load(Lane256& into, const float* from) {
  into.low = *reinterpret_cast<const HalfAt*>(from);
  into.high = *reinterpret_cast<const HalfAt*>(from + LANES / 2);
}
ENN_INLINE void store(float* to, const Lane512& from) { *reinterpret_cast<Lane512At*>(to) = from; }
ENN_INLINE void store(float* to, const Lane256& from) {
  *reinterpret_cast<HalfAt*>(to) = from.low;
  *reinterpret_cast<HalfAt*>(to + LANES / 2) = from.high;
}

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
template <class L>
ENN_INLINE void load_part(L& into, const float* from, int64_t count) {
  if (count >= LANES) return load(into, from);
  float part[LANES] = {};
  for (int64_t j = 0; j < count; ++j) part[j] = from[j];
  load(into, part);
}

template <class L>
ENN_INLINE void store_part(float* to, const L& from, int64_t count) {
  if (count >= LANES) return store(to, from);
  float part[LANES];
  store(part, from);
  for (int64_t j = 0; j < count; ++j) to[j] = part[j];
}

// Only the first `count` numbers, zeros behind them.
ENN_INLINE void cut(Lane512& x, int64_t count) {
  const Int512 place = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Lane512 none = {};
  x = place < static_cast<int32_t>(count) ? x : none;
}
ENN_INLINE void cut(Lane256& x, int64_t count) {
  const HalfInt place = {0, 1, 2, 3, 4, 5, 6, 7};
  const Half none = {};
  x.low = place < static_cast<int32_t>(count) ? x.low : none;
  x.high = place < static_cast<int32_t>(count - LANES / 2) ? x.high : none;
}

// The sum of eight numbers, in pairs.
ENN_INLINE float total(const Half& x) {
#if defined(__clang__) || __GNUC__ >= 12
  Half sum = x + __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
  sum += __builtin_shufflevector(sum, sum, 2, 3, 0, 1, 6, 7, 4, 5);
  sum += __builtin_shufflevector(sum, sum, 1, 0, 3, 2, 5, 4, 7, 6);
  return sum[0];
#else
  float part[LANES / 2];
  *reinterpret_cast<HalfAt*>(part) = x;
  for (int64_t half = LANES / 4; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) part[j] += part[j + half];
  }
  return part[0];
#endif
}

// The sum of sixteen numbers: the halves are added first.
ENN_INLINE float total(const Lane256& x) {
  const Half sum = x.low + x.high;
  return total(sum);
}
ENN_INLINE float total(const Lane512& x) {
#if defined(__clang__) || __GNUC__ >= 12
  const Lane512 sum = x + __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  const Half half = __builtin_shufflevector(sum, sum, 0, 1, 2, 3, 4, 5, 6, 7);
  return total(half);
#else
  float part[LANES];
  store(part, x);
  Lane256 pair;
  load(pair, part);
  return total(pair);
#endif
}

// Below this the exponential is no normal number: it counts as 0.
constexpr float EXP_MIN = -87.3f;

// Times 2ⁿ, for n in the last places of `shifted`.
ENN_INLINE void power_of_two(Lane512& y, const Lane512& shifted) {
  const Int512 power = ((Int512)shifted - 0x4B400000 + 127) << 23;
  y *= (Lane512)power;
}
ENN_INLINE void power_of_two(Half& y, const Half& shifted) {
  const HalfInt power = ((HalfInt)shifted - 0x4B400000 + 127) << 23;
  y *= (Half)power;
}
ENN_INLINE void power_of_two(Lane256& y, const Lane256& shifted) {
  power_of_two(y.low, shifted.low), power_of_two(y.high, shifted.high);
}

// e to the x for x ≤ 88, to two units in the last place: 2ⁿ times a polynomial of the rest (Cephes' coefficients).
template <class L>
ENN_INLINE void exponential(L& x) {
  const L none = {};
  L within;
  pick(within, x < EXP_MIN, none + EXP_MIN, x);
  const L shifted = within * 1.44269504f + 12582912.0f;
  const L n = shifted - 12582912.0f;
  const L r = within - n * 0.693359375f - n * -2.12194440e-4f;
  L y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  power_of_two(y, shifted);
  pick(x, x < EXP_MIN, none, y);
}

inline int64_t padded(int64_t columns) { return (columns + LANES - 1) / LANES * LANES; }

} // namespace enn
