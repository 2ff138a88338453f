#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/model/parameter_info.h"
#include "common/spec/model_spec.h"

namespace weft::engine {

/// A matrix of a FlowNetwork, whose weights are those of a linear layer.
struct FlowMatrix {
  int64_t rows = 0;               ///< Outputs.
  int64_t columns = 0;            ///< Inputs.
  std::vector<float> magnitudes;  ///< [rows, columns], of the weights; 0 where one is pruned.
};

/// The network that SynFlow ranks weights by (Tanaka et al. 2020, arXiv 2006.05467): linear, with
/// the magnitudes of the weights, and ones as its input. What is not linear in a transformer is the
/// identity: norms, activations, and attention, where each token has the same values. Where two
/// activations are multiplied (queries by keys, these by values, gates by what enters an MLP), the
/// flows of both add up, so that all matrices have some.
struct FlowNetwork {
  /// Rows of a matrix that enter the inside of a branch.
  struct Part {
    size_t matrix = 0;
    int64_t first_row = 0;
    int64_t rows = 0;
    int64_t head_width = 1;  ///< Where there are fewer rows than inside, each head of them serves
                             ///< several successive ones inside.
  };
  /// Two matrices one after the other: the parts add up to what the second one reads.
  struct Branch {
    std::vector<Part> parts;
    size_t out = 0;
  };
  /// Branches that read the same stream, and add up to the next one.
  struct Stage {
    std::vector<Branch> branches;
    bool residual = true;  ///< The stream itself is added as well.
  };

  int64_t width = 0;  ///< Of the stream.
  std::vector<FlowMatrix> matrices;
  std::vector<Stage> stages;  ///< In their order; may share matrices.
};

/// What the matrices of blocks are: `parameters` has those of all distinct blocks, in the order of
/// FlowNetwork::matrices. Without their magnitudes.
FlowNetwork FlowNetworkOf(const ModelSpec& model,
                          std::span<const ParameterAttributes* const> parameters,
                          std::span<const std::vector<int64_t>> shapes);

/// The synaptic saliency of each weight, by matrix: its magnitude times the derivative of the sum
/// of the outputs by it, as a share of that sum. Computed in double.
std::vector<std::vector<float>> SynapticFlow(const FlowNetwork& network);

}  // namespace weft::engine
