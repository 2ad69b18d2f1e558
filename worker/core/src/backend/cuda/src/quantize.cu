// A matrix as 8-bit numbers, by rows and transposed, with one multiplier: the largest |x| / the largest 8-bit number.
//
// Two launches. The first leaves the largest |x| of each of its blocks; each block of the second reduces those (the largest
// is the same whatever the order) and writes tiles both ways. GRADIENT: e5m2, else e4m3. VEC: elements of a load.

typedef unsigned char u8;

#define THREADS 256
#define SIDE 128            // Of a tile.
#define ROWS 4              // Of a thread's part of a tile: a 32-bit word of the transposed.
#define COLUMNS 8           // Of a thread's part of a tile: a 64-bit word of the rows.
#define ACROSS (SIDE / COLUMNS)
#define WORDS (SIDE / ROWS) // Of a transposed row of a tile.
#define UNROLL 4
#define SCALE_MIN 1e-30f    // Keeps 0/0 away when a matrix is all zero.
#define MANTISSA (GRADIENT ? 2 : 3)
#define BIAS (GRADIENT ? 15 : 7)
#define LARGEST (GRADIENT ? 57344.0f : 448.0f)
#define LARGEST_INVERSE (float)(GRADIENT ? 1.0 / 57344.0 : 1.0 / 448.0)

#ifdef __CUDA_ARCH__
#define HAS_EIGHT_BITS (__CUDA_ARCH__ >= 890)
#else
#define HAS_EIGHT_BITS 0
#endif

// The nearest 8-bit number, ties to even; |x| is at most LARGEST, or x is NaN.
__device__ __forceinline__ u32 portable_eight(float x) {
  u32 bits = __float_as_uint(x), sign = (bits >> 24) & 0x80u, size = bits & 0x7FFFFFFFu;
  if (size > 0x7F800000u) return 0x7Fu;
  if (size < (u32)(128 - BIAS) << 23) {
    // Below the normal numbers. Added to a float whose last place is theirs, it is rounded as they are.
    u32 like = (u32)(127 + 1 - BIAS - MANTISSA + 23) << 23;
    return sign | (__float_as_uint(__uint_as_float(size) + __uint_as_float(like)) - like);
  }
  const int dropped = 23 - MANTISSA;
  size += (1u << (dropped - 1)) - 1u + ((size >> dropped) & 1u);
  return sign | ((size - ((u32)(127 - BIAS) << 23)) >> dropped);
}

__device__ __forceinline__ float within(float x) {
  // NaN passes both tests.
  x = x > LARGEST ? LARGEST : x;
  return x < -LARGEST ? -LARGEST : x;
}

// Two numbers as neighbours, `low` in the lower byte.
__device__ __forceinline__ u32 eight_pair(float low, float high) {
#if HAS_EIGHT_BITS
  u16 both;
#if GRADIENT
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
#else
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
#endif
  return both;
#else
  return portable_eight(within(low)) | portable_eight(within(high)) << 8;
#endif
}

__device__ __forceinline__ u32 larger(u32 a, u32 b) { return a > b ? a : b; }

// The same in every thread of the block. Sizes of floats are ordered as their bits, infinity and NaN above the rest.
__device__ __forceinline__ u32 largest_of_block(u32 x, u32* scratch) {
  for (int distance = 16; distance > 0; distance /= 2) x = larger(x, __shfl_xor_sync(FULL_WARP, x, distance));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  for (int i = 0; i < THREADS / 32; ++i) x = larger(x, scratch[i]);
  return x;
}

// `packs` packs of VEC elements.
extern "C" __global__ void __launch_bounds__(THREADS) largest(const ELEMENT* x, i64 packs, u32* partial) {
  __shared__ u32 scratch[THREADS / 32];
  u32 most = 0;
  i64 stride = threads_of_grid();
  for (i64 first = thread_of_grid(); first < packs; first += UNROLL * stride) {
    Pack<ELEMENT, VEC> pack[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      i64 at = first + u * stride;
      // The first again where there is no more: it changes nothing.
      pack[u] = load<ELEMENT, VEC>(x + VEC * (at < packs ? at : first));
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
#pragma unroll
      for (int j = 0; j < VEC; ++j) most = larger(most, __float_as_uint(wide(pack[u].at[j])) & 0x7FFFFFFFu);
  }
  most = largest_of_block(most, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = most;
}

struct Eights {
  u32 low, high;
};

// COLUMNS elements from `x`, multiplied.
__device__ __forceinline__ Eights eights(const Pack<ELEMENT, VEC>* packs, float inverse) {
  float y[COLUMNS];
#pragma unroll
  for (int j = 0; j < COLUMNS; ++j) y[j] = wide(packs[j / VEC].at[j % VEC]) * inverse;
  Eights e = {eight_pair(y[0], y[1]) | eight_pair(y[2], y[3]) << 16, eight_pair(y[4], y[5]) | eight_pair(y[6], y[7]) << 16};
  return e;
}

// Byte `i` of four words, as one.
__device__ __forceinline__ u32 column_of(const u32* words, int i) {
  u32 shift = 8 * i, out = 0;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) out |= ((words[r] >> shift) & 0xFFu) << (8 * r);
  return out;
}

// Where word `word` of transposed row `column` lies in a tile: no two threads of a warp meet in a bank, writing or reading.
// Even, so that pairs of words stay neighbours.
__device__ __forceinline__ int place(int column, int word) { return column * WORDS + (word ^ (column / COLUMNS * 2 % WORDS)); }

// rows × columns, both multiples of 16 → q, its transposed, the multiplier. Tiles go backwards: what the first kernel read
// last is still near.
extern "C" __global__ void __launch_bounds__(THREADS) quantize(const ELEMENT* x, const u32* partial, i64 partials, u8* q, u8* transposed, float* scale, i64 rows, i64 columns) {
  __shared__ u32 scratch[THREADS / 32];
  alignas(16) __shared__ u32 tile[SIDE * WORDS];
  u32 most = 0;
  for (i64 i = threadIdx.x; i < partials; i += THREADS) most = larger(most, partial[i]);
  float s = __uint_as_float(largest_of_block(most, scratch)) * LARGEST_INVERSE;
  s = s < SCALE_MIN ? SCALE_MIN : s;
  float inverse = 1.0f / s;
  if (blockIdx.x == 0 && threadIdx.x == 0) *scale = s;
  i64 across = (columns + SIDE - 1) / SIDE, tiles = across * ((rows + SIDE - 1) / SIDE);
  int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
  for (i64 t = tiles - 1 - blockIdx.x; t >= 0; t -= gridDim.x) {
    i64 row0 = t / across * SIDE, column0 = t % across * SIDE;
    i64 column = column0 + tx * COLUMNS;
    for (int word = ty; word < WORDS; word += THREADS / ACROSS) {
      i64 row = row0 + word * ROWS;
      if (row >= rows || column >= columns) continue;
      Pack<ELEMENT, VEC> packs[ROWS][COLUMNS / VEC];
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int p = 0; p < COLUMNS / VEC; ++p) packs[r][p] = load<ELEMENT, VEC>(x + (row + r) * columns + column + p * VEC);
      u32 low[ROWS], high[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        Eights e = eights(packs[r], inverse);
        low[r] = e.low;
        high[r] = e.high;
        Pack<u32, 2> out = {{e.low, e.high}};
        store<u32, 2>((u32*)(q + (row + r) * columns + column), out);
      }
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) tile[place(tx * COLUMNS + j, word)] = column_of(j < 4 ? low : high, j % 4);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SIDE * WORDS / 2; i += THREADS) {
      int down = i / (WORDS / 2), pair = i % (WORDS / 2) * 2;
      i64 row = row0 + pair * ROWS;
      if (column0 + down < columns && row < rows)
        store<u32, 2>((u32*)(transposed + (column0 + down) * rows + row), load<u32, 2>(tile + place(down, pair)));
    }
    __syncthreads();
  }
}
