#include "worker/engine/models/language_model.h"

#include "worker/engine/models/gpt2.h"

namespace weft::engine {

Result<std::unique_ptr<LanguageModel>> NewLanguageModel(Context& context, const ModelSpec& spec,
                                                        const ModelOptions& options) {
  if (spec.family != "gpt2") {
    return InvalidError("model.family '" + spec.family + "' is not known; hint: gpt2");
  }
  if (spec.vocab_size < 1) {
    return InvalidError("model.vocab_size " + std::to_string(spec.vocab_size) +
                        " must be at least 1; hint: take it from the tokenizer");
  }
  if (spec.heads < 1 || spec.width % spec.heads != 0 || spec.width / spec.heads % 8 != 0 ||
      spec.width / spec.heads > 256) {
    return InvalidError("model.width " + std::to_string(spec.width) + " over model.heads " +
                        std::to_string(spec.heads) + " must give heads of 8 to 256 in steps of 8");
  }
  if (options.compute != DType::kF32 && options.compute != DType::kBF16) {
    return InvalidError("a model computes in f32 or bf16, not " +
                        std::string(DTypeName(options.compute)));
  }
  auto model = std::make_unique<Gpt2>(spec, options);
  WEFT_RETURN_IF_ERROR(model->parameters().Allocate(context, options.with_gradients));
  return std::unique_ptr<LanguageModel>(std::move(model));
}

}  // namespace weft::engine
