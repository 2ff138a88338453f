#include "worker/engine/models/language_model.h"

#include "common/model/model_sizes.h"
#include "worker/engine/models/gpt2.h"
#include "worker/engine/models/llama.h"

namespace weft::engine {
namespace {

Status Validate(const ModelSpec& spec) {
  const auto text = [](int64_t value) { return std::to_string(value); };
  if (spec.vocab_size < 1) {
    return InvalidError("model.vocab_size " + text(spec.vocab_size) +
                        " must be at least 1; hint: take it from the tokenizer");
  }
  if (spec.heads < 1 || spec.width % spec.heads != 0 || HeadWidth(spec) % 8 != 0 ||
      HeadWidth(spec) > 256) {
    return InvalidError("model.width " + text(spec.width) + " over model.heads " +
                        text(spec.heads) + " must give heads of 8 to 256 in steps of 8");
  }
  if (spec.heads % KvHeads(spec) != 0) {
    return InvalidError("model.heads " + text(spec.heads) +
                        " must be a multiple of model.kv_heads " + text(KvHeads(spec)));
  }
  if (spec.layers % DistinctBlocks(spec) != 0) {
    return InvalidError("model.layers " + text(spec.layers) +
                        " must be a multiple of model.distinct_blocks " +
                        text(DistinctBlocks(spec)));
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<LanguageModel>> NewLanguageModel(Context& context, const ModelSpec& spec,
                                                        const ModelOptions& options) {
  const bool llama = spec.family == "llama";
  if (!llama && spec.family != "gpt2") {
    return InvalidError("model.family '" + spec.family + "' is not known; hint: gpt2 or llama");
  }
  WEFT_RETURN_IF_ERROR(Validate(spec));
  const PrecisionRecipe& precision = *options.precision;
  if (precision.products != precision.activations ||
      precision.classifier != precision.activations) {
    return InvalidError("precision " + std::string(precision.name) +
                        " multiplies in another type than its activations have, which no operation "
                        "of this build does");
  }
  auto model = std::make_unique<Decoder>(spec, options, llama ? Llama(spec) : Gpt2(spec));
  WEFT_RETURN_IF_ERROR(model->parameters().Freeze(spec.freeze));
  WEFT_RETURN_IF_ERROR(
      model->parameters().Allocate(context, options.with_gradients, precision.matrices));
  return std::unique_ptr<LanguageModel>(std::move(model));
}

}  // namespace weft::engine
