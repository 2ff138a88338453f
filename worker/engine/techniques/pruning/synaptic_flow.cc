#include "worker/engine/techniques/pruning/synaptic_flow.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"
#include "common/model/model_sizes.h"

namespace weft::engine {
namespace {

using Vector = std::vector<double>;

/// What reaches each row of a matrix and each of its columns, from both ends of the network.
struct Use {
  Vector rows, columns;
};

double Dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// So that nothing overflows: scores are shares, which a factor leaves alone.
void ScaleToOne(Vector& x) {
  const double most = *std::max_element(x.begin(), x.end());
  if (most == 0) return;
  for (double& value : x) value /= most;
}

/// out += W in
void Multiply(const FlowMatrix& w, const Vector& in, Vector& out) {
  for (int64_t r = 0; r < w.rows; ++r) {
    const float* row = w.magnitudes.data() + r * w.columns;
    double sum = 0;
    for (int64_t c = 0; c < w.columns; ++c) sum += static_cast<double>(row[c]) * in[c];
    out[r] += sum;
  }
}

/// in += W' out
void MultiplyTransposed(const FlowMatrix& w, const Vector& out, Vector& in) {
  for (int64_t r = 0; r < w.rows; ++r) {
    const float* row = w.magnitudes.data() + r * w.columns;
    for (int64_t c = 0; c < w.columns; ++c) in[c] += static_cast<double>(row[c]) * out[r];
  }
}

/// The row of its matrix that enters the inside at `i` of `inside`.
int64_t RowOf(const FlowNetwork::Part& part, int64_t i, int64_t inside) {
  const int64_t serves = inside / part.rows;
  const int64_t head = i / part.head_width / serves;
  return part.first_row + head * part.head_width + i % part.head_width;
}

/// What the second matrix of a branch reads.
Vector InsideOf(const FlowNetwork& network, const FlowNetwork::Branch& branch, const Vector& x) {
  const int64_t inside = network.matrices[branch.out].columns;
  Vector u(static_cast<size_t>(inside), 0.0);
  for (const FlowNetwork::Part& part : branch.parts) {
    const FlowMatrix& w = network.matrices[part.matrix];
    Vector y(static_cast<size_t>(w.rows), 0.0);
    Multiply(w, x, y);
    for (int64_t i = 0; i < inside; ++i) u[i] += y[RowOf(part, i, inside)];
  }
  return u;
}

/// The stream after a stage.
Vector After(const FlowNetwork& network, const FlowNetwork::Stage& stage, const Vector& x) {
  Vector next = stage.residual ? x : Vector();
  for (const FlowNetwork::Branch& branch : stage.branches) {
    const FlowMatrix& out = network.matrices[branch.out];
    next.resize(static_cast<size_t>(out.rows), 0.0);
    Multiply(out, InsideOf(network, branch, x), next);
  }
  return next;
}

}  // namespace

FlowNetwork FlowNetworkOf(const ModelSpec& model,
                          std::span<const ParameterAttributes* const> parameters,
                          std::span<const std::vector<int64_t>> shapes) {
  FlowNetwork network = {.width = model.width, .matrices = {}, .stages = {}};
  for (const std::vector<int64_t>& shape : shapes) {
    network.matrices.push_back({.rows = shape[0], .columns = shape[1], .magnitudes = {}});
  }
  // Makes a branch of the matrices of a block for which `belongs` holds.
  const auto branch_of = [&](int64_t block, int64_t expert, auto&& belongs) {
    FlowNetwork::Branch branch;
    bool found = false;
    for (size_t m = 0; m < parameters.size(); ++m) {
      const ParameterAttributes& parameter = *parameters[m];
      if (parameter.block != block || parameter.expert != expert || !belongs(parameter.role)) {
        continue;
      }
      if (EndsSubLayer(parameter.role)) {
        branch.out = m;
        found = true;
        continue;
      }
      std::vector<int64_t> parts = parameter.parts;
      if (parts.empty()) parts = {network.matrices[m].rows};
      int64_t first = 0;
      for (const int64_t rows : parts) {
        const int64_t head = IsAttention(parameter.role) ? HeadWidth(model) : 1;
        branch.parts.push_back({m, first, rows, head});
        first += rows;
      }
    }
    WEFT_CHECK(found && !branch.parts.empty(), "a sub-layer has matrices at both ends");
    return branch;
  };
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const int64_t block = BlockOfLayer(model, layer);
    network.stages.push_back({.branches = {branch_of(block, -1, IsAttention)}});
    FlowNetwork::Stage& mlp = network.stages.emplace_back();
    if (model.experts == 0) mlp.branches.push_back(branch_of(block, -1, IsMlp));
    for (int64_t expert = 0; expert < model.experts; ++expert) {
      mlp.branches.push_back(branch_of(block, expert, IsMlp));
    }
  }
  return network;
}

std::vector<std::vector<float>> SynapticFlow(const FlowNetwork& network) {
  std::vector<Vector> streams = {Vector(static_cast<size_t>(network.width), 1.0)};
  for (const FlowNetwork::Stage& stage : network.stages) {
    Vector next = After(network, stage, streams.back());
    ScaleToOne(next);
    streams.push_back(std::move(next));
  }
  std::vector<std::vector<Use>> uses(network.matrices.size());
  Vector back(streams.back().size(), 1.0);
  for (size_t s = network.stages.size(); s-- > 0;) {
    const FlowNetwork::Stage& stage = network.stages[s];
    const Vector& x = streams[s];
    // All that flows through the network, in the units of `x` and `back`.
    const double all = Dot(back, After(network, stage, x));
    const double share = all > 0 ? 1 / all : 0;
    Vector before = stage.residual ? back : Vector(x.size(), 0.0);
    for (const FlowNetwork::Branch& branch : stage.branches) {
      const FlowMatrix& out = network.matrices[branch.out];
      Vector inside(static_cast<size_t>(out.columns), 0.0);
      MultiplyTransposed(out, back, inside);
      Vector columns = InsideOf(network, branch, x);
      for (double& value : columns) value *= share;
      uses[branch.out].push_back({back, std::move(columns)});
      for (const FlowNetwork::Part& part : branch.parts) {
        const FlowMatrix& w = network.matrices[part.matrix];
        Vector rows(static_cast<size_t>(w.rows), 0.0);
        for (int64_t i = 0; i < out.columns; ++i) {
          rows[RowOf(part, i, out.columns)] += inside[i];
        }
        MultiplyTransposed(w, rows, before);
        for (double& value : rows) value *= share;
        uses[part.matrix].push_back({std::move(rows), x});
      }
    }
    back = std::move(before);
    ScaleToOne(back);
  }
  std::vector<std::vector<float>> scores;
  for (size_t m = 0; m < network.matrices.size(); ++m) {
    const FlowMatrix& w = network.matrices[m];
    std::vector<float>& score = scores.emplace_back(w.magnitudes.size());
    for (int64_t r = 0; r < w.rows; ++r) {
      for (int64_t c = 0; c < w.columns; ++c) {
        double flow = 0;
        for (const Use& use : uses[m]) flow += use.rows[r] * use.columns[c];
        const auto i = static_cast<size_t>(r * w.columns + c);
        score[i] = static_cast<float>(static_cast<double>(w.magnitudes[i]) * flow);
      }
    }
  }
  return scores;
}

}  // namespace weft::engine
