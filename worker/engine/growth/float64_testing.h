#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model_sizes.h"
#include "common/spec/phases.h"
#include "worker/engine/growth/testing.h"

namespace weft::engine::float64 {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

/// A mask of `size` numbers: 1 for the first `kept`, `share` for all others.
inline Row MaskOf(int64_t kept, int64_t size, double share) {
  Row mask(static_cast<size_t>(size), share);
  std::fill_n(mask.begin(), std::min(kept, size), 1.0);
  return mask;
}

inline void Multiply(Rows& x, const Row& by) {
  for (Row& row : x) {
    for (size_t c = 0; c < row.size(); ++c) row[c] *= by[c];
  }
}

/// share of `b`, the rest of `a`.
inline Rows Mixed(Rows a, const Rows& b, double share) {
  for (size_t r = 0; r < a.size(); ++r) {
    for (size_t c = 0; c < a[r].size(); ++c) a[r][c] = (1 - share) * a[r][c] + share * b[r][c];
  }
  return a;
}

inline Rows Sum(Rows a, const Rows& b) {
  for (size_t r = 0; r < a.size(); ++r) {
    for (size_t c = 0; c < a[r].size(); ++c) a[r][c] += b[r][c];
  }
  return a;
}

inline void Apply(Rows& x, double (*function)(double)) {
  for (Row& row : x) std::transform(row.begin(), row.end(), row.begin(), function);
}

/// x times a transposed matrix, row after row, plus `bias`, which has a number for each of its
/// rows.
inline Rows Product(const Rows& x, const Row& weight, const Row& bias) {
  Rows y;
  for (const Row& row : x) {
    Row& out = y.emplace_back(bias);
    const double* factors = weight.data();
    for (double& sum : out) {
      for (const double number : row) sum += *factors++ * number;
    }
  }
  return y;
}

/// What networks have in common: their tensors, and the masks of Yao et al. 2024 (arXiv 2305.02869,
/// section 3). These are of the residual stream after each norm, whose statistics weigh the
/// columns, and of what is added to it; of heads and neurons before the products that read them; of
/// blocks, which pass on a share. Written from the papers, apart from the engine except
/// for the angles of rotary embeddings and which blocks are new.
class Network {
 public:
  /// `tensors` outlive it. `growth`: what the masks of step `step` are of; none: all is 1.
  Network(ModelSpec model, const TensorsByName& tensors,
          std::optional<MaskedGrowth> growth = std::nullopt, int64_t step = 0)
      : model_(std::move(model)), tensors_(tensors), growth_(std::move(growth)) {
    const ModelSpec& before = growth_ ? growth_->before : model_;
    share_ = growth_ ? ShareOfGrowth(growth_->growth, step) : 1;
    columns_ = MaskOf(before.width, model_.width, share_);
    heads_ = MaskOf(QueryWidth(before), QueryWidth(model_), share_);
    neurons_ = MaskOf(MlpWidth(before), MlpWidth(model_), share_);
  }

 protected:
  bool Has(const std::string& name) const { return tensors_.count(name) > 0; }
  const Row& Tensor(const std::string& name) const { return tensors_.at(name); }

  /// A row of a table of this many columns.
  Row TableRow(const std::string& name, int64_t row, int64_t columns) const {
    const auto begin = Tensor(name).begin() + row * columns;
    return {begin, begin + columns};
  }

  /// With a bias where `name` has one.
  Rows Linear(const Rows& x, const std::string& name) const {
    const Row& weight = Tensor(name + ".weight");
    return Product(
        x, weight,
        Has(name + ".bias") ? Tensor(name + ".bias") : Row(weight.size() / x.front().size()));
  }

  /// A layer norm, or without a bias an RMS norm.
  Rows Norm(const Rows& x, const std::string& name) const {
    const Row& gain = Tensor(name + ".weight");
    const bool layer = Has(name + ".bias");
    Rows y = x;
    for (Row& row : y) {
      double mean = 0, variance = 0, sum = 0;
      for (size_t c = 0; c < row.size(); ++c) {
        if (layer) mean += columns_[c] * row[c];
        sum += columns_[c];
      }
      mean /= sum;
      for (size_t c = 0; c < row.size(); ++c) {
        variance += columns_[c] * (row[c] - mean) * (row[c] - mean);
      }
      const double scale = 1 / std::sqrt(variance / sum + model_.norm_epsilon);
      for (size_t c = 0; c < row.size(); ++c) row[c] = (row[c] - mean) * scale * gain[c];
    }
    if (layer) {
      for (Row& row : y) {
        const Row& bias = Tensor(name + ".bias");
        for (size_t c = 0; c < row.size(); ++c) row[c] += bias[c];
      }
    }
    Multiply(y, columns_);
    return y;
  }

  /// x and what `sub_layer` makes of it, with the norm of that name before the sub-layer, after the
  /// sum or nowhere. `output`: the product that ends the branch, which may have a scale.
  template <class SubLayer>
  Rows Branch(const Rows& x, const std::string& norm, const std::string& output,
              SubLayer&& sub_layer) const {
    const std::string position = NormPositionOf(model_);
    Rows branch = sub_layer(position == "pre" ? Norm(x, norm) : x);
    if (Has(output + ".scale")) Multiply(branch, Tensor(output + ".scale"));
    Multiply(branch, columns_);
    Rows sum = Sum(std::move(branch), x);
    return position == "post" ? Norm(sum, norm) : sum;
  }

  /// `block` makes the stream after block i of that before it.
  template <class Block>
  Rows Blocks(Rows x, Block&& block) const {
    for (int64_t i = 0; i < model_.layers; ++i) {
      const Rows y = block(i, x);
      const bool added =
          growth_ && IsAddedBlock(growth_->growth, growth_->before.layers, model_.layers, i);
      x = added ? Mixed(std::move(x), y, share_) : y;
    }
    return x;
  }

  /// What heads read of sequences of `length` rows; several heads of queries may share one of keys
  /// and values. `causal`: each row reads those before it and itself alone.
  Rows Attend(const Rows& q, const Rows& k, const Rows& v, int64_t length, bool causal) const {
    const auto width = static_cast<size_t>(HeadWidth(model_));
    const auto group = static_cast<size_t>(model_.heads / KvHeads(model_));
    const auto rows = static_cast<size_t>(length);
    Rows attended(q.size(), Row(q.front().size()));
    for (size_t t = 0; t < q.size(); ++t) {
      const size_t first = t / rows * rows, end = causal ? t + 1 : first + rows;
      for (size_t column = 0; column < q[t].size(); column += width) {
        const size_t shared = column / width / group * width;
        Row weights;
        for (size_t s = first; s < end; ++s) {
          double score = 0;
          for (size_t c = 0; c < width; ++c) score += q[t][column + c] * k[s][shared + c];
          weights.push_back(score / std::sqrt(static_cast<double>(width)));
        }
        const double most = *std::max_element(weights.begin(), weights.end());
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - most);
        for (size_t s = first; s < end; ++s) {
          for (size_t c = 0; c < width; ++c) {
            attended[t][column + c] += weights[s - first] / sum * v[s][shared + c];
          }
        }
      }
    }
    Multiply(attended, heads_);
    return attended;
  }

  ModelSpec model_;
  const TensorsByName& tensors_;
  std::optional<MaskedGrowth> growth_;
  double share_ = 1;
  Row columns_, heads_, neurons_;
};

}  // namespace weft::engine::float64
