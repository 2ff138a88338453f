// Compares parameter-efficient tuning with Hugging Face's peft library, and what peft lacks with
// PyTorch. make_adapter_fixtures.py recorded their results in float64: adapters after 20 steps of
// AdamW, and the weights that they are merged into.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/env_fault.h"
#include "common/formats/huggingface.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/safetensors.h"
#include "tests/parity/recorded.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

/// A base model with an adapter of peft (make_adapter_fixtures.py), for example gpt2/lora.
struct RecordedAdapter : TinyRun {
  RecordedAdapter(const std::string& adapter, const std::string& name)
      : TinyRun(SpecOf(adapter), {&kFp32Precision, true, {}}) {
    Status status = ImportWeights(Env::Posix(), Folder(FamilyOf(adapter)) + "/start", *model);
    if (status.ok() && !name.empty()) {
      status = ImportAdapterWeights(Env::Posix(), Folder(adapter) + "/" + name, *model);
    }
    WEFT_CHECK(status.ok(), status.message());
    WEFT_CHECK(model->Pack(context).ok(), "pack");
  }
  static std::string FamilyOf(const std::string& adapter) {
    return adapter.substr(0, adapter.find('/'));
  }
  static ModelSpec SpecOf(const std::string& adapter) {
    ModelSpec spec = FileSpec(FamilyOf(adapter));
    auto peft = ReadAdapterConfig(Env::Posix(), Folder(adapter) + "/start", spec);
    WEFT_CHECK(peft.ok(), peft.status().message());
    spec.peft = *peft;
    // As make_adapter_fixtures.py has it: configurations do not.
    if (adapter.ends_with("/loraplus")) spec.peft.loraplus_lr_ratio = 4;
    return spec;
  }
};

/// Whether the case of this name has virtual tokens.
bool IsOfVirtualTokens(const std::string& name) {
  return name.ends_with("prompt") || name.ends_with("p_tuning") || name.ends_with("prefix");
}

/// The adapters of a family whose training is recorded, for example gpt2/lora.
std::vector<std::string> CasesOf(const std::string& family, bool virtual_tokens) {
  Env& env = Env::Posix();
  auto names = env.ListDir(Folder(family));
  WEFT_CHECK(names.ok(), names.status().message());
  std::ranges::sort(*names);
  std::vector<std::string> adapters;
  for (const std::string& name : *names) {
    const std::string adapter = family + "/" + name, trained = Folder(adapter) + "/trained/";
    const bool recorded = env.FileExists(trained + "adapter_config.json") ||
                          env.FileExists(trained + "weft_adapter.json");
    if (recorded && IsOfVirtualTokens(name) == virtual_tokens) adapters.push_back(adapter);
  }
  return adapters;
}

TensorView FloatsOf(const SafetensorsView& tensor) {
  return TensorView(const_cast<std::byte*>(tensor.bytes.data()), DType::kF32,
                    {static_cast<int64_t>(tensor.bytes.size() / sizeof(float))});
}

/// Each tensor of `expected` is in the exported model, and as near as roundings let it be.
void ExpectTensors(const SafetensorsFile& exported, const SafetensorsFile& expected) {
  EXPECT_GT(expected.tensors().size(), 0u);
  for (const SafetensorsView& tensor : expected.tensors()) {
    const SafetensorsView* const same = exported.Find(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    ASSERT_EQ(same->shape, tensor.shape) << tensor.name;
    // Rounding below the optimizer's epsilon moves it by next to nothing.
    const double most = HasNoGradient(tensor.name) ? 1e-2 : 1e-4;
    EXPECT_LT(RelativeError(FloatsOf(*same), FloatsOf(tensor)), most) << tensor.name;
  }
}

/// What `run` exports is what peft merges; where there are no such weights it says so.
void ExpectMergedWeights(TinyRun& run, const std::string& adapter) {
  FaultEnv env;
  const Status exported = ExportWeights(env, "/out", *run.model, {});
  if (!Env::Posix().FileExists(Folder(adapter) + "/merged.safetensors")) {
    EXPECT_THAT(exported.message(), ::testing::HasSubstr("no weights of the network that do"));
    return;
  }
  ASSERT_TRUE(exported.ok()) << exported.message();
  auto own = SafetensorsFile::Open(env, "/out/model.safetensors");
  auto merged = SafetensorsFile::Open(Env::Posix(), Folder(adapter) + "/merged.safetensors");
  ASSERT_TRUE(own.ok() && merged.ok());
  ExpectTensors(*own, *merged);
}

/// 20 steps from the recorded start end at the recorded end.
void ExpectTrainsAsRecorded(const std::string& adapter) {
  RecordedAdapter run(adapter, "start");
  ASSERT_NO_FATAL_FAILURE(TrainTwentySteps(run, RecordedAdapter::FamilyOf(adapter)));
  const RecordedAdapter start(adapter, "start"), expected(adapter, "trained");
  // Read again from what is written: of ranks that are left out nothing is compared.
  FaultEnv env;
  ASSERT_TRUE(ExportAdapterWeights(env, "/adapter", *run.model).ok());
  RecordedAdapter own_end(adapter, "");
  ASSERT_TRUE(ImportAdapterWeights(env, "/adapter", *own_end.model).ok());
  const ParameterSet& parameters = own_end.model->parameters();
  for (int64_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].frozen || HasNoGradient(parameters[p].name)) continue;
    const TensorView end = expected.model->parameters().value(p);
    if (NormOf(end) == 0) {  // no rank is left
      EXPECT_EQ(NormOf(parameters.value(p)), 0) << parameters[p].name;
      continue;
    }
    EXPECT_LT(RelativeError(parameters.value(p), end), 1e-4) << parameters[p].name;
    EXPECT_GT(RelativeError(start.model->parameters().value(p), end), 1e-4) << parameters[p].name;
  }
  ExpectMergedWeights(run, adapter);
}

class PeftParity : public ::testing::TestWithParam<const char*> {};

TEST_P(PeftParity, TwentyStepsEndAtTheAdaptersThatPeftTrains) {
  const std::vector<std::string> adapters = CasesOf(GetParam(), /*virtual_tokens=*/false);
  ASSERT_FALSE(adapters.empty());
  for (const std::string& adapter : adapters) {
    SCOPED_TRACE(adapter);
    ASSERT_NO_FATAL_FAILURE(ExpectTrainsAsRecorded(adapter));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PeftParity,
                         ::testing::Values("bert_classes", "bert_mlm", "gpt2", "llama", "mistral",
                                           "mixtral", "qwen2", "vit"),
                         [](const auto& test) { return std::string(test.param); });

class BitFitParity : public ::testing::TestWithParam<const char*> {};

TEST_P(BitFitParity, TwentyStepsEndAtTheBiasesThatPyTorchTrains) {
  const std::string family = GetParam();
  ModelSpec spec = FileSpec(family);
  spec.peft.method = "selective";
  spec.peft.modules_to_save = {"*.bias"};
  TinyRun run(spec, {&kFp32Precision, true, {}});
  ASSERT_TRUE(ImportWeights(Env::Posix(), Folder(family) + "/start", *run.model).ok());
  ASSERT_TRUE(run.model->Pack(run.context).ok());
  ASSERT_NO_FATAL_FAILURE(TrainTwentySteps(run, family));
  FaultEnv env;
  ASSERT_TRUE(ExportWeights(env, "/out", *run.model, {}).ok());
  auto own = SafetensorsFile::Open(env, "/out/model.safetensors");
  auto start = SafetensorsFile::Open(Env::Posix(), Folder(family) + "/start/model.safetensors");
  auto end = SafetensorsFile::Open(Env::Posix(), Folder(family) + "/bitfit/merged.safetensors");
  ASSERT_TRUE(own.ok() && start.ok() && end.ok());
  ASSERT_NO_FATAL_FAILURE(ExpectTensors(*own, *end));
  for (const SafetensorsView& tensor : start->tensors()) {
    const SafetensorsView* const same = own->Find(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    const SafetensorsView* const trained = end->Find(tensor.name);
    if (trained == nullptr) {
      EXPECT_TRUE(std::ranges::equal(same->bytes, tensor.bytes)) << tensor.name;
    } else if (!HasNoGradient(tensor.name)) {
      EXPECT_GT(RelativeError(FloatsOf(tensor), FloatsOf(*trained)), 1e-3) << tensor.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, BitFitParity, ::testing::Values("bert_mlm", "gpt2", "vit"),
                         [](const auto& test) { return std::string(test.param); });

/// The network that makes the virtual tokens of a fixture, whose layers of peft have these names,
/// and what is trained whole besides.
void LoadEncoder(const std::string& adapter, const std::string& name, Model& model) {
  const std::string folder = Folder(adapter) + "/" + name;
  auto file = SafetensorsFile::Open(Env::Posix(), folder + "/encoder.safetensors");
  auto saved = SafetensorsFile::Open(Env::Posix(), folder + "/adapter_model.safetensors");
  WEFT_CHECK(file.ok() && saved.ok(), folder);
  ParameterSet& parameters = model.parameters();
  size_t projected[2] = {0, 0};  // numbers of the projection that all layers have together
  for (int64_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].frozen) continue;
    const bool whole = parameters[p].adapter == AdapterSide::kNone;
    std::string tensor = parameters[p].name.substr(parameters[p].name.find('.') + 1);
    const auto count = static_cast<size_t>(parameters[p].shape.Elements());
    size_t first = 0;
    if (whole) {
      tensor = "base_model." + parameters[p].name;
    } else if (parameters[p].block >= 0) {
      tensor = parameters[p].bias ? "transform.2.bias" : "transform.2.weight";
      size_t& done = projected[parameters[p].bias ? 1 : 0];
      first = done;
      done += count;
    }
    const SafetensorsView* const view = whole ? saved->Find(tensor) : file->Find(tensor);
    WEFT_CHECK(view != nullptr && view->bytes.size() >= (first + count) * sizeof(float), tensor);
    std::memcpy(parameters.value(p).data, view->bytes.data() + first * sizeof(float),
                count * sizeof(float));
  }
}

/// A base model with virtual tokens of peft.
struct RecordedVirtualTokens : TinyRun {
  RecordedVirtualTokens(const std::string& adapter, const std::string& name)
      : TinyRun(SpecOf(adapter), {&kFp32Precision, true, {}}) {
    const std::string base = RecordedAdapter::FamilyOf(adapter);
    Status status = ImportWeights(Env::Posix(), Folder(base) + "/start", *model);
    if (status.ok() && model->spec().peft.encoder_hidden_size > 0) {
      LoadEncoder(adapter, name, *model);
    } else if (status.ok()) {
      status = ImportAdapterWeights(Env::Posix(), Folder(adapter) + "/" + name, *model);
    }
    WEFT_CHECK(status.ok(), status.message());
    WEFT_CHECK(model->Pack(context).ok(), "pack");
  }
  static ModelSpec SpecOf(const std::string& adapter) {
    ModelSpec spec = RecordedAdapter::SpecOf(adapter);
    const bool encodes = adapter.ends_with("p_tuning");
    if (encodes) spec.peft.method = "p_tuning";
    spec.peft.prefix_projection = adapter.ends_with("projected_prefix");
    if (encodes || spec.peft.prefix_projection) spec.peft.encoder_hidden_size = 24;
    return spec;
  }
};

/// 20 steps from the recorded start end at the recorded end, and are written as peft writes them.
void ExpectTrainsVirtualTokensAsRecorded(const std::string& adapter) {
  RecordedVirtualTokens run(adapter, "start");
  const std::string family = RecordedAdapter::FamilyOf(adapter);
  const bool padded = adapter.starts_with(family + "/padded_");
  ASSERT_NO_FATAL_FAILURE(
      TrainTwentySteps(run, padded ? RecordedDocuments(family) : RecordedBatch(family)));
  const RecordedVirtualTokens start(adapter, "start"), expected(adapter, "trained");
  const ParameterSet& parameters = run.model->parameters();
  for (int64_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].frozen) continue;
    const TensorView end = expected.model->parameters().value(p);
    EXPECT_LT(RelativeError(parameters.value(p), end), 1e-4) << parameters[p].name;
    EXPECT_GT(RelativeError(start.model->parameters().value(p), end), 1e-4) << parameters[p].name;
  }
  // Its folder has what peft's has.
  FaultEnv env;
  ASSERT_TRUE(ExportAdapterWeights(env, "/out", *run.model).ok());
  auto own = SafetensorsFile::Open(env, "/out/adapter_model.safetensors");
  auto of_peft =
      SafetensorsFile::Open(Env::Posix(), Folder(adapter) + "/trained/adapter_model.safetensors");
  ASSERT_TRUE(own.ok() && of_peft.ok());
  ASSERT_EQ(own->tensors().size(), of_peft->tensors().size());
  ExpectTensors(*own, *of_peft);
}

class VirtualTokenParity : public ::testing::TestWithParam<const char*> {};

TEST_P(VirtualTokenParity, TwentyStepsEndAtTheVectorsThatPeftTrains) {
  const std::vector<std::string> adapters = CasesOf(GetParam(), /*virtual_tokens=*/true);
  ASSERT_FALSE(adapters.empty());
  for (const std::string& adapter : adapters) {
    SCOPED_TRACE(adapter);
    ASSERT_NO_FATAL_FAILURE(ExpectTrainsVirtualTokensAsRecorded(adapter));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, VirtualTokenParity,
                         ::testing::Values("bert_classes", "bert_mlm", "gpt2", "llama", "mistral",
                                           "mixtral", "qwen2"),
                         [](const auto& test) { return std::string(test.param); });

/// The products B A of the factors of every adapted layer, one after the other.
std::vector<float> ProductsOfFactors(const TinyRun& run) {
  const ParameterSet& parameters = run.model->parameters();
  std::vector<float> products;
  for (int64_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].adapter != AdapterSide::kInput) continue;
    const int64_t rank = parameters[p].shape[0], in = parameters[p].shape[1];
    const int64_t out = parameters[p + 1].shape[0];
    const float* const a = parameters.value(p).As<float>();
    const float* const b = parameters.value(p + 1).As<float>();
    for (int64_t i = 0; i < out; ++i) {
      std::vector<float> row(static_cast<size_t>(in), 0.0f);
      for (int64_t k = 0; k < rank; ++k) {
        for (int64_t c = 0; c < in; ++c) row[c] += b[i * rank + k] * a[k * in + c];
      }
      products.insert(products.end(), row.begin(), row.end());
    }
  }
  return products;
}

/// The numbers of the one tensor of a file.
std::vector<float> FloatsOfFile(const std::string& path) {
  auto file = SafetensorsFile::Open(Env::Posix(), path);
  WEFT_CHECK(file.ok() && file->tensors().size() == 1, path);
  const TensorView floats = FloatsOf(file->tensors().front());
  return {floats.As<float>(), floats.As<float>() + floats.shape.Elements()};
}

// make_old_adapter_fixtures.py recorded them.
TEST(OldPeftParity, LogitsWithAdaptersOfOldVersionsAreTheirOwn) {
  std::vector<std::string> adapters;
  for (const std::string version : {"peft_0_8", "peft_0_13"}) {
    auto names = Env::Posix().ListDir(Folder(version));
    ASSERT_TRUE(names.ok()) << names.status().message();
    ASSERT_FALSE(names->empty());
    for (const std::string& name : *names) adapters.push_back(version + "/" + name);
  }
  for (const std::string& adapter : adapters) {
    SCOPED_TRACE(adapter);
    const std::string name = adapter.substr(adapter.find('/') + 1), folder = Folder(adapter);
    const std::string family = name.substr(0, name.find('_'));
    ModelSpec spec = FileSpec(family);
    auto peft = ReadAdapterConfig(Env::Posix(), folder, spec);
    ASSERT_TRUE(peft.ok()) << peft.status().message();
    spec.peft = *peft;
    TinyRun run(spec, {&kFp32Precision, false, {}});
    ASSERT_TRUE(ImportWeights(Env::Posix(), Folder(family) + "/start", *run.model).ok());
    const Status read = ImportAdapterWeights(Env::Posix(), folder, *run.model);
    ASSERT_TRUE(read.ok()) << read.message();
    ASSERT_TRUE(run.model->Pack(run.context).ok());
    const Batch batch = RecordedBatch(family);
    const std::vector<float> logits = run.Logits(batch);
    const std::vector<float> expected = FloatsOfFile(folder + "/logits.safetensors");
    const size_t last = expected.size() * static_cast<size_t>(batch.length - 1);
    ASSERT_GT(logits.size(), last + expected.size());
    EXPECT_LT(RelativeError(logits.data() + last, expected.data(), expected.size()), 1e-5);
  }
}

// The signs of singular vectors are free; the products of the factors are not.
TEST(PeftParityStarts, FromWeightsAreThoseOfPeft) {
  for (const std::string family :
       {"bert_mlm", "gpt2", "llama", "mistral", "mixtral", "qwen2", "vit"}) {
    for (const std::string& adapter : CasesOf(family, /*virtual_tokens=*/false)) {
      if (!adapter.ends_with("/pissa") && !adapter.ends_with("/olora")) continue;
      SCOPED_TRACE(adapter);
      const RecordedAdapter own(adapter, ""), of_peft(adapter, "start");
      const std::vector<float> mine = ProductsOfFactors(own), theirs = ProductsOfFactors(of_peft);
      ASSERT_EQ(mine.size(), theirs.size());
      ASSERT_GT(mine.size(), 0u);
      EXPECT_LT(RelativeError(mine.data(), theirs.data(), mine.size()), 1e-4);
    }
  }
}

}  // namespace
}  // namespace weft::engine
