#include "cli/trained_model.h"

#include <optional>
#include <utility>

#include "cli/checkpoint_path.h"
#include "common/env.h"
#include "common/formats/huggingface.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/weight_files.h"
#include "common/model/technique_cost.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/models/weights.h"
#include "worker/trainer/class_names.h"
#include "worker/trainer/sub_network.h"
#include "worker/trainer/ticket.h"
#include "worker/trainer/trained_weights.h"

namespace weft::cli {
namespace {

Result<TrainedModel> EmptyModel(const ModelSpec& spec, const TrainSpec& train = {}) {
  TrainedModel trained;
  trained.allocator = std::make_unique<engine::Allocator>();
  trained.context = std::make_unique<engine::Context>();
  trained.context->allocator = trained.allocator.get();
  engine::ModelOptions options;
  options.precision = &kFp32Precision;
  options.with_gradients = false;
  options.train = train;
  WEFT_ASSIGN_OR_RETURN(trained.model, engine::NewModel(*trained.context, spec, options));
  return trained;
}

Status LoadTokenizer(TrainedModel& trained, const std::string& folder) {
  if (trained.model->spec().family == "vit") return OkStatus();
  WEFT_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(Env::Posix(), folder));
  if (tokenizer.vocab_size() > trained.model->spec().vocab_size) {
    return InvalidError("the tokenizer in " + folder + " has " +
                        std::to_string(tokenizer.vocab_size()) + " tokens, the model only " +
                        std::to_string(trained.model->spec().vocab_size));
  }
  trained.tokenizer = std::make_unique<Tokenizer>(std::move(tokenizer));
  return OkStatus();
}

/// What `adapter`, a folder of peft, adds to the network of `base`.
Status AddAdapter(Env& env, const std::string& base, const std::string& adapter, ModelSpec& spec) {
  spec.import_path = base;
  Result<PeftSpec> peft = ReadAdapterConfig(env, adapter, spec);
  if (!peft.ok()) return OfGivenFiles(peft.status());
  spec.peft = *std::move(peft);
  spec.peft.import_path = adapter;
  return OkStatus();
}

Status LoadAdapter(Env& env, const std::string& base, const std::string& adapter,
                   engine::Model& model) {
  WEFT_RETURN_IF_ERROR(OfGivenFiles(CheckBaseHash(env, adapter, base, model.spec())));
  return OfGivenFiles(engine::ImportAdapterWeights(env, adapter, model));
}

/// The network of `folder`, with the adapter of another folder where `adapter` is not "".
Result<TrainedModel> FromHuggingFace(const std::string& folder, const std::string& adapter) {
  Env& env = Env::Posix();
  WEFT_ASSIGN_OR_RETURN(ModelSpec spec, ReadModelConfig(env, folder, ModelSpec()));
  if (!adapter.empty()) WEFT_RETURN_IF_ERROR(AddAdapter(env, folder, adapter, spec));
  WEFT_ASSIGN_OR_RETURN(TrainedModel trained, EmptyModel(spec));
  WEFT_RETURN_IF_ERROR(engine::ImportWeights(env, folder, *trained.model));
  if (!adapter.empty()) WEFT_RETURN_IF_ERROR(LoadAdapter(env, folder, adapter, *trained.model));
  trained.adapter_folder = adapter;
  WEFT_RETURN_IF_ERROR(LoadTokenizer(trained, folder));
  WEFT_ASSIGN_OR_RETURN(ImportedHead head, ReadHead(env, folder));
  trained.classes = std::move(head.class_names);
  WEFT_ASSIGN_OR_RETURN(trained.imported, ReadUsageFiles(env, folder));
  for (const char* key : {"torch_dtype", "dtype"}) {
    const Json name = trained.imported.config.value(key, Json());
    if (name == "float32") trained.trained_dtype = DType::kF32;
    if (name == "bfloat16") trained.trained_dtype = DType::kBF16;
    if (name == "float16") trained.trained_dtype = DType::kF16;
  }
  const std::string preprocessor = JoinPath(folder, "preprocessor_config.json");
  if (env.FileExists(preprocessor)) {
    WEFT_ASSIGN_OR_RETURN(trained.preprocessor_json, ReadFile(env, preprocessor));
  }
  return trained;
}

/// Which of the jobs that a training trains together is called `name`; none where it is one job.
Result<std::optional<size_t>> PartNamed(const std::vector<JobSpec>& jobs, const std::string& name) {
  std::string known;
  for (size_t part = 0; part < jobs.size(); ++part) {
    if (jobs[part].name == name) return std::optional(part);
    known += (part > 0 ? ", " : "") + jobs[part].name;
  }
  if (jobs.empty() && name.empty()) return std::optional<size_t>();
  if (jobs.empty()) {
    return InvalidError("the training does not have several adapters; hint: leave --adapter out");
  }
  return InvalidError((name.empty() ? std::string("the training has several adapters")
                                    : "the training has no adapter '" + name + "'") +
                      "; hint: --adapter with one of " + known);
}

/// The network within the network that was trained.
Result<TrainedModel> SubNetwork(Env& env, const std::string& folder,
                                const engine::CheckpointManifest& manifest) {
  const std::optional<ModelSpec> spec = SubNetworkOf(manifest.job);
  if (!spec) {
    return InvalidError(
        "the training has no network within the network; hint: leave --sub-network out");
  }
  WEFT_ASSIGN_OR_RETURN(TrainedModel trained, EmptyModel(manifest.job.model, manifest.job.train));
  trainer::SelectSubNetwork(*trained.model);
  WEFT_RETURN_IF_ERROR(
      trainer::LoadTrainedWeights(env, folder, manifest, trained.model->parameters()));
  WEFT_ASSIGN_OR_RETURN(TrainedModel own, EmptyModel(*spec));
  WEFT_RETURN_IF_ERROR(trainer::TakeFirst(trained.model->parameters(), own.model->parameters()));
  return own;
}

/// The model that a training has come to, which may be smaller than the one that was trained.
Result<TrainedModel> ModelOf(Env& env, const std::string& folder,
                             const engine::CheckpointManifest& manifest,
                             const NetworkChoice& choice) {
  if (choice.sub_network) return SubNetwork(env, folder, manifest);
  using trainer::LeftOutBase;
  const LeftOutBase base = choice.adapter_alone ? LeftOutBase::kLeave : LeftOutBase::kRead;
  const std::vector<JobSpec> jobs = JointJobs(manifest.job);
  WEFT_ASSIGN_OR_RETURN(const std::optional<size_t> part, PartNamed(jobs, choice.adapter));
  if (part) {
    WEFT_ASSIGN_OR_RETURN(TrainedModel own, EmptyModel(jobs[*part].model, manifest.job.train));
    WEFT_RETURN_IF_ERROR(trainer::LoadTrainedWeights(env, folder, manifest, own.model->parameters(),
                                                     trainer::NamesOfPart(manifest.job, *part),
                                                     base));
    return own;
  }
  WEFT_ASSIGN_OR_RETURN(TrainedModel trained, EmptyModel(manifest.job.model, manifest.job.train));
  WEFT_RETURN_IF_ERROR(
      trainer::LoadTrainedWeights(env, folder, manifest, trained.model->parameters(), {}, base));
  const std::optional<ExportedTicket> ticket = TicketOf(manifest.job.model);
  if (!ticket) return trained;
  WEFT_ASSIGN_OR_RETURN(TrainedModel smaller, EmptyModel(ticket->model, manifest.job.train));
  WEFT_RETURN_IF_ERROR(trainer::LoadTicket(
      env, folder, manifest, *ticket, trained.model->parameters(), smaller.model->parameters()));
  return smaller;
}

Result<TrainedModel> FromCheckpoint(const std::string& folder, const NetworkChoice& choice) {
  Env& env = Env::Posix();
  WEFT_ASSIGN_OR_RETURN(engine::CheckpointManifest manifest, engine::VerifyCheckpoint(env, folder));
  WEFT_ASSIGN_OR_RETURN(TrainedModel trained, ModelOf(env, folder, manifest, choice));
  // <run>/checkpoints/<step>: tokenizer and names of classes are in the run folder.
  const std::string run_dir = DirName(DirName(folder));
  WEFT_RETURN_IF_ERROR(LoadTokenizer(trained, run_dir));
  WEFT_ASSIGN_OR_RETURN(trained.classes, trainer::ReadClassNames(env, run_dir));
  WEFT_ASSIGN_OR_RETURN(trained.imported, LoadUsageFiles(env, run_dir));
  trained.steps = manifest.job.train.steps;
  trained.base_fingerprint = manifest.base_fingerprint;
  if (const std::optional<AddedNetwork> added = AddedNetworkOf(manifest.job.train)) {
    trained.added_network = added->model->import_path;
  }
  const std::string& precision = manifest.plan.precision;
  trained.trained_dtype = precision == "fp32"   ? DType::kF32
                          : precision == "fp16" ? DType::kF16
                                                : DType::kBF16;
  if (manifest.job.model.family == "vit") {
    trained.preprocessor_json = PreprocessorConfig(manifest.job.model, manifest.job.data);
  }
  return trained;
}

}  // namespace

Result<TrainedModel> LoadTrainedModel(const Session& session, const std::string& what, int64_t step,
                                      const NetworkChoice& choice) {
  auto load = [&]() -> Result<TrainedModel> {
    if (Env::Posix().FileExists(JoinPath(what, "config.json"))) {
      if (choice.adapter.empty() && !choice.sub_network) return FromHuggingFace(what, choice.peft);
      return InvalidError(what + " is one model; hint: leave --adapter and --sub-network out");
    }
    if (!choice.peft.empty()) {
      return InvalidError(what +
                          " is no Hugging Face folder, and --peft adapts the network of one; hint: "
                          "the folder of the adapter's base model");
    }
    WEFT_ASSIGN_OR_RETURN(std::string folder, FindCheckpoint(session, what, step));
    return FromCheckpoint(folder, choice);
  };
  WEFT_ASSIGN_OR_RETURN(TrainedModel trained, load());
  WEFT_RETURN_IF_ERROR(trained.model->Pack(*trained.context));
  return trained;
}

}  // namespace weft::cli
