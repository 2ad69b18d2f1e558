// Norms over the last axis with the sum before them, and gated units, on the CPU. libtorch goes over memory several times for each, and
// wakes threads for pieces that are done sooner. A row does not depend on other rows, nor a result on the number of threads.

#include "aten_guard.h"
#include "cpu_lanes.h"
#include "parallel.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <vector>

using enn::cut;
using enn::exponential;
using enn::Lane256;
using enn::Lane512;
using enn::LANES;
using enn::load_part;
using enn::padded;
using enn::store_part;
using enn::total;

namespace {

// Numbers of a norm and of a gate that are worth a thread.
constexpr int64_t NORM_GRAIN = 1 << 18;
constexpr int64_t GATE_GRAIN = 1 << 17;
// Rows whose shares of a weight's gradient are added in one go; sums of more rows are sums of such sums.
constexpr int64_t TERMS = 256;

// What is missing is null.
struct Norm {
  const float *x, *branch, *weight, *bias;
  float *sum, *y, *mean, *rstd;
  int64_t width;
  float eps;
};

template <class L>
ENN_INLINE void norm(const Norm& n, int64_t from, int64_t to) {
  const float share = 1.0f / static_cast<float>(n.width);
  for (int64_t row = from; row < to; ++row) {
    const float* x = n.x + row * n.width;
    L all = {}, squares = {}, a, b;
    if (n.branch) {
      const float* branch = n.branch + row * n.width;
      float* sum = n.sum + row * n.width;
      for (int64_t i = 0; i < n.width; i += LANES) {
        load_part(a, x + i, n.width - i), load_part(b, branch + i, n.width - i);
        a += b;
        store_part(sum + i, a, n.width - i);
      }
      x = sum;
    }
    float mean = 0;
    if (n.mean) {
      for (int64_t i = 0; i < n.width; i += LANES) {
        load_part(a, x + i, n.width - i);
        all += a;
      }
      mean = n.mean[row] = total(all) * share;
    }
    for (int64_t i = 0; i < n.width; i += LANES) {
      load_part(a, x + i, n.width - i);
      a -= mean;
      if (n.width - i < LANES) cut(a, n.width - i);
      squares += a * a;
    }
    // A row whose squares are too large has no norm, and must not look as if it had: 0 · ∞ is no number.
    const float square = total(squares) * share;
    const float rstd = n.rstd[row] = 1.0f / std::sqrt(square + n.eps) + 0.0f * square;
    for (int64_t i = 0; i < n.width; i += LANES) {
      load_part(a, x + i, n.width - i);
      a = (a - mean) * rstd;
      if (n.weight) load_part(b, n.weight + i, n.width - i), a *= b;
      if (n.bias) load_part(b, n.bias + i, n.width - i), a += b;
      store_part(n.y + row * n.width + i, a, n.width - i);
    }
  }
}

// What is missing is null; `dw` and `db` are as long as the lanes and added to.
struct NormBackward {
  const float *g, *x, *mean, *rstd, *weight, *gsum;
  float* dx;
  int64_t width;
};

template <class L>
ENN_INLINE void norm_backward(const NormBackward& n, int64_t from, int64_t to, float* __restrict dw, float* __restrict db) {
  const float share = 1.0f / static_cast<float>(n.width);
  for (int64_t row = from; row < to; ++row) {
    const float *g = n.g + row * n.width, *x = n.x + row * n.width;
    const float mean = n.mean ? n.mean[row] : 0, rstd = n.rstd[row];
    L all = {}, along = {}, a, hat, b;
    for (int64_t i = 0; i < n.width; i += LANES) {
      load_part(a, g + i, n.width - i), load_part(hat, x + i, n.width - i);
      hat = (hat - mean) * rstd;
      if (n.weight) {
        enn::load(b, dw + i);
        b += a * hat;
        enn::store(dw + i, b);
        enn::load(b, db + i);
        b += a;
        enn::store(db + i, b);
        load_part(b, n.weight + i, n.width - i);
        a *= b;
      }
      all += a;
      along += a * hat;
    }
    const float first = n.mean ? total(all) * share : 0, second = total(along) * share;
    for (int64_t i = 0; i < n.width; i += LANES) {
      load_part(a, g + i, n.width - i), load_part(hat, x + i, n.width - i);
      if (n.weight) load_part(b, n.weight + i, n.width - i), a *= b;
      hat = (hat - mean) * rstd;
      a = (a - first - hat * second) * rstd;
      if (n.gsum) load_part(b, n.gsum + row * n.width + i, n.width - i), a += b;
      store_part(n.dx + row * n.width + i, a, n.width - i);
    }
  }
}

template <class L>
ENN_INLINE void sigmoid(const L& x, L& y) {
  const L none = {};
  y = -x;
  enn::pick(y, y > 88.0f, none + 88.0f, y);
  exponential(y);
  enn::pick(y, x < -88.0f, none, 1.0f / (1.0f + y));
}

// y = a · sigmoid(a) · b
template <class L>
ENN_INLINE void gate(const float* a, const float* b, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES) {
    L left, right, s;
    load_part(left, a + i, count - i), load_part(right, b + i, count - i);
    sigmoid(left, s);
    store_part(y + i, left * s * right, count - i);
  }
}

template <class L>
ENN_INLINE void gate_backward(const float* g, const float* a, const float* b, float* da, float* db, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES) {
    L whole, left, right, s;
    load_part(whole, g + i, count - i), load_part(left, a + i, count - i), load_part(right, b + i, count - i);
    sigmoid(left, s);
    store_part(da + i, whole * right * s * (1.0f + left * (1.0f - s)), count - i);
    store_part(db + i, whole * left * s, count - i);
  }
}

// Rows of a gate: each as long as `count`, so far apart.
struct Gate {
  const float *g, *a, *b;
  float *y, *da, *db;
  int64_t count, in_row;
};

template <class L>
ENN_INLINE void gates(const Gate& x, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; ++i) gate<L>(x.a + i * x.in_row, x.b + i * x.in_row, x.y + i * x.count, x.count);
}
template <class L>
ENN_INLINE void gates_backward(const Gate& x, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; ++i) {
    gate_backward<L>(x.g + i * x.count, x.a + i * x.in_row, x.b + i * x.in_row, x.da + i * x.in_row, x.db + i * x.in_row, x.count);
  }
}

ENN_512 void norm_512(const Norm& n, int64_t from, int64_t to) { norm<Lane512>(n, from, to); }
ENN_256 void norm_256(const Norm& n, int64_t from, int64_t to) { norm<Lane256>(n, from, to); }
ENN_512 void norm_backward_512(const NormBackward& n, int64_t from, int64_t to, float* dw, float* db) { norm_backward<Lane512>(n, from, to, dw, db); }
ENN_256 void norm_backward_256(const NormBackward& n, int64_t from, int64_t to, float* dw, float* db) { norm_backward<Lane256>(n, from, to, dw, db); }
ENN_512 void gates_512(const Gate& x, int64_t from, int64_t to) { gates<Lane512>(x, from, to); }
ENN_256 void gates_256(const Gate& x, int64_t from, int64_t to) { gates<Lane256>(x, from, to); }
ENN_512 void gates_backward_512(const Gate& x, int64_t from, int64_t to) { gates_backward<Lane512>(x, from, to); }
ENN_256 void gates_backward_256(const Gate& x, int64_t from, int64_t to) { gates_backward<Lane256>(x, from, to); }

// An operand, dense; or nothing.
at::Tensor dense(const at::Tensor* x) {
  if (!x) return {};
  TORCH_CHECK(x->device().is_cpu() && x->scalar_type() == at::kFloat, "the CPU kernel got ", x->scalar_type(), " on ", x->device());
  return x->contiguous();
}

const float* data(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

// Rows of `width` numbers that are worth a thread.
int64_t rows_of(int64_t grain, int64_t width) { return std::max<int64_t>(1, grain / std::max<int64_t>(1, width)); }

at::Tensor* out(at::Tensor&& x) { return new at::Tensor(std::move(x)); }

} // namespace

extern "C" {

// x, branch, weight, bias (null where there is none) → the sum where there is a branch, the norm, the mean where `centred`, 1/σ or 1/rms.
int32_t enn_norm(const at::Tensor* const* ins, int32_t centred, float eps, at::Tensor** outs) {
  return enn::guarded([&] {
    const auto x = dense(ins[0]), branch = dense(ins[1]), weight = dense(ins[2]), bias = dense(ins[3]);
    const int64_t width = x.size(-1), rows = x.numel() / width;
    auto narrow = x.sizes().vec();
    narrow.back() = 1;
    at::Tensor sum = branch.defined() ? at::empty_like(x) : at::Tensor(), y = at::empty_like(x);
    at::Tensor mean = centred ? at::empty(narrow, x.options()) : at::Tensor(), rstd = at::empty(narrow, x.options());
    const auto to = [](const at::Tensor& made) { return made.defined() ? made.mutable_data_ptr<float>() : nullptr; };
    const Norm n{data(x), data(branch), data(weight), data(bias), to(sum), to(y), to(mean), to(rstd), width, eps};
    enn::parallel_for(0, rows, rows_of(NORM_GRAIN, width), [&](int64_t first, int64_t last) { enn::chosen(norm_512, norm_256)(n, first, last); });
    at::Tensor* made[] = {&sum, &y, &mean, &rstd};
    for (int i = 0; i < 4; ++i) outs[i] = made[i]->defined() ? out(std::move(*made[i])) : nullptr;
  });
}

// Gradient of the norm, x (the sum), mean, 1/σ, weight, gradient of the sum → gradients of x, of the weight and of the bias.
int32_t enn_norm_backward(const at::Tensor* const* ins, at::Tensor** outs) {
  return enn::guarded([&] {
    const auto g = dense(ins[0]), x = dense(ins[1]), mean = dense(ins[2]), rstd = dense(ins[3]), weight = dense(ins[4]), gsum = dense(ins[5]);
    const int64_t width = x.size(-1), rows = x.numel() / width, blocks = (rows + TERMS - 1) / TERMS, lanes = padded(width);
    auto dx = at::empty_like(x);
    const NormBackward n{data(g), data(x), data(mean), data(rstd), data(weight), data(gsum), dx.mutable_data_ptr<float>(), width};
    std::vector<float> shares(weight.defined() ? blocks * 2 * lanes : 0, 0.0f);
    enn::parallel_for(0, blocks, rows_of(NORM_GRAIN, TERMS * width), [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        float* share = shares.data() + block * 2 * lanes;
        enn::chosen(norm_backward_512, norm_backward_256)(n, block * TERMS, std::min(rows, (block + 1) * TERMS), share, share + lanes);
      }
    });
    outs[0] = out(std::move(dx));
    for (int which = 0; weight.defined() && which < (mean.defined() ? 2 : 1); ++which) {
      auto made = at::zeros({width}, x.options());
      float* to = made.mutable_data_ptr<float>();
      for (int64_t block = 0; block < blocks; ++block) {
        const float* share = shares.data() + (block * 2 + which) * lanes;
        for (int64_t i = 0; i < width; ++i) to[i] += share[i];
      }
      outs[1 + which] = out(std::move(made));
    }
  });
}

// a · sigmoid(a) · b; without b its two are the halves of the last axis of a.
int32_t enn_gate(const at::Tensor* const* ins, at::Tensor** y) {
  return enn::guarded([&] {
    const auto a = dense(ins[0]), b = dense(ins[1]);
    auto sizes = a.sizes().vec();
    if (!b.defined()) sizes.back() /= 2;
    auto made = at::empty(sizes, a.options());
    Gate x{nullptr, data(a), data(b), made.mutable_data_ptr<float>(), nullptr, nullptr, 1, 1};
    const auto run = enn::chosen(gates_512, gates_256);
    if (b.defined()) {
      enn::parallel_for(0, a.numel(), GATE_GRAIN, [&](int64_t from, int64_t to) {
        Gate part = x;
        part.a += from, part.b += from, part.y += from, part.count = to - from;
        run(part, 0, 1);
      });
    } else {
      x.count = sizes.back(), x.in_row = 2 * x.count, x.b = x.a + x.count;
      enn::parallel_for(0, made.numel() / std::max<int64_t>(1, x.count), rows_of(GATE_GRAIN, x.count), [&](int64_t from, int64_t to) { run(x, from, to); });
    }
    *y = out(std::move(made));
  });
}

// Gradient, a, b or nothing → gradients of a and b, or of both halves.
int32_t enn_gate_backward(const at::Tensor* const* ins, at::Tensor** outs) {
  return enn::guarded([&] {
    const auto g = dense(ins[0]), a = dense(ins[1]), b = dense(ins[2]);
    auto da = at::empty_like(a), db = b.defined() ? at::empty_like(b) : at::Tensor();
    Gate x{data(g), data(a), data(b), nullptr, da.mutable_data_ptr<float>(), nullptr, 1, 1};
    const auto run = enn::chosen(gates_backward_512, gates_backward_256);
    if (b.defined()) {
      x.db = db.mutable_data_ptr<float>();
      enn::parallel_for(0, a.numel(), GATE_GRAIN, [&](int64_t from, int64_t to) {
        Gate part = x;
        part.g += from, part.a += from, part.b += from, part.da += from, part.db += from, part.count = to - from;
        run(part, 0, 1);
      });
      outs[1] = out(std::move(db));
    } else {
      x.count = g.size(-1), x.in_row = 2 * x.count, x.b = x.a + x.count, x.db = x.da + x.count;
      enn::parallel_for(0, g.numel() / std::max<int64_t>(1, x.count), rows_of(GATE_GRAIN, x.count), [&](int64_t from, int64_t to) { run(x, from, to); });
    }
    outs[0] = out(std::move(da));
  });
}
}
