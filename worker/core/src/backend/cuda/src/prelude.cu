// What every kernel file begins with: integer names, element types, packs, reductions over a row's threads, Philox.
//
// No header is included, so that the compiler needs no search path. The portable branches let the same text run on a
// CPU in a test; on a device the conversions are single instructions.

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;

#ifdef __CUDACC_RTC__
#define ON_DEVICE 1
#else
#define ON_DEVICE 0
#endif

#if ON_DEVICE
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#else
#define DYNAMIC_SHARED(name) char* name = device::dynamic_shared
#endif

#define FULL_WARP 0xFFFFFFFFu
#define INFINITE __int_as_float(0x7F800000)
#define NOT_A_NUMBER __int_as_float(0x7FFFFFFF)

struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};

__device__ __forceinline__ float wide(float x) { return x; }

__device__ __forceinline__ float wide(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

__device__ __forceinline__ float wide(f16 x) {
#if ON_DEVICE
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  return portable_from_half(x.bits);
#endif
}

// The nearest number of the element type, ties to even.
template <class T>
__device__ __forceinline__ T narrow(float x);

template <>
__device__ __forceinline__ float narrow<float>(float x) {
  return x;
}

template <>
__device__ __forceinline__ bf16 narrow<bf16>(float x) {
  bf16 y;
#if ON_DEVICE
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  u32 bits = __float_as_uint(x);
  bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  y.bits = nan ? (u16)0x7FFF : (u16)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
#endif
  return y;
}

template <>
__device__ __forceinline__ f16 narrow<f16>(float x) {
  f16 y;
#if ON_DEVICE
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  y.bits = portable_to_half(x);
#endif
  return y;
}

// N neighbouring elements, loaded and stored as one.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

template <class T, int N>
__device__ __forceinline__ Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

template <class T, int N>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// The sum of the numbers of a block's threads, a power of two of them, at thread 0; once in a kernel.
template <int THREADS_OF_BLOCK>
__device__ __forceinline__ double sum_of_block(double mine) {
  __shared__ double all[THREADS_OF_BLOCK];
  all[threadIdx.x] = mine;
  __syncthreads();
  for (int half = THREADS_OF_BLOCK / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) all[threadIdx.x] += all[threadIdx.x + half];
    __syncthreads();
  }
  return all[0];
}

// Position among all threads of a one-dimensional grid, and their number.
__device__ __forceinline__ i64 thread_of_grid() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ i64 threads_of_grid() { return (i64)gridDim.x * blockDim.x; }

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <class F>
__device__ __forceinline__ float over_warp(float x, F f) {
  for (int distance = 16; distance > 0; distance /= 2) x = f(x, __shfl_xor_sync(FULL_WARP, x, distance));
  return x;
}

// One number of each of SHARING threads combined, the same bits in every thread. A row of up to 32 threads is one warp
// and needs no memory; longer ones use `scratch` (one float per warp, free again on return). All threads of the block
// call it together.
template <int SHARING, class F>
__device__ __forceinline__ float over_row(float x, F f, float* scratch) {
  x = over_warp(x, f);
  if (SHARING <= 32) return x;
  constexpr int WARPS = SHARING / 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float all = scratch[0];
  for (int i = 1; i < WARPS; ++i) all = f(all, scratch[i]);
  return all;
}

// Block `block` of the stream that (seed, step, site) names: Philox-4x32-10.
struct Words {
  u32 at[4];
};

__device__ __forceinline__ Words philox(u64 seed, u64 step, u32 site, u64 block) {
  u32 c0 = (u32)block, c1 = (u32)(block >> 32), c2 = site, c3 = (u32)step;
  u32 k0 = (u32)seed, k1 = (u32)(seed >> 32) ^ (u32)(step >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    u64 a = (u64)c0 * 0xD2511F53u, b = (u64)c2 * 0xCD9E8D57u;
    c0 = (u32)(b >> 32) ^ c1 ^ k0;
    c1 = (u32)b;
    c2 = (u32)(a >> 32) ^ c3 ^ k1;
    c3 = (u32)a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  Words words = {{c0, c1, c2, c3}};
  return words;
}
