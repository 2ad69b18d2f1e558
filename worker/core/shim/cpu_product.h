// Products of small matrices, of which the CPU kernels of linear layers and of attention are made.
#pragma once

#include "cpu_lanes.h"

#include <vector>

namespace enn {

// C (rows, columns) = or += A (rows, inner) · B (inner, columns). B in lanes of sixteen columns: number `j` of row `p` of lane `l` is at
// b[p · b_step + l · b_lane + j]. What lies behind the last column is read, and may be anything.
struct Product {
  const float* a;
  int64_t a_row, a_step;
  const float* b;
  int64_t b_step, b_lane;
  float* c;
  int64_t c_row;
  int64_t rows, columns, inner;
  // What a row of C begins with, or nothing: zeros, or with `add` C itself. As long as the lanes.
  const float* start;
  bool add;
};

template <class L, int M, int V>
ENN_INLINE void tile(const Product& x, int64_t row, int64_t lane) {
  L sum[M][V];
  for (int v = 0; v < V; ++v) {
    L begin = {};
    if (x.start) load(begin, x.start + (lane + v) * LANES);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) sum[m][v] = begin;
  }
  const float* a = x.a + row * x.a_row;
  const float* b = x.b + lane * x.b_lane;
  for (int64_t p = 0; p < x.inner; ++p) {
    L right[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) load(right[v], b + p * x.b_step + v * x.b_lane);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const float left = a[m * x.a_row + p * x.a_step];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[m][v] += left * right[v];
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < V; ++v) {
      float* c = x.c + (row + m) * x.c_row + (lane + v) * LANES;
      const int64_t count = std::min(LANES, x.columns - (lane + v) * LANES);
      L whole = sum[m][v];
      if (count == LANES) {
        if (x.add) {
          L before;
          load(before, c);
          whole += before;
        }
        store(c, whole);
      } else {
        float part[LANES];
        store(part, whole);
        if (x.add) for (int64_t j = 0; j < count; ++j) c[j] += part[j];
        else if (count == LANES / 2) std::memcpy(c, part, LANES / 2 * sizeof(float));
        else for (int64_t j = 0; j < count; ++j) c[j] = part[j];
      }
    }
  }
}

template <class L, int M, int V>
ENN_INLINE void lanes_of(const Product& x, int64_t row) {
  const int64_t lanes = (x.columns + LANES - 1) / LANES;
  int64_t lane = 0;
  for (; lane + V <= lanes; lane += V) tile<L, M, V>(x, row, lane);
  for (; lane < lanes; ++lane) tile<L, M, 1>(x, row, lane);
}

template <class L, int M, int V>
ENN_INLINE void rows_of(const Product& x, int64_t from, int64_t to) {
  int64_t row = from;
  for (; row + M <= to; row += M) lanes_of<L, M, V>(x, row);
  for (; row + 4 <= to; row += 4) lanes_of<L, 4, V>(x, row);
  for (; row < to; ++row) lanes_of<L, 1, V>(x, row);
}

// As many sums as there are registers for, beside a row of B and a number of A.
ENN_512 static void multiply_512(const Product& x, int64_t from, int64_t to) { rows_of<Lane512, 12, 2>(x, from, to); }
ENN_256 static void multiply_256(const Product& x, int64_t from, int64_t to) { rows_of<Lane256, 6, 1>(x, from, to); }

inline void multiply(const Product& x, int64_t from, int64_t to) {
  if (enn::best() == Wide::Avx512) multiply_512(x, from, to);
  else multiply_256(x, from, to);
}

// A matrix (inner, columns) of which number (p, j) is at m[p · step + j · column], in panels of sixteen columns, zeros behind the last.
inline std::vector<float> panels(const float* m, int64_t inner, int64_t columns, int64_t step, int64_t column) {
  std::vector<float> out(inner * padded(columns), 0.0f);
  for (int64_t j = 0; j < columns; ++j) {
    float* to = out.data() + j / LANES * LANES * inner + j % LANES;
    const float* from = m + j * column;
    for (int64_t p = 0; p < inner; ++p) to[p * LANES] = from[p * step];
  }
  return out;
}

} // namespace enn
