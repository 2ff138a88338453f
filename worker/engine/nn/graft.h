#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/model/sub_layer.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/packed_copies.h"
#include "worker/engine/nn/trained_table_rows.h"

namespace weft::engine {

class ParameterSet;
struct ProductOptions;

/// A place of the network where operations can be put.
enum class GraftPlace : uint8_t {
  kEmbedding,           ///< What the embeddings give to the first block.
  kSubLayerInput,       ///< What attention or the MLP reads, after a pre-norm.
  kParallelToSubLayer,  ///< The same, whose result is added to what attention or the MLP computes.
  kSubLayerOutput,      ///< That sum, or what attention or the MLP computes ...
  kResidualBranch,      ///< ... and, after that, what is added to the residual stream.
  /// The sum with the residual stream, after a post-norm the norm of that sum. What a graft makes
  /// of it is added to the sum, before the norm.
  kResidualSum,
};

/// How a place of the network is used in a forward pass.
struct GraftUse {
  int64_t first_row = 0;       ///< Index of row 0 in the global batch.
  int64_t layer = 0;           ///< Of the model; of a block.
  int64_t use = 0;             ///< Of the layers that share the block, from 0.
  int64_t first_sequence = 0;  ///< Of the micro-batch, in the global batch.
  int64_t sequences = 0;       ///< Of the micro-batch.
};

/// An operation that is put at a place of the network, for example dropout. It records its backward
/// pass and saves tensors as every operation does, so that recomputation, compression and offload
/// of activations apply to it. Not thread-safe.
class Graft {
 public:
  virtual ~Graft() = default;

  /// Renews what is derived from its parameters, where they may have changed.
  virtual Status Pack(Context&, Repack) { return OkStatus(); }

  /// [rows, width] -> the same. Works in place only on a value that nobody else holds.
  virtual Result<Value> Forward(Context& context, Tape& tape, Value x,
                                const GraftUse& use) const = 0;
};

/// What is computed of a residual branch.
struct BranchChoice {
  /// Otherwise the branch adds nothing, and no work is done for it. The same on all ranks, because
  /// they reduce the gradients of the branch.
  bool computed = true;
  float scale = 1;  ///< What the branch is multiplied by.
  /// Sequences of the micro-batch, ascending, that the branch is computed for; to the others it
  /// adds nothing. Empty: all of them.
  std::vector<int64_t> sequences = {};
};

/// Decides in each pass of training whether a residual branch is computed. Evaluation computes all
/// branches as they are, unless the gate decides there, too.
class BranchGate {
 public:
  virtual ~BranchGate() = default;

  /// For the layer and the micro-batch of `use` in step context.step. Every call gives the same,
  /// because recomputation asks again, and on every rank that has a part of this micro-batch:
  /// branches have collectives. Data-parallel ranks may pick different sequences.
  virtual BranchChoice Choose(const Context& context, const GraftUse& use) const = 0;

  /// Whether it decides in evaluation, too.
  virtual bool evaluates() const { return false; }
};

/// Vectors that are trained in the place of tokens, before those of each sequence: at the embedding
/// rows that the first block reads, at an attention keys and values. They count as tokens in
/// positions. Not thread-safe.
class VirtualTokens {
 public:
  virtual ~VirtualTokens() = default;

  /// Packs what the operation reads, see Graft::Pack.
  virtual Status Pack(Context&, Repack) { return OkStatus(); }

  virtual int64_t count() const = 0;

  /// [count, width] of the compute type; at an attention its columns are those of keys, then of
  /// values, which stay as they are whatever their positions.
  virtual Result<Value> Forward(Context& context, Tape& tape) const = 0;
};

/// An operation that is put behind the table of tokens: an adapter of it. Not thread-safe.
class TokenGraft {
 public:
  virtual ~TokenGraft() = default;

  /// Packs as Graft::Pack does. May write rows of the table, before anything is derived from it.
  virtual Status Pack(Context& context, Repack what) = 0;

  /// x [count, width of the table] is what the table gives for tokens [count] i32, and nobody else
  /// holds it -> the same.
  virtual Result<Value> Forward(Context& context, Tape& tape, Value x,
                                const Tensor& tokens) const = 0;

  /// The rows of the table that Pack writes; a classifier that shares the table computes their
  /// gradients, too. Null: none.
  virtual const TrainedTableRows* trained_rows() const { return nullptr; }
};

/// Where grafts are put: a sub-layer of a block, or the embedding. Grafts may register parameters
/// there, which belong to the unit (ParameterList::StartUnit) of the block.
struct GraftSite {
  ParameterSet* parameters = nullptr;
  const ProductOptions* products = nullptr;  ///< Those of layers there.
  std::optional<SubLayer> sub_layer = {};    ///< None: the embedding.
  int64_t block = 0;                         ///< Of the network.
  std::string name = {};  ///< Of the layer that ends the sub-layer, or the mixture of experts.
  int64_t width = 0;
  int64_t token_table = -1;  ///< At the embedding: index of the table of tokens; -1: none is there.
  /// Otherwise the table that is here classifies alone, as on the last stage of a pipeline: only
  /// what changes its rows belongs there.
  bool looks_up = true;
};

/// What is put at the places of a site.
class Grafts {
 public:
  /// Puts the graft after those that are there.
  void Put(GraftPlace place, std::unique_ptr<Graft> graft) {
    At(place).push_back(std::move(graft));
  }
  /// A site has one gate.
  void SetGate(std::unique_ptr<BranchGate> gate);
  /// A block passes on this share, from 0 to 1, of what it computes, and the rest of what it was
  /// given: (1 - share) x + share block(x). At the MLP; outlives the block. Null: all of it.
  void SetBlockShare(const float* share) { block_share_ = share; }
  /// A site has one. At an attention with as many at the embedding, or none there.
  void SetVirtualTokens(std::unique_ptr<VirtualTokens> tokens);
  /// The embedding has one.
  void SetTokenGraft(std::unique_ptr<TokenGraft> graft);

  Status Pack(Context& context, Repack what);

  bool Has(GraftPlace place) const { return !At(place).empty(); }
  const VirtualTokens* virtual_tokens() const { return virtual_tokens_.get(); }
  float block_share() const { return block_share_ == nullptr ? 1 : *block_share_; }

  /// The grafts of `place`, one after the other.
  Result<Value> Forward(GraftPlace place, Context& context, Tape& tape, Value x,
                        const GraftUse& use) const;

  /// What the table of tokens gives for `tokens`, with what the token graft makes of it.
  Result<Value> ForwardTokens(Context& context, Tape& tape, Value x, const Tensor& tokens) const;
  /// The trained rows of the token graft, or null.
  const TrainedTableRows* trained_rows() const {
    return token_graft_ == nullptr ? nullptr : token_graft_->trained_rows();
  }

  /// What is computed of the branch in a pass on `tape`.
  BranchChoice Choose(const Context& context, const Tape& tape, const GraftUse& use) const {
    const bool decides = gate_ != nullptr && (tape.differentiable() || gate_->evaluates());
    return decides ? gate_->Choose(context, use) : BranchChoice();
  }

 private:
  using List = std::vector<std::unique_ptr<Graft>>;
  const List& At(GraftPlace place) const { return places_[static_cast<size_t>(place)]; }
  List& At(GraftPlace place) { return places_[static_cast<size_t>(place)]; }

  std::array<List, static_cast<size_t>(GraftPlace::kResidualSum) + 1> places_;
  std::unique_ptr<BranchGate> gate_;
  const float* block_share_ = nullptr;
  std::unique_ptr<VirtualTokens> virtual_tokens_;
  std::unique_ptr<TokenGraft> token_graft_;
};

/// Puts grafts at a site, after those of the block itself; or none.
using Grafter = std::function<void(const GraftSite& site, Grafts& grafts)>;

}  // namespace weft::engine
