#include "worker/engine/models/added_network.h"

#include "common/formats/huggingface.h"
#include "common/formats/weight_files.h"
#include "worker/engine/models/weights.h"

namespace weft::engine {

Result<std::unique_ptr<LanguageModel>> LoadAddedNetwork(Env& env, Context& context,
                                                        const std::string& folder,
                                                        const PrecisionRecipe& precision,
                                                        const TensorParallel* ranks) {
  WEFT_ASSIGN_OR_RETURN(ModelSpec spec, ReadModelConfig(env, folder, ModelSpec()));
  spec.dropout = spec.attention_dropout = 0;
  ModelOptions options;
  options.precision = &precision;
  options.with_gradients = false;
  if (ranks != nullptr && ranks->columns() > 1) options.logits_part = ranks->Part(spec.vocab_size);
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<LanguageModel> network,
                        NewLanguageModel(context, spec, options));
  WEFT_RETURN_IF_ERROR(OfGivenFiles(ImportWeights(env, folder, *network)));
  WEFT_RETURN_IF_ERROR(network->Pack(context));
  return network;
}

}  // namespace weft::engine
