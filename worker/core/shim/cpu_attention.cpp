// Attention on the CPU for heads and token counts that are small, where one head's scores fit the first cache: libtorch's kernel calls its
// library of matrix products several times for each head of each row, whatever their size.

#include "aten_guard.h"
#include "cpu_product.h"
#include "parallel.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <cmath>
#include <limits>

using enn::exponential;
using enn::Lane256;
using enn::Lane512;
using enn::LANES;
using enn::load;
using enn::multiply;
using enn::padded;
using enn::Product;
using enn::store;

namespace {

// Multiplications of scores that are worth a thread.
constexpr int64_t WORK = 1 << 19;

// Scores of a query (`lanes` of them) → their shares, which add up to 1; log Σ exp of the scores.
template <class L>
ENN_INLINE float shares(float* scores, int64_t lanes) {
  L most, row;
  load(most, scores);
  for (int64_t l = 1; l < lanes; ++l) {
    load(row, scores + l * LANES);
    enn::pick(most, row > most, row, most);
  }
  float each[LANES];
  store(each, most);
  float largest = each[0];
  for (int64_t j = 1; j < LANES; ++j) largest = std::max(largest, each[j]);
  L sum = {};
  for (int64_t l = 0; l < lanes; ++l) {
    load(row, scores + l * LANES);
    row -= largest;
    exponential(row);
    sum += row;
    store(scores + l * LANES, row);
  }
  store(each, sum);
  float total = 0;
  for (int64_t j = 0; j < LANES; ++j) total += each[j];
  const float share = 1.0f / total;
  for (int64_t l = 0; l < lanes; ++l) {
    load(row, scores + l * LANES);
    store(scores + l * LANES, row * share);
  }
  return largest + std::log(total);
}

// Scores of a query → shares by a log Σ exp that is known; and what of the shares' gradients `d` reaches the scores, in place.
template <class L>
ENN_INLINE void shares_again(float* scores, float* d, float lse, float along, int64_t lanes) {
  for (int64_t l = 0; l < lanes; ++l) {
    L share, gradient;
    load(share, scores + l * LANES);
    load(gradient, d + l * LANES);
    share -= lse;
    exponential(share);
    store(scores + l * LANES, share);
    store(d + l * LANES, share * (gradient - along));
  }
}

ENN_512 void shares_512(float* scores, float* lse, int64_t rows, int64_t lanes) {
  for (int64_t m = 0; m < rows; ++m) lse[m] = shares<Lane512>(scores + m * lanes * LANES, lanes);
}
ENN_256 void shares_256(float* scores, float* lse, int64_t rows, int64_t lanes) {
  for (int64_t m = 0; m < rows; ++m) lse[m] = shares<Lane256>(scores + m * lanes * LANES, lanes);
}
ENN_512 void again_512(float* scores, float* d, const float* lse, const float* along, int64_t rows, int64_t lanes) {
  for (int64_t m = 0; m < rows; ++m) shares_again<Lane512>(scores + m * lanes * LANES, d + m * lanes * LANES, lse[m], along[m], lanes);
}
ENN_256 void again_256(float* scores, float* d, const float* lse, const float* along, int64_t rows, int64_t lanes) {
  for (int64_t m = 0; m < rows; ++m) shares_again<Lane256>(scores + m * lanes * LANES, d + m * lanes * LANES, lse[m], along[m], lanes);
}

// A head of one row: (tokens, width) with dense rows.
struct Head {
  const float* at;
  int64_t row;
};

Head head(const at::Tensor& x, int64_t b, int64_t h) {
  return {x.const_data_ptr<float>() + b * x.stride(0) + h * x.stride(1), x.stride(2)};
}

// Rows of a multiple of sixteen numbers, zeros behind those there are.
void pad(const Head& x, int64_t rows, int64_t width, float* to) {
  const int64_t whole = padded(width);
  for (int64_t i = 0; i < rows; ++i, to += whole) {
    std::copy_n(x.at + i * x.row, width, to);
    std::fill(to + width, to + whole, 0.0f);
  }
}

// The other way round: (width, tokens), each row a multiple of sixteen numbers.
void turn(const Head& x, int64_t rows, int64_t width, float factor, float* to) {
  const int64_t whole = padded(rows);
  for (int64_t j = 0; j < width; ++j) std::fill(to + j * whole + rows, to + (j + 1) * whole, 0.0f);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < width; ++j) to[j * whole + i] = x.at[i * x.row + j] * factor;
  }
}

// What all heads have in common.
struct Sizes {
  int64_t queries, keys, width;
  float scale;
  bool causal;
  const at::Tensor* bias;

  Sizes(const at::Tensor& q, const at::Tensor& k, bool causal, const at::Tensor* bias)
      : queries(q.size(2)), keys(k.size(2)), width(q.size(3)), scale(1.0f / std::sqrt(static_cast<float>(q.size(3)))), causal(causal), bias(bias) {}

  // Heads that are worth a thread.
  int64_t grain() const { return std::max<int64_t>(1, WORK / std::max<int64_t>(1, queries * keys * width)); }

  // What the scores of every query begin with: the bias of the keys, and nothing that can be seen behind the last.
  void begin(int64_t b, float* to) const {
    const float* from = bias ? bias->const_data_ptr<float>() + (bias->dim() == 2 ? b * keys : 0) : nullptr;
    for (int64_t n = 0; n < keys; ++n) to[n] = from ? from[n] : 0.0f;
    std::fill(to + keys, to + padded(keys), -std::numeric_limits<float>::infinity());
  }

  // Scores of one head: q, the keys turned and scaled, what they begin with.
  void scores(const Head& q, const float* turned, const float* begins, float* to) const {
    const int64_t whole = padded(keys);
    multiply({q.at, q.row, 1, turned, whole, LANES, to, whole, queries, whole, width, begins, false}, 0, queries);
    if (!causal) return;
    for (int64_t m = 0; m < queries; ++m) std::fill(to + m * whole + m + 1, to + (m + 1) * whole, -std::numeric_limits<float>::infinity());
  }
};

at::Tensor usable(const at::Tensor& x) {
  TORCH_CHECK(x.device().is_cpu() && x.scalar_type() == at::kFloat, "the CPU kernel got ", x.scalar_type(), " on ", x.device());
  return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous();
}

// (batch, heads, tokens, width), in memory with the heads of a token side by side.
at::Tensor like(const at::Tensor& x) {
  return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
}

} // namespace

extern "C" {

// q, k, v (B, H, tokens, width) and a bias (keys) or (B, keys), dense, or null → the result, and log Σ exp (B, H, queries).
int32_t enn_attention(const at::Tensor* const* ins, const at::Tensor* bias, int32_t causal, at::Tensor** outs) {
  return enn::guarded([&] {
    const auto q = usable(*ins[0]), k = usable(*ins[1]), v = usable(*ins[2]);
    const Sizes s(q, k, causal != 0, bias);
    const int64_t heads = q.size(1), whole = padded(s.keys), wide = padded(s.width);
    auto out = like(q), lse = at::empty({q.size(0), heads, s.queries}, q.options());
    float *out_data = out.mutable_data_ptr<float>(), *lse_data = lse.mutable_data_ptr<float>();
    enn::parallel_for(0, q.size(0) * heads, s.grain(), [&](int64_t from, int64_t to) {
      std::vector<float> turned(s.width * whole), values(s.keys * wide), begins(whole), scores(s.queries * whole);
      for (int64_t i = from; i < to; ++i) {
        const int64_t b = i / heads, h = i % heads;
        turn(head(k, b, h), s.keys, s.width, s.scale, turned.data());
        pad(head(v, b, h), s.keys, s.width, values.data());
        s.begin(b, begins.data());
        s.scores(head(q, b, h), turned.data(), begins.data(), scores.data());
        enn::chosen(shares_512, shares_256)(scores.data(), lse_data + i * s.queries, s.queries, whole / LANES);
        float* to_out = out_data + b * out.stride(0) + h * out.stride(1);
        multiply({scores.data(), whole, 1, values.data(), wide, LANES, to_out, out.stride(2), s.queries, s.width, s.keys, nullptr, false}, 0, s.queries);
      }
    });
    outs[0] = new at::Tensor(std::move(out));
    outs[1] = new at::Tensor(std::move(lse));
  });
}

// Gradient, q, k, v, result, log Σ exp → dq, dk, dv.
int32_t enn_attention_backward(const at::Tensor* const* ins, const at::Tensor* bias, int32_t causal, at::Tensor** outs) {
  return enn::guarded([&] {
    const auto g = usable(*ins[0]), q = usable(*ins[1]), k = usable(*ins[2]), v = usable(*ins[3]), y = usable(*ins[4]), lse = ins[5]->contiguous();
    const Sizes s(q, k, causal != 0, bias);
    const int64_t heads = q.size(1), whole = padded(s.keys), wide = padded(s.width);
    at::Tensor made[] = {like(q), like(k), like(v)};
    float* data[] = {made[0].mutable_data_ptr<float>(), made[1].mutable_data_ptr<float>(), made[2].mutable_data_ptr<float>()};
    const float* lse_data = lse.const_data_ptr<float>();
    enn::parallel_for(0, q.size(0) * heads, s.grain(), [&](int64_t from, int64_t to) {
      std::vector<float> turned(s.width * whole), values(s.width * whole), keys(s.keys * wide), queries(s.queries * wide), gradients(s.queries * wide);
      std::vector<float> begins(whole), scores(s.queries * whole), d(s.queries * whole), along(s.queries);
      for (int64_t i = from; i < to; ++i) {
        const int64_t b = i / heads, h = i % heads;
        const Head gh = head(g, b, h), qh = head(q, b, h), kh = head(k, b, h), yh = head(y, b, h);
        turn(kh, s.keys, s.width, s.scale, turned.data());
        turn(head(v, b, h), s.keys, s.width, 1.0f, values.data());
        pad(kh, s.keys, s.width, keys.data());
        pad(qh, s.queries, s.width, queries.data());
        pad(gh, s.queries, s.width, gradients.data());
        s.begin(b, begins.data());
        s.scores(qh, turned.data(), begins.data(), scores.data());
        // Gradients of the shares, and Σ over keys of share · gradient, which is that over the width of gradient · result.
        multiply({gh.at, gh.row, 1, values.data(), whole, LANES, d.data(), whole, s.queries, whole, s.width, nullptr, false}, 0, s.queries);
        for (int64_t m = 0; m < s.queries; ++m) {
          float sum = 0;
          for (int64_t j = 0; j < s.width; ++j) sum += gh.at[m * gh.row + j] * yh.at[m * yh.row + j];
          along[m] = sum;
        }
        enn::chosen(again_512, again_256)(scores.data(), d.data(), lse_data + i * s.queries, along.data(), s.queries, whole / LANES);
        for (float& one : d) one *= s.scale;
        const auto place = [&](int which) { return data[which] + b * made[which].stride(0) + h * made[which].stride(1); };
        multiply({d.data(), whole, 1, keys.data(), wide, LANES, place(0), made[0].stride(2), s.queries, s.width, s.keys, nullptr, false}, 0, s.queries);
        multiply({d.data(), 1, whole, queries.data(), wide, LANES, place(1), made[1].stride(2), s.keys, s.width, s.queries, nullptr, false}, 0, s.keys);
        multiply({scores.data(), 1, whole, gradients.data(), wide, LANES, place(2), made[2].stride(2), s.keys, s.width, s.queries, nullptr, false}, 0, s.keys);
      }
    });
    for (int which = 0; which < 3; ++which) outs[which] = new at::Tensor(std::move(made[which]));
  });
}
}
