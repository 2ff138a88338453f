#include "worker/engine/techniques/peft/virtual_tokens.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "common/model/model_sizes.h"
#include "common/rng.h"
#include "worker/engine/nn/activation.h"
#include "worker/engine/nn/embedding.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/nn/whole_values.h"
#include "worker/engine/techniques/peft/virtual_tokens_cost.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// The rows of a trained table, in order.
class Table {
 public:
  Table(ParameterSet* parameters, const std::string& name, int64_t rows, int64_t columns,
        ParameterRole role, DType compute, const Shard& shard = {})
      : rows_(rows),
        embedding_(parameters,
                   parameters->Register(name, {rows, shard.whole() ? columns : shard.size()}, role,
                                        {.shard = shard}),
                   -1, compute) {}

  int64_t rows() const { return rows_; }

  Status Pack(Context& context) {
    if (indices_) return OkStatus();
    WEFT_ASSIGN_OR_RETURN(indices_,
                          Tensor::New(context, Component::kParameters, DType::kI32, {rows_}));
    return FillOnHost(context.stream, indices_, [&](const TensorView& host) {
      std::iota(host.As<int32_t>(), host.As<int32_t>() + rows_, 0);
    });
  }

  Result<Value> Forward(Context& context, Tape& tape) const {
    return embedding_.Forward(context, tape, indices_);
  }

 private:
  int64_t rows_;
  Embedding embedding_;
  Tensor indices_;  ///< [rows] i32
};

Linear NewLinear(ParameterSet* parameters, const std::string& name, int64_t out, int64_t in,
                 DType compute, const Shard& shard = {}) {
  const ParameterList::StackedPart output{.name = name,
                                          .rows = shard.whole() ? out : shard.size(),
                                          .role = ParameterRole::kEmbeddingProjection,
                                          .shard = shard};
  return {parameters, {{output}, in, true}, compute};
}

/// Which of [keys | values] those of the heads here are, along `axis`; all where `ranks` is null.
Shard KeysAndValues(const TensorParallel* ranks, int64_t kv_width, int64_t head_width, int axis) {
  if (ranks == nullptr) return {};
  Shard shard = ranks->Rows({kv_width, kv_width}, head_width);
  shard.axis = axis;
  return shard;
}

const char kPromptEncoder[] = "prompt_encoder.";

class TrainedRows : public VirtualTokens {
 public:
  explicit TrainedRows(Table table) : table_(std::move(table)) {}

  int64_t count() const override { return table_.rows(); }
  Status Pack(Context& context, Repack) override { return table_.Pack(context); }
  Result<Value> Forward(Context& context, Tape& tape) const override {
    return table_.Forward(context, tape);
  }

 private:
  Table table_;
};

/// Three layers with ReLUs between them.
class EncodedRows : public VirtualTokens {
 public:
  EncodedRows(ParameterSet* parameters, const std::string& name, int64_t count, int64_t width,
              int64_t inner, DType compute)
      : table_(parameters, name + "embedding.weight", count, width,
               ParameterRole::kPositionEmbedding, compute),
        first_(NewLinear(parameters, name + "mlp_head.0", inner, width, compute)),
        second_(NewLinear(parameters, name + "mlp_head.2", inner, inner, compute)),
        third_(NewLinear(parameters, name + "mlp_head.4", width, inner, compute)) {}

  int64_t count() const override { return table_.rows(); }

  Status Pack(Context& context, Repack what) override {
    WEFT_RETURN_IF_ERROR(table_.Pack(context));
    WEFT_RETURN_IF_ERROR(first_.Pack(context, what));
    WEFT_RETURN_IF_ERROR(second_.Pack(context, what));
    return third_.Pack(context, what);
  }

  Result<Value> Forward(Context& context, Tape& tape) const override {
    WEFT_ASSIGN_OR_RETURN(Value x, table_.Forward(context, tape));
    WEFT_ASSIGN_OR_RETURN(x, first_.Forward(context, tape, x));
    WEFT_ASSIGN_OR_RETURN(x, Relu(context, tape, x));
    WEFT_ASSIGN_OR_RETURN(x, second_.Forward(context, tape, x));
    WEFT_ASSIGN_OR_RETURN(x, Relu(context, tape, x));
    return third_.Forward(context, tape, x);
  }

 private:
  Table table_;
  Linear first_;
  Linear second_;
  Linear third_;
};

/// The part that the projections of all attentions have in common: a table, a layer and a tanh.
class PrefixEncoder : public VirtualTokens {
 public:
  PrefixEncoder(ParameterSet* parameters, const std::string& name, int64_t count, int64_t width,
                int64_t inner, DType compute)
      : table_(parameters, name + "embedding.weight", count, width,
               ParameterRole::kPositionEmbedding, compute),
        layer_(NewLinear(parameters, name + "transform.0", inner, width, compute)) {}

  int64_t count() const override { return table_.rows(); }

  Status Pack(Context& context, Repack what) override {
    WEFT_RETURN_IF_ERROR(table_.Pack(context));
    return layer_.Pack(context, what);
  }

  Result<Value> Forward(Context& context, Tape& tape) const override {
    WEFT_ASSIGN_OR_RETURN(Value x, table_.Forward(context, tape));
    WEFT_ASSIGN_OR_RETURN(x, layer_.Forward(context, tape, x));
    return Tanh(context, tape, x);
  }

 private:
  Table table_;
  Linear layer_;
};

/// Computes what all attentions have in common anew, so that recomputation of a block finds it.
class ProjectedPrefix : public VirtualTokens {
 public:
  ProjectedPrefix(std::shared_ptr<VirtualTokens> encoder, Linear projection)
      : encoder_(std::move(encoder)), projection_(std::move(projection)) {}

  int64_t count() const override { return encoder_->count(); }

  Status Pack(Context& context, Repack what) override {
    WEFT_RETURN_IF_ERROR(encoder_->Pack(context, what));
    return projection_.Pack(context, what);
  }

  Result<Value> Forward(Context& context, Tape& tape) const override {
    WEFT_ASSIGN_OR_RETURN(const Value x, encoder_->Forward(context, tape));
    return projection_.Forward(context, tape, x);
  }

 private:
  std::shared_ptr<VirtualTokens> encoder_;
  Linear projection_;
};

}  // namespace

void VirtualTokenSites::Put(const ModelSpec& model, const GraftSite& site, Grafts& grafts) {
  const PeftSpec& spec = model.peft;
  if (!HasVirtualTokens(spec)) return;
  const bool prefix = spec.method == "prefix";
  if (spec.prefix_projection && encoder_ == nullptr) PutEncoder(model, site);
  ParameterSet* const parameters = site.parameters;
  const DType compute = site.products->compute;
  const int64_t first = parameters->size(), count = spec.num_virtual_tokens;
  const int64_t inner = EncoderWidth(model), kv = KvWidth(model);
  if (!site.sub_layer) {
    if (spec.method == "prompt") {
      grafts.SetVirtualTokens(
          std::make_unique<TrainedRows>(Table(parameters, "prompt_embeddings", count, site.width,
                                              ParameterRole::kPositionEmbedding, compute)));
    } else if (!prefix) {
      grafts.SetVirtualTokens(std::make_unique<EncodedRows>(parameters, kPromptEncoder, count,
                                                            site.width, inner, compute));
    }
  } else if (prefix && *site.sub_layer == SubLayer::kAttention) {
    const std::string name = site.name + ".prefix";
    const auto shard = [&](int axis) {
      return KeysAndValues(site.products->tensor, kv, HeadWidth(model), axis);
    };
    if (spec.prefix_projection) {
      grafts.SetVirtualTokens(std::make_unique<ProjectedPrefix>(
          encoder_, NewLinear(parameters, name, 2 * kv, inner, compute, shard(0))));
    } else {
      grafts.SetVirtualTokens(std::make_unique<TrainedRows>(
          Table(parameters, name, count, 2 * kv, ParameterRole::kValues, compute, shard(1))));
    }
  }
  for (int64_t i = first; i < parameters->size(); ++i) {
    const ParameterRole role = (*parameters)[i].role;
    parameters->SetGrafted(i, site.sub_layer ? ParameterRole::kValues : role);
    registered_.push_back(i);
  }
}

// Each tensor-parallel rank makes keys and values of its heads of it.
void VirtualTokenSites::PutEncoder(const ModelSpec& model, const GraftSite& site) {
  ParameterSet* const parameters = site.parameters;
  const int64_t first = parameters->size();
  encoder_ =
      std::make_shared<PrefixEncoder>(parameters, kPromptEncoder, model.peft.num_virtual_tokens,
                                      KvWidth(model), EncoderWidth(model), site.products->compute);
  on_first_stage_ = !site.sub_layer;
  for (int64_t i = first; i < parameters->size(); ++i) {
    parameters->SetPartialGradient(i);
    parameters->SetOfAllBlocks(i);
    parameters->SetGrafted(i, (*parameters)[i].role);
    registered_.push_back(i);
  }
}

void VirtualTokenSites::SetStarts(ParameterSet& parameters) const {
  int64_t in = 0;  // of the layer whose bias comes next
  for (const int64_t index : registered_) {
    const Parameter& parameter = parameters[index];
    if (parameter.of_all_blocks && parameters.of_stage()) {
      parameters.SetSharedByStages(index, on_first_stage_);
    }
    if (parameter.read_directly) {
      parameters.SetStart(index, {.deviation = 1});
      continue;
    }
    if (!parameter.bias) in = parameter.shape[-1];
    parameters.SetStart(index, {.deviation = 1 / std::sqrt(3 * static_cast<double>(in)),
                                .distribution = Distribution::kUniform});
  }
}

Status StartAtTokens(Context& context, uint64_t seed, ParameterSet& parameters,
                     Collective* tensor_ranks) {
  int64_t table = -1, prompt = -1;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].role == ParameterRole::kTokenEmbedding) table = i;
    if (parameters[i].adapter == AdapterSide::kNeither) prompt = i;
  }
  if (prompt < 0) return OkStatus();  // another stage has it
  return ForEachUnit(context, parameters, [&](int64_t unit) -> Status {
    if (unit != parameters[table].unit) return OkStatus();
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> vectors,
                          WholeValue(parameters, table, tensor_ranks));
    const Shape size = parameters[table].logical_shape();
    PhiloxStream random(PhiloxKey{seed, 0, SiteHash("prompt_embeddings")});
    std::vector<float> rows;
    for (int64_t i = 0; i < parameters[prompt].shape[0]; ++i) {
      const auto token = static_cast<int64_t>(random.Below(static_cast<uint64_t>(size[0])));
      const auto row = vectors.begin() + token * size[1];
      rows.insert(rows.end(), row, row + size[1]);
    }
    return SetWholeValue(parameters, prompt, std::move(rows));
  });
}

}  // namespace weft::engine
