// What the devices of the ranks have copied here, brought together.

#define THREADS 512

// KIND is the type of the values; those of 16 bits are summed in 32.
#if KIND == 0
typedef float Value;
typedef float Wide;
#elif KIND == 1
typedef double Value;
typedef double Wide;
#elif KIND == 2
typedef i64 Value;
typedef i64 Wide;
#elif KIND == 3
typedef int Value;
typedef int Wide;
#elif KIND == 4
typedef signed char Value;
typedef int Wide;
#elif KIND == 5
typedef unsigned char Value;
typedef int Wide;
#elif KIND == 6
typedef bf16 Value;
typedef float Wide;
#else
typedef f16 Value;
typedef float Wide;
#endif

__device__ __forceinline__ Wide widened(Value x) {
#if KIND >= 6
  return wide(x);
#else
  return x;
#endif
}

__device__ __forceinline__ Value narrowed(Wide x) {
#if KIND >= 6
  return narrow<Value>(x);
#else
  return (Value)x;
#endif
}

// REDUCE: 0 the sum, 1 the smallest, 2 the largest; what is no number wins.
__device__ __forceinline__ Wide together(Wide a, Wide b) {
#if REDUCE == 0
  return a + b;
#elif REDUCE == 1
  return b < a || b != b ? b : a;
#else
  return b > a || b != b ? b : a;
#endif
}

// own[i] becomes what element i of all ranks comes to, in the order of the ranks, so that it does not matter whose part it is. The
// others' lie behind each other, `stride` elements apart, the own ones left out.
__device__ __forceinline__ const Value* of_rank(const Value* own, const Value* parts, i64 stride, u32 rank, u32 r) {
  return r == rank ? own : parts + (i64)(r < rank ? r : r - 1) * stride;
}

// Σ x² of what this thread made: in f64, so that none of finite sums overflows.
__device__ __forceinline__ double bring_together(Value* own, const Value* parts, i64 n, i64 stride, u32 rank, u32 ranks) {
  double squares = 0.0;
  i64 packs = n / VEC;
  for (i64 p = thread_of_grid(); p < packs; p += threads_of_grid()) {
    Wide sum[VEC];
    Pack<Value, VEC> x;
    for (u32 r = 0; r < ranks; ++r) {
      x = load<Value, VEC>(of_rank(own, parts, stride, rank, r) + p * VEC);
#pragma unroll
      for (int j = 0; j < VEC; ++j) sum[j] = r == 0 ? widened(x.at[j]) : together(sum[j], widened(x.at[j]));
    }
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      x.at[j] = narrowed(sum[j]);
      squares += (double)sum[j] * (double)sum[j];
    }
    store<Value, VEC>(own + p * VEC, x);
  }
  // What is left of the last pack.
  i64 at = packs * VEC + thread_of_grid();
  if (at < n) {
    Wide sum = widened(*(of_rank(own, parts, stride, rank, 0) + at));
    for (u32 r = 1; r < ranks; ++r) sum = together(sum, widened(*(of_rank(own, parts, stride, rank, r) + at)));
    own[at] = narrowed(sum);
    squares += (double)sum * (double)sum;
  }
  return squares;
}

extern "C" __global__ void sum_parts(Value* own, const Value* parts, i64 n, i64 stride, u32 rank, u32 ranks) {
  bring_together(own, parts, n, stride, rank, ranks);
}

// The same, and Σ x² of each block.
extern "C" __global__ void __launch_bounds__(THREADS) sum_parts_measured(Value* own, const Value* parts, i64 n, i64 stride, u32 rank, u32 ranks, double* partial) {
  double squares = sum_of_block<THREADS>(bring_together(own, parts, n, stride, rank, ranks));
  if (threadIdx.x == 0) partial[blockIdx.x] = squares;
}

// √Σ partial; no number once `cut`, a word of the host's that is read after all sums were made, is not 0: no update is made of those. One
// block.
extern "C" __global__ void __launch_bounds__(THREADS) norm_of_parts(const double* partial, i64 count, float* norm, const u32* cut) {
  double squares = 0.0;
  for (i64 i = threadIdx.x; i < count; i += THREADS) squares += partial[i];
  squares = sum_of_block<THREADS>(squares);
  if (threadIdx.x == 0) *norm = *(const volatile u32*)cut != 0 ? __int_as_float(0x7fc00000) : (float)sqrt(squares);
}

// `bytes` from one place to another, if the word `cut` of this device is 0.
extern "C" __global__ void __launch_bounds__(THREADS) take_part(const unsigned char* from, unsigned char* to, i64 bytes, const u32* cut) {
  if (*cut != 0) return;
  typedef Pack<u32, 4> Wide16;
  const i64 width = sizeof(Wide16);
  i64 packs = ((u64)from | (u64)to) % width == 0 ? bytes / width : 0;
  for (i64 p = thread_of_grid(); p < packs; p += threads_of_grid()) ((Wide16*)to)[p] = ((const Wide16*)from)[p];
  for (i64 at = packs * width + thread_of_grid(); at < bytes; at += threads_of_grid()) to[at] = from[at];
}
