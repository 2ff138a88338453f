#pragma once

#include <memory>
#include <vector>

#include "common/spec/model_spec.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/graft.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// Puts the virtual tokens of model.peft at the sites of a network:
///   prompt    trained vectors before each sequence (Lester et al. 2021, arXiv 2104.08691)
///   p_tuning  what an MLP of three layers makes of trained vectors, in their place (Liu et al.
///             2021, arXiv 2103.10385)
///   prefix    trained keys and values in each layer (Li and Liang 2021, arXiv 2101.00190), with
///             prefix_projection what an MLP of two layers makes of trained vectors; the first of
///             these layers is one for all attentions
/// As in Hugging Face's peft library.
class VirtualTokenSites {
 public:
  void Put(const ModelSpec& model, const GraftSite& site, Grafts& grafts);

  /// How what Put has registered starts: tables normal, layers uniform, as those of PyTorch; and
  /// that each stage of a pipeline has what all attentions share.
  void SetStarts(ParameterSet& parameters) const;

 private:
  /// At the first site of this rank: the embedding, or a sub-layer of a later stage.
  void PutEncoder(const ModelSpec& model, const GraftSite& site);

  std::shared_ptr<VirtualTokens> encoder_;  ///< Of a prefix, for all attentions; or none.
  bool on_first_stage_ = false;             ///< Then: this rank has the first stage.
  std::vector<int64_t> registered_;
};

/// Gives the vectors of `prompt` those of tokens that are drawn from the vocabulary, which is
/// better than noise (Lester et al. 2021). `tensor_ranks`, which have a part of it each, or none,
/// and ranks that shard values call this together.
Status StartAtTokens(Context& context, uint64_t seed, ParameterSet& parameters,
                     Collective* tensor_ranks);

}  // namespace weft::engine
