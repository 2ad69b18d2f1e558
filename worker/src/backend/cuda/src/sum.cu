// What the devices of the ranks have copied here, brought together.

#define THREADS 512
// Packs that a thread takes before it looks for a cut.
#define TAKEN 4

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

// Whether a rank has said in that word of the host's memory, if there is one, that waits are ended before their time: what was read after
// that may be anything, what was read before is what was waited for: the fence keeps those reads before this one.
__device__ __forceinline__ bool is_cut(const u32* cut) {
  if (!cut) return false;
  __threadfence();
  return *(const volatile u32*)cut != 0;
}

// Σ x² of what this thread made: in f64, so that none of finite sums overflows. Nothing is written after a cut.
__device__ __forceinline__ double bring_together(Value* own, const Value* parts, i64 n, i64 stride, u32 rank, u32 ranks, const u32* cut) {
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
    if (is_cut(cut)) return squares;
    store<Value, VEC>(own + p * VEC, x);
  }
  // What is left of the last pack.
  i64 at = packs * VEC + thread_of_grid();
  if (at < n) {
    Wide sum = widened(*(of_rank(own, parts, stride, rank, 0) + at));
    for (u32 r = 1; r < ranks; ++r) sum = together(sum, widened(*(of_rank(own, parts, stride, rank, r) + at)));
    if (is_cut(cut)) return squares;
    own[at] = narrowed(sum);
    squares += (double)sum * (double)sum;
  }
  return squares;
}

extern "C" __global__ void sum_parts(Value* own, const Value* parts, i64 n, i64 stride, u32 rank, u32 ranks, const u32* cut) {
  bring_together(own, parts, n, stride, rank, ranks, cut);
}

// The same, and Σ x² of each block.
extern "C" __global__ void __launch_bounds__(THREADS) sum_parts_measured(Value* own, const Value* parts, i64 n, i64 stride, u32 rank, u32 ranks, const u32* cut, double* partial) {
  double squares = sum_of_block<THREADS>(bring_together(own, parts, n, stride, rank, ranks, cut));
  if (threadIdx.x == 0) partial[blockIdx.x] = squares;
}

// √Σ partial; no number after a cut, so that no update is made of it. One block.
extern "C" __global__ void __launch_bounds__(THREADS) norm_of_parts(const double* partial, i64 count, float* norm, const u32* cut) {
  double squares = 0.0;
  for (i64 i = threadIdx.x; i < count; i += THREADS) squares += partial[i];
  squares = sum_of_block<THREADS>(squares);
  if (threadIdx.x == 0) *norm = is_cut(cut) ? __int_as_float(0x7fc00000) : (float)sqrt(squares);
}

// What came, to where it belongs: nothing after a cut.
extern "C" __global__ void __launch_bounds__(THREADS) take_part(const unsigned char* from, unsigned char* to, i64 bytes, const u32* cut) {
  typedef Pack<u32, 4> Wide16;
  const i64 width = sizeof(Wide16);
  i64 packs = ((u64)from | (u64)to) % width == 0 ? bytes / width : 0;
  const Wide16* source = (const Wide16*)from;
  Wide16* target = (Wide16*)to;
  for (i64 first = (i64)blockIdx.x * THREADS * TAKEN + threadIdx.x; first < packs; first += (i64)gridDim.x * THREADS * TAKEN) {
    Wide16 some[TAKEN];
#pragma unroll
    for (int j = 0; j < TAKEN; ++j) {
      if (first + j * THREADS < packs) some[j] = source[first + j * THREADS];
    }
    if (is_cut(cut)) return;
#pragma unroll
    for (int j = 0; j < TAKEN; ++j) {
      if (first + j * THREADS < packs) target[first + j * THREADS] = some[j];
    }
  }
  for (i64 at = packs * width + thread_of_grid(); at < bytes; at += threads_of_grid()) {
    unsigned char one = from[at];
    if (is_cut(cut)) return;
    to[at] = one;
  }
}
