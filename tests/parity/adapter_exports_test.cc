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
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/huggingface.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/safetensors.h"
#include "common/json.h"
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
  return name == "lora" || name == "experts" ? 5e-3f : 5e-5f;
}

struct AdapterCase {
  std::string family;
  std::string name;
  std::function<void(PeftSpec&)> change = [](PeftSpec&) {};
};

void PrintTo(const AdapterCase& c, std::ostream* out) {
  *out << c.family << " " << c.name;
}

/// Whether it is a llama, by another name in transformers or not.
bool IsLlama(const std::string& family) {
  return family == "llama" || family == "mistral" || family == "qwen2" || family == "mixtral";
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

std::vector<AdapterCase> Cases() {
  const auto method = [](const char* name) {
    return [name](PeftSpec& spec) { spec.method = name; };
  };
  const auto everywhere = [](const char* name) {
    return [name](PeftSpec& spec) {
      spec.method = name;
      spec.target_modules = {"all-linear"};
    };
  };
  std::vector<AdapterCase> cases;
  for (const std::string family : {"gpt2", "llama", "mistral", "qwen2", "mixtral", "bert", "vit"}) {
    const bool experts = family == "mixtral";  // which lora alone adapts
    const auto add = [&](const char* name, std::function<void(PeftSpec&)> change) {
      cases.push_back({family, name, std::move(change)});
    };
    add("lora", [experts](PeftSpec& spec) {
      // transformers 5 takes no ranks by pattern for experts.
      spec.target_modules = {experts ? "*_proj" : "all-linear"};
      spec.rank_pattern = {{".*", 3}};
      spec.use_rslora = true;
    });
    add("dora", [](PeftSpec& spec) { spec.use_dora = true; });
    add("pissa", [](PeftSpec& spec) { spec.init = "pissa"; });
    if (family != "vit") {
      add("embedding", [family](PeftSpec& spec) { spec.target_modules = {TableOf(family)}; });
      add("tokens", [](PeftSpec& spec) { spec.trainable_token_indices = {7, 8, 3}; });
    }
    if (family != "gpt2") add("olora", [](PeftSpec& spec) { spec.init = "olora"; });
    if (experts) {
      add("experts", [](PeftSpec& spec) {
        spec.target_modules = {"w1", "w2", "w3"};
        spec.use_rslora = true;
      });
      continue;
    }
    if (family != "vit") {
      add("tokens-alone", [](PeftSpec& spec) {
        spec.method = "selective";
        spec.trainable_token_indices = {7, 8, 3, 21, 22, 4};
      });
    }
    add("ln-tuning", [family](PeftSpec& spec) {
      spec.method = "selective";
      spec.modules_to_save = NormsOf(family);
    });
    add("adalora", [](PeftSpec& spec) {
      spec.method = "adalora";
      spec.alpha = 64;
      spec.adalora.init_r = 6;
      spec.adalora.target_r = 3;
      spec.adalora.tfinal = 2;
    });
    add("vera", everywhere("vera"));
    add("ia3", method("ia3"));
    if (family != "gpt2") {
      add("miss", everywhere("miss"));
      add("loha", everywhere("loha"));
      add("lokr", everywhere("lokr"));
      add("oft", [](PeftSpec& spec) {
        spec.method = "oft";
        spec.oft_block_size = 8;
      });
    }
    // Virtual tokens go without a window of attention.
    if (family == "bert" || family == "vit" || family == "mistral") continue;
    for (const char* name : {"prompt", "p_tuning", "prefix"}) {
      add(name, [name](PeftSpec& spec) {
        spec.method = name;
        spec.num_virtual_tokens = 4;
      });
    }
    add("projected-prefix", [](PeftSpec& spec) {
      spec.method = "prefix";
      spec.prefix_projection = true;
      spec.num_virtual_tokens = 4;
    });
  }
  return cases;
}

ModelSpec BaseOf(const std::string& family) {
  ModelSpec model = TinyModel();
  model.family = IsLlama(family) ? "llama" : family;
  model.context = 24;
  if (model.family == "llama") model.mlp_width = 48;
  if (family == "mistral") model.sliding_window = 5;
  model.qkv_bias = family == "qwen2";
  if (family == "mixtral") model.experts = 4;
  if (family == "vit") {
    model.vocab_size = 0;
    model.image_size = 12;
    model.patch_size = 3;
    model.image_channels = 1;
    model.head = "classification";
    model.classes = 3;
  }
  return model;
}

std::unique_ptr<BatchSource> SourceOf(const ModelSpec& model) {
  if (model.family == "vit") return std::make_unique<NoiseImages>(model);
  if (model.family == "bert") {
    return std::make_unique<RandomMasked>(model.vocab_size, kLength, 0.3);
  }
  return std::make_unique<RandomTokens>(model.vocab_size, kLength);
}

JobSpec JobOf(const AdapterCase& c) {
  JobSpec job = TinyJob(4);
  job.model = BaseOf(c.family);
  job.model.peft.method = "lora";
  c.change(job.model.peft);
  job.train.steps = kSteps;
  job.train.sequence_length = c.family == "vit" ? 0 : kLength;
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
  {
    TinyRun base(BaseOf(GetParam().family), ModelOptionsOf(TinyPlan("fp32")));
    const Status exported = ExportWeights(env, hf, *base.model, {});
    ASSERT_TRUE(exported.ok()) << exported.message();
  }
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

  TinyRun plain(BaseOf(GetParam().family), ModelOptionsOf(TinyPlan("fp32")));
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
