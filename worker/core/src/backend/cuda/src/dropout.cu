// Dropout of elements or of whole rows. The mask is a function of the key and the element, and is never stored.
//
// `key` lies on the device: seed, step, position of the first row of this rank in the global batch, rows of this rank.

struct Stream {
  u64 seed, step, first;
};

__device__ __forceinline__ Stream stream_of(const i64* key, i64 elements) {
  i64 rows = key[3];
  // A division of 64 bits takes as long as all words of a block.
  bool small = ((u64)elements | (u64)rows) >> 32 == 0;
  i64 each = rows == 0 ? 0 : small ? (i64)((u32)elements / (u32)rows) : elements / rows;
  Stream s = {(u64)key[0], (u64)key[1], (u64)(key[2] * each)};
  return s;
}

// One thread makes the words of one block, up to four elements. PACKED: x and y allow loads of four elements.
extern "C" __global__ void dropout(const ELEMENT* x, ELEMENT* y, const i64* key, i64 n, u32 site, u32 threshold, float scale) {
  Stream s = stream_of(key, n);
  u64 first_block = s.first / 4;
  int skip = (int)(s.first % 4);
  i64 blocks = (skip + n + 3) / 4;
  for (i64 b = thread_of_grid(); b < blocks; b += threads_of_grid()) {
    Words words = philox(s.seed, s.step, site, first_block + (u64)b);
    i64 at = 4 * b - skip;
    if (PACKED && skip == 0 && at + 4 <= n) {
      Pack<ELEMENT, 4> pack = load<ELEMENT, 4>(x + at);
#pragma unroll
      for (int j = 0; j < 4; ++j) pack.at[j] = narrow<ELEMENT>(words.at[j] < threshold ? wide(pack.at[j]) * scale : 0.0f);
      store<ELEMENT, 4>(y + at, pack);
      continue;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      i64 i = at + j;
      if (i >= 0 && i < n) y[i] = narrow<ELEMENT>(words.at[j] < threshold ? wide(x[i]) * scale : 0.0f);
    }
  }
}

// Rows of `width` elements; one word per row. A thread takes eight neighbours and makes a word when the row changes.
extern "C" __global__ void drop_rows(const ELEMENT* x, ELEMENT* y, const i64* key, i64 rows, i64 width, u32 site, u32 threshold, float scale) {
  Stream s = stream_of(key, rows);
  i64 n = rows * width;
  for (i64 t = thread_of_grid(); 8 * t < n; t += threads_of_grid()) {
    i64 end = 8 * t + 8 < n ? 8 * t + 8 : n;
    i64 row = 8 * t / width, next = 8 * t;
    bool keep = false;
    for (i64 i = 8 * t; i < end; ++i) {
      if (i == next) {
        u64 element = s.first + (u64)row;
        Words words = philox(s.seed, s.step, site, element / 4);
        u32 lane = (u32)(element % 4);
        // Selected, not indexed: an index would move the words to memory.
        u32 word = lane == 0 ? words.at[0] : lane == 1 ? words.at[1] : lane == 2 ? words.at[2] : words.at[3];
        keep = word < threshold;
        ++row;
        next = row * width;
      }
      y[i] = narrow<ELEMENT>(keep ? wide(x[i]) * scale : 0.0f);
    }
  }
}
