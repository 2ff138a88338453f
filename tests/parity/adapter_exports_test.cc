// Adapters of each method and family that Hugging Face's peft library has, after some training,
// written and read again: the model must be the same. With WEFT_EXPORTS=DIR the folders stay there,
// with what the engine makes of inputs, for check_exports.py, which loads them in peft and records
// what it found equal. Else what the engine writes and computes must be as in that record.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/huggingface.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/safetensors.h"
#include "common/json.h"
#include "common/model/model_sizes.h"
#include "common/sha256.h"
#include "tests/parity/export_record.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr int64_t kLength = 12;
constexpr int64_t kSteps = 8;
/// How far logits may be from those of another processor, whose training rounds differently: of
/// lora they are up to 5e-4 apart without AVX, with AVX2 and with AVX-512, and of others 7e-6.
float ToleranceOf(const std::string& name) {
  static const std::set<std::string> kLora = {"biases", "experts", "head",
                                              "lora",   "qlora",   "settings"};
  return kLora.contains(name) ? 5e-3f : 5e-5f;
}

using Change = std::function<void(PeftSpec&)>;

struct AdapterCase {
  std::string family;
  std::string name;
  Change change = [](PeftSpec&) {};
  bool untied = false;     ///< The classifier of the base has a matrix of its own.
  bool quantized = false;  ///< Its weights are trained on in 4 bits, and are what these stand for.
};

void PrintTo(const AdapterCase& c, std::ostream* out) {
  *out << c.family << " " << c.name;
}

/// Whether it is a llama, by another name in transformers or not.
bool IsLlama(const std::string& family) {
  return family == "llama" || family == "mistral" || family == "qwen2" || family == "mixtral";
}

/// Whether it is a vit, by the names of transformers 4 or (vit_5) of 5.
bool IsVit(const std::string& family) {
  return family == "vit" || family == "vit_5";
}

bool Classifies(const std::string& family) {
  return family == "bert_classes" || IsVit(family);
}

std::vector<std::string> NormsOf(const std::string& family) {
  if (family == "gpt2") return {"ln_1", "ln_2", "ln_f"};
  if (IsLlama(family)) return {"*norm.weight"};
  if (family == "bert") return {"LayerNorm"};
  return {"*layernorm*"};
}

std::string TableOf(const std::string& family) {
  if (family == "gpt2") return "wte";
  return IsLlama(family) ? "embed_tokens" : "word_embeddings";
}

Change Method(const std::string& name, const std::vector<std::string>& targets = {}) {
  return [name, targets](PeftSpec& spec) {
    spec.method = name;
    spec.target_modules = targets;
  };
}

/// The cases of a family.
struct FamilyCases {
  std::string family;
  std::vector<AdapterCase>& cases;

  void Add(const std::string& name, Change change, bool untied = false) const {
    cases.push_back({family, name, std::move(change), untied});
  }
};

void AddLora(const FamilyCases& to) {
  const std::string& family = to.family;
  const bool experts = family == "mixtral";
  to.Add("lora", [experts](PeftSpec& spec) {
    // transformers 5 takes no ranks by pattern for experts.
    spec.target_modules = {experts ? "*_proj" : "all-linear"};
    spec.rank_pattern = {{".*", 3}};
    spec.use_rslora = true;
  });
  to.Add("dora", [](PeftSpec& spec) { spec.use_dora = true; });
  to.Add("pissa", [](PeftSpec& spec) { spec.init = "pissa"; });
  if (family != "gpt2") to.Add("olora", [](PeftSpec& spec) { spec.init = "olora"; });
  if (experts) {
    to.Add("experts", [](PeftSpec& spec) {
      spec.target_modules = {"w1", "w2", "w3"};
      spec.use_rslora = true;
    });
  }
  if (IsVit(family)) return;
  to.Add("embedding", [family](PeftSpec& spec) { spec.target_modules = {TableOf(family)}; });
  to.Add("tokens", [](PeftSpec& spec) { spec.trainable_token_indices = {7, 8, 3}; });
}

/// LoRA on layers outside the blocks, where the family has some that get adapters.
void AddHead(const FamilyCases& to) {
  const std::string& family = to.family;
  const auto add = [&](const std::vector<std::string>& targets, bool untied = false) {
    to.Add("head", Method("lora", targets), untied);
  };
  if (IsLlama(family)) add({"lm_head", "q_proj"}, /*untied=*/true);
  if (family == "gpt2") add({"lm_head", "c_attn"}, /*untied=*/true);
  if (family == "bert") add({"dense"});
  if (family == "bert_classes") add({"pooler.dense", "classifier"});
  if (IsVit(family)) {
    add({"projection", "classifier", family == "vit" ? "query" : "q_proj"});
  }
}

/// LoRA with its other settings, and with what is trained whole next to it.
void AddLoraSettings(const FamilyCases& to) {
  const std::string& family = to.family;
  if (family == "mixtral") return;  // whose MLPs are experts
  if (family == "gpt2" || family == "qwen2") {
    to.Add("biases", [](PeftSpec& spec) { spec.modules_to_save = {"*.bias"}; });
  }
  std::string value = "value", up = "intermediate.dense", whole = "predictions.transform";
  if (family == "gpt2") {
    value = "c_attn";
    up = "c_fc";
    whole = "ln_f";
  } else if (IsLlama(family)) {
    value = "v_proj";
    up = "up_proj";
    whole = "norm";
  } else if (Classifies(family)) {
    whole = "classifier";
  }
  if (family == "vit_5") {
    value = "v_proj";
    up = "mlp.fc1";
  }
  to.Add("settings", [value, up, whole](PeftSpec& spec) {
    spec.target_modules = {value, up};
    spec.layers_to_transform = {1};
    spec.alpha_pattern = {{value, 16}};
    spec.rank_pattern = {{up, 2}};
    spec.modules_to_save = {whole};
  });
}

void AddOtherMethods(const FamilyCases& to) {
  const std::string& family = to.family;
  const bool experts = family == "mixtral";  // other methods than lora adapt its attention alone
  const std::vector<std::string> all =
      experts ? std::vector<std::string>{"q_proj", "k_proj", "v_proj", "o_proj"}
              : std::vector<std::string>{"all-linear"};
  if (!IsVit(family)) {
    to.Add("tokens-alone", [](PeftSpec& spec) {
      spec.method = "selective";
      spec.trainable_token_indices = {7, 8, 3, 21, 22, 4};
    });
  }
  to.Add("ln-tuning", [family](PeftSpec& spec) {
    spec.method = "selective";
    spec.modules_to_save = NormsOf(family);
  });
  to.Add("adalora", [all](PeftSpec& spec) {
    spec.method = "adalora";
    spec.target_modules = all;
    spec.alpha = 64;
    spec.adalora.init_r = 6;
    spec.adalora.target_r = 3;
    spec.adalora.tfinal = 2;
  });
  to.Add("vera", Method("vera", all));
  to.Add("ia3", Method("ia3"));
  if (family == "gpt2") return;
  to.Add("miss", Method("miss", all));
  to.Add("loha", Method("loha", all));
  to.Add("lokr", Method("lokr", all));
  to.Add("oft", [](PeftSpec& spec) {
    spec.method = "oft";
    spec.oft_block_size = 8;
  });
}

/// Other methods than lora next to modules that are trained whole.
void AddSavedModules(const FamilyCases& to) {
  const std::string& family = to.family;
  const auto add = [&](const std::string& method, const std::string& whole) {
    to.Add("saved-" + method, [method, whole](PeftSpec& spec) {
      spec.method = method;
      spec.modules_to_save = {whole};
      if (method != "adalora") return;
      spec.alpha = 64;
      spec.adalora.tfinal = 2;
    });
  };
  if (family == "gpt2") add("ia3", "ln_f");
  if (family == "llama") add("adalora", "post_attention_layernorm");
  if (family == "bert_classes") add("miss", "classifier");
}

/// Masked language models of transformers take no keys and values. In a classification peft trains
/// the classifier, too.
void AddVirtualTokens(const FamilyCases& to) {
  const std::string& family = to.family;
  if (IsVit(family)) return;
  const std::vector<std::string> saved =
      Classifies(family) ? std::vector<std::string>{"classifier"} : std::vector<std::string>();
  const auto add = [&](const std::string& name, const std::string& method, bool projects) {
    to.Add(name, [method, projects, saved](PeftSpec& spec) {
      spec.method = method;
      spec.prefix_projection = projects;
      spec.num_virtual_tokens = 4;
      spec.modules_to_save = saved;
    });
  };
  add("prompt", "prompt", /*projects=*/false);
  add("p_tuning", "p_tuning", /*projects=*/false);
  if (family == "bert") return;
  add("prefix", "prefix", /*projects=*/false);
  add("projected-prefix", "prefix", /*projects=*/true);
}

std::vector<AdapterCase> Cases() {
  std::vector<AdapterCase> cases;
  for (const std::string family :
       {"gpt2", "llama", "mistral", "qwen2", "mixtral", "bert", "vit", "vit_5"}) {
    const FamilyCases to{family, cases};
    AddLora(to);
    AddHead(to);
    AddLoraSettings(to);
    AddOtherMethods(to);
    AddSavedModules(to);
    AddVirtualTokens(to);
  }
  // Its blocks are those of a bert.
  const FamilyCases classes{"bert_classes", cases};
  AddHead(classes);
  AddLoraSettings(classes);
  AddSavedModules(classes);
  AddVirtualTokens(classes);
  cases.push_back({.family = "llama",
                   .name = "qlora",
                   .change = Method("lora", {"all-linear"}),
                   .quantized = true});
  return cases;
}

ModelSpec BaseOf(const AdapterCase& c) {
  const std::string& family = c.family;
  ModelSpec model = TinyModel();
  model.family = IsLlama(family) ? "llama" : family.substr(0, family.find('_'));
  model.context = 24;
  model.untied_classifier = c.untied;
  if (model.family == "llama") model.mlp_width = 48;
  if (family == "mistral") model.sliding_window = 5;
  model.qkv_bias = family == "qwen2";
  if (family == "mixtral") model.experts = 4;
  if (Classifies(family)) {
    model.head = "classification";
    model.classes = 3;
  }
  if (IsVit(family)) {
    model.vocab_size = 0;
    model.image_size = 12;
    model.patch_size = 3;
    model.image_channels = 1;
  }
  return model;
}

/// With scales in f32, so that what words stand for becomes these words again.
WeightQuantizationSpec InFourBits() {
  return {.type = "nf4", .block_size = 32, .double_quantization = false};
}

/// Writes the network that the case adapts to `folder`.
void WriteBase(const AdapterCase& c, const std::string& folder) {
  ModelSpec model = BaseOf(c);
  if (c.quantized) {
    model.weight_quantization = InFourBits();
    model.freeze = {"model.layers.*"};
  }
  TinyRun base(model, ModelOptionsOf(TinyPlan("fp32")));
  const Status exported = ExportWeights(Env::Posix(), folder, *base.model, {});
  ASSERT_TRUE(exported.ok()) << exported.message();
}

std::unique_ptr<BatchSource> SourceOf(const ModelSpec& model) {
  if (model.family == "vit") return std::make_unique<NoiseImages>(model);
  if (HeadOf(model) == "classification") {
    return std::make_unique<RandomLabelled>(model.vocab_size, kLength, model.classes);
  }
  if (model.family == "bert") {
    return std::make_unique<RandomMasked>(model.vocab_size, kLength, 0.3);
  }
  return std::make_unique<RandomTokens>(model.vocab_size, kLength);
}

JobSpec JobOf(const AdapterCase& c) {
  JobSpec job = TinyJob(4);
  job.model = BaseOf(c);
  if (c.quantized) job.model.weight_quantization = InFourBits();
  if (c.family == "vit_5") job.model.peft.module_names = kTransformers5Names;
  job.model.peft.method = "lora";
  c.change(job.model.peft);
  job.train.steps = kSteps;
  job.train.sequence_length = IsVit(c.family) ? 0 : kLength;
  job.optimizer.learning_rate = 2e-2;
  job.schedule.kind = "constant";
  return job;
}

/// What check_exports.py records of a case: hashes of the configuration and of what describes the
/// tensors, and some logits. Not the numbers of the tensors: they are trained, so their last bits
/// depend on the processor.
Json RecordOf(Env& env, const std::string& adapter, const Json& facts) {
  const Result<std::string> text = ReadFile(env, JoinPath(adapter, "adapter_config.json"));
  EXPECT_TRUE(text.ok()) << text.status().message();
  Json config = *ParseJson(*text);
  config["base_model_name_or_path"] = Json();
  const auto file = SafetensorsFile::Open(env, JoinPath(adapter, kAdapterWeightsName));
  EXPECT_TRUE(file.ok()) << file.status().message();
  std::vector<std::string> tensors;
  for (const SafetensorsView& tensor : file->tensors()) {
    tensors.push_back(tensor.name + " " + DescribeTensor(tensor.type, tensor.shape) + "\n");
  }
  std::sort(tensors.begin(), tensors.end());
  std::string described;
  for (const std::string& tensor : tensors) described += tensor;
  return {{"config", Sha256Hex(config.dump(2) + "\n")},
          {"tensors", Sha256Hex(described)},
          {"logits", SampledLogits(facts.at("rows"))}};
}

class AdapterExportsTest : public ::testing::TestWithParam<AdapterCase> {
 protected:
  void SetUp() override {
    name_ = "adapter-" + GetParam().family + "-" + GetParam().name;
    const char* kept = std::getenv("WEFT_EXPORTS");
    root_ = kept != nullptr ? kept : ::testing::TempDir() + "weft_" + name_;
    folder_ = JoinPath(root_, name_);
    if (kept != nullptr) root_.clear();
  }
  void TearDown() override {
    if (root_.empty()) return;
    EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok());
  }

  std::string name_, root_, folder_;
};

TEST_P(AdapterExportsTest, AreTheSameModelWhenImported) {
  Env& env = Env::Posix();
  const JobSpec job = JobOf(GetParam());
  const std::string hf = JoinPath(folder_, "hf"), adapter = JoinPath(folder_, "adapter");
  ASSERT_NO_FATAL_FAILURE(WriteBase(GetParam(), hf));
  const std::unique_ptr<BatchSource> source = SourceOf(job.model);
  TinyTraining run(job, TinyPlan("fp32"), *source);
  ASSERT_TRUE(ImportWeights(env, hf, *run.model).ok());
  for (int64_t i = 0; i < kSteps; ++i) run.Step();
  const Result<std::string> hash = HashOfBase(env, hf, job.model);
  ASSERT_TRUE(hash.ok()) << hash.status().message();
  const Status written = ExportAdapterWeights(env, adapter, *run.model,
                                              {.base = hf, .base_sha256 = *hash, .steps = kSteps});
  ASSERT_TRUE(written.ok()) << written.message();

  ModelSpec spec = *ReadModelConfig(env, hf, {});
  spec.import_path = hf;
  const Result<PeftSpec> peft = ReadAdapterConfig(env, adapter, spec);
  ASSERT_TRUE(peft.ok()) << peft.status().message();
  spec.peft = *peft;
  TinyRun imported(spec, ModelOptionsOf(TinyPlan("fp32"), job.train));
  ASSERT_TRUE(CheckBaseHash(env, adapter, hf, spec).ok());
  ASSERT_TRUE(ImportWeights(env, hf, *imported.model).ok());
  const Status read = ImportAdapterWeights(env, adapter, *imported.model);
  ASSERT_TRUE(read.ok()) << read.message();
  ASSERT_TRUE(imported.model->Pack(imported.context).ok());
  ASSERT_TRUE(run.model->Pack(run.context).ok());

  TinyRun plain(*ReadModelConfig(env, hf, {}), ModelOptionsOf(TinyPlan("fp32")));
  ASSERT_TRUE(ImportWeights(env, hf, *plain.model).ok());
  ASSERT_TRUE(plain.model->Pack(plain.context).ok());
  Json facts = {{"adapter", true}, {"rows", Json::array()}};
  for (int64_t sequence = 0; sequence < 3; ++sequence) {
    Result<Batch> batch = source->Get(kSteps, sequence, 1);
    ASSERT_TRUE(batch.ok());
    if (!batch->target_rows.empty()) batch->target_rows = batch->positions;  // all logits
    const std::vector<float> logits = run.Logits(*batch), again = imported.Logits(*batch);
    ASSERT_EQ(logits.size(), again.size());
    double difference = 0, change = 0;
    const std::vector<float> before = plain.Logits(*batch);
    for (size_t i = 0; i < logits.size(); ++i) {
      difference = std::max<double>(difference, std::fabs(logits[i] - again[i]));
      change = std::max<double>(change, std::fabs(logits[i] - before[i]));
    }
    EXPECT_LT(difference, 1e-5);
    EXPECT_GT(change, 1e-3) << "training has changed next to nothing";
    facts["rows"].push_back(
        {{"ids", batch->tokens}, {"pixels", batch->pixels}, {"logits", logits}});
  }
  Json made = RecordOf(env, adapter, facts);
  if (!root_.empty()) {
    ExpectAsRecorded(name_, std::move(made), ToleranceOf(GetParam().name));
    return;
  }
  facts["record"] = std::move(made);
  ASSERT_TRUE(WriteFileAtomic(env, JoinPath(folder_, "facts.json"), facts.dump() + "\n").ok());
}

INSTANTIATE_TEST_SUITE_P(Methods, AdapterExportsTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) {
                           std::string name = test.param.family + "_" + test.param.name;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace weft::engine
