#include "worker/engine/techniques/peft/virtual_tokens.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "common/model/model_sizes.h"
#include "common/rng.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/engine/nn/activation.h"
#include "worker/engine/nn/embedding.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/techniques/peft/virtual_tokens_cost.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

/// The rows of a trained table, in order.
class VirtualTokenTable {
 public:
  VirtualTokenTable(ParameterSet* parameters, const std::string& name, int64_t rows,
                    int64_t columns, ParameterRole role, DType compute)
      : rows_(rows),
        embedding_(parameters, parameters->Register(name, {rows, columns}, role), -1, compute) {}

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

namespace {

Linear NewLinear(ParameterSet* parameters, const std::string& name, int64_t out, int64_t in,
                 DType compute) {
  return {parameters, {{{name, out, ParameterRole::kEmbeddingProjection}}, in, true}, compute};
}

class TrainedRows : public VirtualTokens {
 public:
  explicit TrainedRows(VirtualTokenTable table) : table_(std::move(table)) {}

  int64_t count() const override { return table_.rows(); }
  Status Pack(Context& context, Repack) override { return table_.Pack(context); }
  Result<Value> Forward(Context& context, Tape& tape) const override {
    return table_.Forward(context, tape);
  }

 private:
  VirtualTokenTable table_;
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
  VirtualTokenTable table_;
  Linear first_;
  Linear second_;
  Linear third_;
};

}  // namespace

/// The part that the projections of all attentions have in common: a table, a layer and a tanh.
class PrefixEncoder {
 public:
  PrefixEncoder(ParameterSet* parameters, const std::string& name, int64_t count, int64_t width,
                int64_t inner, DType compute)
      : table_(parameters, name + "embedding.weight", count, width,
               ParameterRole::kPositionEmbedding, compute),
        layer_(NewLinear(parameters, name + "transform.0", inner, width, compute)) {}

  int64_t count() const { return table_.rows(); }

  Status Pack(Context& context, Repack what) {
    WEFT_RETURN_IF_ERROR(table_.Pack(context));
    return layer_.Pack(context, what);
  }

  Result<Value> Forward(Context& context, Tape& tape) const {
    WEFT_ASSIGN_OR_RETURN(Value x, table_.Forward(context, tape));
    WEFT_ASSIGN_OR_RETURN(x, layer_.Forward(context, tape, x));
    return Tanh(context, tape, x);
  }

 private:
  VirtualTokenTable table_;
  Linear layer_;
};

namespace {

/// Computes what all attentions have in common anew, so that recomputation of a block finds it.
class ProjectedPrefix : public VirtualTokens {
 public:
  ProjectedPrefix(std::shared_ptr<PrefixEncoder> encoder, Linear projection)
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
  std::shared_ptr<PrefixEncoder> encoder_;
  Linear projection_;
};

}  // namespace

void VirtualTokenSites::Put(const ModelSpec& model, const GraftSite& site, Grafts& grafts) {
  const PeftSpec& spec = model.peft;
  if (!HasVirtualTokens(spec)) return;
  const bool prefix = spec.method == "prefix";
  ParameterSet* const parameters = site.parameters;
  const DType compute = site.products->compute;
  const int64_t first = parameters->size(), count = spec.num_virtual_tokens;
  const int64_t inner = EncoderWidth(model), kv = KvWidth(model);
  const std::string encoder = "prompt_encoder.";
  if (!site.sub_layer) {
    grafts.SetFirstPosition(count);
    if (spec.method == "prompt") {
      grafts.SetVirtualTokens(std::make_unique<TrainedRows>(
          VirtualTokenTable(parameters, "prompt_embeddings", count, site.width,
                            ParameterRole::kPositionEmbedding, compute)));
    } else if (!prefix) {
      grafts.SetVirtualTokens(
          std::make_unique<EncodedRows>(parameters, encoder, count, site.width, inner, compute));
    } else if (spec.prefix_projection) {
      encoder_ = std::make_shared<PrefixEncoder>(parameters, encoder, count, kv, inner, compute);
    }
  } else if (prefix && *site.sub_layer == SubLayer::kAttention) {
    const std::string name = site.name + ".prefix";
    if (spec.prefix_projection) {
      grafts.SetVirtualTokens(std::make_unique<ProjectedPrefix>(
          encoder_, NewLinear(parameters, name, 2 * kv, inner, compute)));
    } else {
      grafts.SetVirtualTokens(std::make_unique<TrainedRows>(
          VirtualTokenTable(parameters, name, count, 2 * kv, ParameterRole::kValues, compute)));
    }
  }
  for (int64_t i = first; i < parameters->size(); ++i) {
    const ParameterRole role = (*parameters)[i].role;
    parameters->SetGrafted(i, site.sub_layer ? ParameterRole::kValues : role);
    registered_.push_back(i);
  }
}

void VirtualTokenSites::SetStarts(ParameterSet& parameters) const {
  int64_t in = 0;  // of the layer whose bias comes next
  for (const int64_t index : registered_) {
    const Parameter& parameter = parameters[index];
    if (parameter.read_directly) {
      parameters.SetStart(index, {.deviation = 1});
      continue;
    }
    if (!parameter.bias) in = parameter.shape[-1];
    parameters.SetStart(index, {.deviation = 1 / std::sqrt(3 * static_cast<double>(in)),
                                .distribution = Distribution::kUniform});
  }
}

Status StartAtTokens(const Context& context, ParameterSet& parameters) {
  int64_t table = -1, prompt = -1;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].role == ParameterRole::kTokenEmbedding) table = i;
    if (parameters[i].adapter == AdapterSide::kNeither) prompt = i;
  }
  WEFT_ASSIGN_OR_RETURN(const HostCopy copy,
                        HostCopy::Of(parameters.stream(), parameters.value(table)));
  const TensorView from = copy.view();
  const int64_t vocabulary = from.shape[0], width = from.shape[1];
  std::vector<float> vectors(static_cast<size_t>(vocabulary * width));
  WEFT_RETURN_IF_ERROR(
      kernels::Cast({}, {from, TensorView(vectors.data(), DType::kF32, from.shape)}));
  PhiloxStream random(PhiloxKey{context.seed, 0, SiteHash("prompt_embeddings")});
  std::vector<float> rows;
  for (int64_t i = 0; i < parameters[prompt].shape[0]; ++i) {
    const auto token = static_cast<int64_t>(random.Below(static_cast<uint64_t>(vocabulary)));
    const auto row = vectors.begin() + token * width;
    rows.insert(rows.end(), row, row + width);
  }
  Status cast;
  WEFT_RETURN_IF_ERROR(
      FillOnHost(parameters.stream(), parameters.value(prompt), [&](const TensorView& host) {
        cast = kernels::Cast({}, {TensorView(rows.data(), DType::kF32, host.shape), host});
      }));
  return cast;
}

}  // namespace weft::engine
