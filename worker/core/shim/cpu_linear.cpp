// The products of a linear layer on the CPU: y = x Wᵀ + b; dx = g W, dW += gᵀ x, db += Σ g.
//
// Rows of x are many and weights small, the other way round than libraries of matrix products expect. A tile of the result stays in
// registers while its terms are added; weights are laid out in panels of sixteen columns once a call. Where the weight is what does
// not fit the second cache, yᵀ = W xᵀ: x is laid out, and the weight is read once, as it lies. A number of the result does not depend
// on the number of threads or on other rows: its terms are added in the same order always.

#include "aten_guard.h"
#include "cpu_product.h"
#include "parallel.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

using enn::LANES;
using enn::load;
using enn::multiply;
using enn::padded;
using enn::panels;
using enn::Product;
using enn::store;
using enn::Wide;

namespace {

// Terms of a sum that are added in one go; sums of more rows are sums of such sums, which rounds less.
constexpr int64_t TERMS = 256;
// Multiplications that are worth a thread: about 200 µs. One that wakes for less costs more than it does, where it shares a core.
constexpr int64_t WORK = 1 << 23;

template <class L>
ENN_INLINE void add_rows(const float* g, int64_t rows, int64_t width, float* __restrict sum) {
  for (int64_t first = 0; first < rows; first += TERMS) {
    const int64_t last = std::min(rows, first + TERMS);
    for (int64_t lane = 0; lane < width; lane += LANES) {
      const int64_t count = std::min(LANES, width - lane);
      float part[LANES] = {};
      if (count == LANES) {
        L whole = {};
        for (int64_t i = first; i < last; ++i) {
          L row;
          load(row, g + i * width + lane);
          whole += row;
        }
        store(part, whole);
      } else {
        for (int64_t i = first; i < last; ++i) {
          for (int64_t j = 0; j < count; ++j) part[j] += g[i * width + lane + j];
        }
      }
      for (int64_t j = 0; j < count; ++j) sum[lane + j] += part[j];
    }
  }
}
ENN_512 void add_rows_512(const float* g, int64_t rows, int64_t width, float* sum) { add_rows<enn::Lane512>(g, rows, width, sum); }
ENN_256 void add_rows_256(const float* g, int64_t rows, int64_t width, float* sum) { add_rows<enn::Lane256>(g, rows, width, sum); }

// Rows whose sums are in registers together.
constexpr int64_t BLOCK = 12;

// In parallel over `rows`, each worth so many multiplications, in whole blocks.
void by_blocks(int64_t rows, int64_t work, c10::function_ref<void(int64_t, int64_t)> part) {
  const int64_t grain = WORK / std::max<int64_t>(1, BLOCK * work);
  enn::parallel_for(0, (rows + BLOCK - 1) / BLOCK, grain, [&](int64_t from, int64_t to) { part(from * BLOCK, std::min(rows, to * BLOCK)); });
}

void run(const Product& x) {
  by_blocks(x.rows, x.inner * x.columns, [&](int64_t from, int64_t to) {
    for (int64_t first = 0; first == 0 || first < x.inner; first += TERMS) {
      Product part = x;
      part.a += first * x.a_step, part.b += first * x.b_step;
      part.inner = std::min(TERMS, x.inner - first);
      part.add = first > 0, part.start = first > 0 ? nullptr : x.start;
      multiply(part, from, to);
    }
  });
}

// dW += gᵀ x for g (n, out), x (n, in): a block of rows after the other, so that what is read stays near.
void add_outer(const float* g, const float* x, float* dw, int64_t n, int64_t out, int64_t in) {
  // The last lane of a row may reach into the next ones; behind the last row is nothing.
  const int64_t tail = in % LANES == 0 ? 0 : std::min(n, 1 + (LANES - 1) / in);
  std::vector<float> behind(tail * padded(in), 0.0f);
  for (int64_t p = 0; p < tail; ++p) std::copy_n(x + (n - tail + p) * in, in, behind.data() + p * padded(in));
  by_blocks(out, n * in, [&](int64_t from, int64_t to) {
    const auto part = [&](int64_t first, int64_t count, const float* b, int64_t step) {
      multiply({g + first * out, 1, out, b, step, LANES, dw, in, out, in, count, nullptr, true}, from, to);
    };
    for (int64_t first = 0; first < n - tail; first += TERMS) part(first, std::min(TERMS, n - tail - first), x + first * in, in);
    if (tail > 0) part(n - tail, tail, behind.data(), padded(in));
  });
}

// y (n, out) = x Wᵀ + b by its transpose, for a weight that is far.
void by_transpose(const float* x, const float* w, const float* bias, float* y, int64_t n, int64_t out, int64_t in) {
  const auto right = panels(x, in, n, 1, in);
  std::vector<float> turned(out * n);
  by_blocks(out, n * in, [&](int64_t begin, int64_t end) {
    for (int64_t from = begin; from < end; from += BLOCK) {
      // All terms of these rows before the next: a weight's row is read from one end to the other.
      for (int64_t first = 0; first < in; first += TERMS) {
        const float* part = right.data() + first * LANES;
        multiply({w + first, in, 1, part, LANES, LANES * in, turned.data(), n, out, n, std::min(TERMS, in - first), nullptr, first > 0}, from, std::min(end, from + BLOCK));
      }
    }
  });
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t o = 0; o < out; ++o) y[i * out + o] = turned[o * n + i] + (bias ? bias[o] : 0.0f);
  }
}

void check(const at::Tensor& x) {
  TORCH_CHECK(x.device().is_cpu() && x.scalar_type() == at::kFloat, "the CPU kernel got ", x.scalar_type(), " on ", x.device());
}

} // namespace

extern "C" {

// Whether this processor has the kernels of small products and of attention.
int32_t enn_has_wide() { return enn::best() != Wide::None; }

// y (…, out) of x (…, in), w (out, in), which does not fit the caches where it is `far`, and a bias (out) or null.
int32_t enn_linear(const at::Tensor* x_in, const at::Tensor* w_in, const at::Tensor* bias, int32_t far, at::Tensor** y) {
  return enn::guarded([&] {
    check(*x_in), check(*w_in);
    const auto x = x_in->contiguous(), w = w_in->contiguous();
    const int64_t out = w.size(0), in = w.size(1), n = x.numel() / std::max<int64_t>(1, in);
    auto sizes = x.sizes().vec();
    sizes.back() = out;
    auto made = at::empty(sizes, x.options());
    const auto dense = bias ? bias->contiguous() : at::Tensor();
    if (far) {
      by_transpose(x.const_data_ptr<float>(), w.const_data_ptr<float>(), bias ? dense.const_data_ptr<float>() : nullptr, made.mutable_data_ptr<float>(), n, out, in);
      *y = new at::Tensor(std::move(made));
      return;
    }
    const auto right = panels(w.const_data_ptr<float>(), in, out, 1, in);
    std::vector<float> start;
    if (bias) {
      start.assign(padded(out), 0.0f);
      std::copy_n(dense.const_data_ptr<float>(), out, start.begin());
    }
    run({x.const_data_ptr<float>(), in, 1, right.data(), LANES, LANES * in, made.mutable_data_ptr<float>(), out, n, out, in, bias ? start.data() : nullptr, false});
    *y = new at::Tensor(std::move(made));
  });
}

// g (…, out), x (…, in), w (out, in) → dx, unless `dx` is null; dw and db are added to, each unless it is null.
int32_t enn_linear_backward(const at::Tensor* const* ins, at::Tensor** dx, const at::Tensor* dw, const at::Tensor* db) {
  return enn::guarded([&] {
    check(*ins[0]), check(*ins[1]), check(*ins[2]);
    const auto g = ins[0]->contiguous(), x = ins[1]->contiguous(), w = ins[2]->contiguous();
    const int64_t out = w.size(0), in = w.size(1), n = g.numel() / std::max<int64_t>(1, out);
    const float *g_data = g.const_data_ptr<float>(), *x_data = x.const_data_ptr<float>(), *w_data = w.const_data_ptr<float>();
    if (dx) {
      auto made = at::empty(x.sizes(), x.options());
      const bool dense = in % LANES == 0;
      const auto packed = dense ? std::vector<float>() : panels(w_data, out, in, in, 1);
      const float* right = dense ? w_data : packed.data();
      const int64_t step = dense ? in : LANES, lane = dense ? LANES : LANES * out;
      run({g_data, out, 1, right, step, lane, made.mutable_data_ptr<float>(), in, n, in, out, nullptr, false});
      *dx = new at::Tensor(std::move(made));
    }
    if (dw) {
      TORCH_CHECK(dw->is_contiguous() && dw->numel() == w.numel(), "a gradient of another layout");
      add_outer(g_data, x_data, dw->mutable_data_ptr<float>(), n, out, in);
    }
    if (db) {
      TORCH_CHECK(db->is_contiguous() && db->numel() == out, "a gradient of another layout");
      enn::chosen(add_rows_512, add_rows_256)(g_data, n, out, db->mutable_data_ptr<float>());
    }
  });
}
}
