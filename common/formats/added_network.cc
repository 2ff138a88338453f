#include "common/formats/added_network.h"

#include <optional>
#include <string>
#include <utility>

#include "common/formats/huggingface.h"
#include "common/json.h"
#include "common/model/model_sizes.h"
#include "common/model/technique_cost.h"
#include "common/spec/model_family.h"
#include "common/spec/spec_json.h"

namespace weft {

namespace {

/// A job that has been resolved has all that the folder says, one of a user its path alone.
Status CheckOtherFields(const std::string& field, const ModelSpec& given,
                        const ModelSpec& left_open, const ModelSpec& read) {
  const Json defaults = ToJson(left_open), of_folder = ToJson(read), fields = ToJson(given);
  for (const auto& [name, value] : fields.items()) {
    if (value == defaults.value(name, Json()) || value == of_folder.value(name, Json())) continue;
    return InvalidError(field + "." + name + " is not what the folder " + given.import_path +
                        " says; hint: give " + field + ".import_path alone");
  }
  return OkStatus();
}

}  // namespace

Status ResolveAddedNetwork(Env& env, JobSpec& job) {
  const std::optional<AddedNetwork> added = AddedNetworkOf(job.train);
  if (!added) return OkStatus();
  const std::string field(added->field);
  ModelSpec left_open;
  left_open.import_path = added->model->import_path;
  Result<ModelSpec> read = ReadModelConfig(env, left_open.import_path, left_open);
  if (!read.ok()) {
    return InvalidError(field + ".import_path: " + read.status().message() +
                        "; hint: a folder of gpt2 or llama that the workers can read");
  }
  read->dropout = read->attention_dropout = 0;  // of training
  WEFT_RETURN_IF_ERROR(CheckOtherFields(field, *added->model, left_open, *read));
  const ModelSpec network = *std::move(read);
  SetAddedNetwork(job.train, network);
  const std::string named = field + ".import_path '" + network.import_path + "'";
  if (HeadOf(network) != "causal_lm") {
    return InvalidError(named + " is a " + network.family + " with model.head " + HeadOf(network) +
                        ", which does not predict the next token; hint: gpt2 or llama");
  }
  if (job.model.vocab_size == 0) job.model.vocab_size = network.vocab_size;
  if (job.model.vocab_size != network.vocab_size) {
    return InvalidError(named + " has a vocabulary of " + std::to_string(network.vocab_size) +
                        ", the model one of " + std::to_string(job.model.vocab_size) +
                        ", and their logits are added; hint: model.vocab_size 0, which takes that "
                        "of the folder");
  }
  if (SequenceLength(job) > network.context) {
    return InvalidError("train.sequence_length " + std::to_string(SequenceLength(job)) +
                        " is longer than the context " + std::to_string(network.context) + " of " +
                        named);
  }
  return OkStatus();
}

}  // namespace weft
