// Exports of each family with each kind of tokenizer, imported again: the model and the tokenizer
// must be the same. With WEFT_EXPORTS=DIR the folders stay there, with what the engine makes of
// texts and images, for check_exports.py, which uses them in transformers and records what it found
// equal. Else the files and what the engine makes of them must be as in that record.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/chat_template.h"
#include "common/formats/huggingface.h"
#include "common/formats/image.h"
#include "common/formats/tokenizer_training.h"
#include "common/formats/usage_files.h"
#include "common/json.h"
#include "common/sha256.h"
#include "tests/parity/export_record.h"
#include "worker/engine/models/generate.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

struct ExportCase {
  std::string name;
  std::string family;
  /// A file or folder of common/formats/testdata/tokenizers; "": trained here.
  std::string tokenizer;
  int texts = 1;  ///< In a row; 0: images.
  std::function<void(ModelSpec&)> change = [](ModelSpec&) {};
  bool chat = false;      ///< The tokenizer is given the chat template of ChatML.
  bool imported = false;  ///< Its folder says how the model that training began with is used.
  bool resized = false;   ///< Images are larger than the model's.
};

void Classify(ModelSpec& model) {
  model.head = "classification";
  model.classes = 3;
}

void ClassifyColours(ModelSpec& model) {
  Classify(model);
  model.image_channels = 3;
}

std::vector<ExportCase> Cases() {
  const auto untied = [](ModelSpec& model) { model.untied_classifier = true; };
  return {
      {"gpt2", "gpt2", ""},
      {"gpt2-tiktoken", "gpt2", "llama3/ranks.tiktoken", 1, untied},
      {"gpt2-cl100k", "gpt2", "cl100k/cl100k.tiktoken"},
      {"gpt2-merges", "gpt2", "../gpt2_part"},
      {"llama", "llama", "neox.json"},
      {"llama-unigram", "llama", "unigram.model"},
      {"llama-bpe", "llama", "bpe.model"},
      {"llama-defined-unigram", "llama", "defined_unigram.model"},
      {"llama-defined-bpe", "llama", "defined_bpe.model"},
      {"llama-defined-spaces", "llama", "defined_spaces.model"},
      {"llama-first", "llama", "llama_first"},
      {"llama-no-prefix", "llama", "llama_no_prefix"},
      {"llama-t5-first", "llama", "t5_first"},
      {"llama-t5", "llama", "t5.json", 1, untied},
      {"llama-unigram-bytes", "llama", "unigram_bytes.json"},
      {"llama-unigram-added", "llama", "unigram_added"},
      {"llama-llama2", "llama", "llama2.json"},
      {"llama-imported", "llama", "llama2_chat", 1, untied, /*chat=*/false, /*imported=*/true},
      {"llama-imported-chat", "llama", "llama3_chat", 1, untied, /*chat=*/false, /*imported=*/true},
      {"llama-smollm", "llama", "smollm.json"},
      {"llama-o200k", "llama", "o200k.json"},
      {"llama-chat", "llama", "../chat_templates/bytes.json", 1, untied, /*chat=*/true},
      {"mistral", "llama", "bpe.model", 1, [](ModelSpec& model) { model.sliding_window = 7; }},
      {"mixtral", "llama", "unigram.model", 1,
       [](ModelSpec& model) {
         model.experts = 4;
         model.experts_per_token = 2;
       }},
      {"qwen2", "llama", "qwen2.json", 1, [](ModelSpec& model) { model.qkv_bias = true; }},
      {"bert-masked", "bert", "bert.json"},
      {"bert-masked-untied", "bert", "bert_cased.json", 1, untied},
      {"bert-masked-own", "bert", ""},
      {"bert-masked-xlmr", "bert", "xlmr.json"},
      {"bert-masked-roberta", "bert", "roberta"},
      {"bert-classes", "bert", "bert.vocab.txt", 1, Classify},
      {"bert-pairs", "bert", "bert.json", 2, Classify},
      {"bert-pairs-own", "bert", "", 2, Classify},
      {"bert-pairs-unigram", "bert", "unigram.model", 2, Classify},
      {"bert-pairs-bpe", "bert", "bpe.model", 2, Classify},
      {"bert-pairs-xlmr", "bert", "xlmr.json", 2, Classify},
      {"bert-pairs-roberta", "bert", "roberta", 2, Classify},
      {"vit", "vit", "", 0, Classify},
      {"vit-resized", "vit", "", 0, ClassifyColours, /*chat=*/false, /*imported=*/false,
       /*resized=*/true},
  };
}

ModelSpec SpecOf(const ExportCase& c, const Tokenizer* tokenizer) {
  ModelSpec model = TinyModel();
  model.family = c.family;
  model.context = 128;
  if (tokenizer != nullptr) model.vocab_size = tokenizer->vocab_size();
  if (c.family == "vit") {
    model.vocab_size = 0;
    model.image_size = 12;
    model.patch_size = 3;
    model.image_channels = 1;
  }
  if (c.family == "llama") model.mlp_width = 48;
  c.change(model);
  return model;
}

/// Gives every weight a value that is the same on any machine, and so the files the same bytes: an
/// initial value comes from a logarithm, which libraries round differently. Gains stay near 1, but
/// no bias 0, which would hide mistakes.
void SetWeights(Model& model) {
  uint32_t state = 1;
  for (const NamedTensor& parameter : model.parameters().NamedValues()) {
    auto* values = parameter.view.As<float>();
    for (int64_t i = 0; i < parameter.view.shape.Elements(); ++i) {
      state = state * 1664525 + 1013904223;
      const float middle = values[i] == 1 ? 1.0f : 0.0f;
      values[i] = middle + (static_cast<float>(state >> 22) - 512) / 4096;
    }
  }
}

Batch Row(const std::vector<int64_t>& tokens, const std::vector<int32_t>& types) {
  Batch batch;
  batch.sequences = 1;
  batch.length = std::ssize(tokens);
  batch.tokens.assign(tokens.begin(), tokens.end());
  batch.token_types = types;
  for (int32_t i = 0; i < batch.length; ++i) batch.positions.push_back(i);
  batch.sequence_starts = {0, static_cast<int32_t>(batch.length)};
  batch.lengths = {static_cast<int32_t>(batch.length)};
  return batch;
}

/// The tokens of a row as training makes them, except the end of a language model's document.
Batch TextRow(const Tokenizer& tokenizer, const ModelSpec& model,
              const std::vector<std::string>& texts) {
  SequenceForm form = tokenizer.form(texts.size() > 1);
  if (HeadOf(model) == "causal_lm") form.end.clear();
  std::vector<int64_t> tokens = form.begin;
  std::vector<int32_t> types(tokens.size(), 0);
  const auto add = [&](const auto& ids, int32_t type) {
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    types.resize(tokens.size(), type);
  };
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<int32_t> ids;
    EXPECT_TRUE(tokenizer.Encode(texts[i], ids).ok());
    const int32_t type = i == 1 && form.second_type ? 1 : 0;
    add(ids, type);
    add(i + 1 < texts.size() ? form.middle : form.end, type);
  }
  Batch batch = Row(tokens, texts.size() > 1 ? types : std::vector<int32_t>());
  batch.target_count = 1;
  if (HeadOf(model) == "classification") {
    batch.labels = {0};
  } else {
    batch.targets = batch.tokens;
    batch.target_count = batch.length;
  }
  if (HeadOf(model) == "masked_lm") batch.target_rows = batch.positions;
  return batch;
}

/// An image of the model's size; or of twice that, whose border is plain and all else multiples of
/// 64: halved by the triangle filter it is whole numbers, which no two libraries round differently.
Image MadeUpImage(const ModelSpec& model, bool larger, int number) {
  const int64_t side = larger ? 2 * model.image_size : model.image_size;
  Image image{side, side, model.image_channels, {}};
  int64_t i = 0;
  for (int64_t y = 0; y < side; ++y) {
    for (int64_t x = 0; x < side; ++x) {
      const bool border = std::min({x, y, side - 1 - x, side - 1 - y}) < 4;
      for (int64_t c = 0; c < image.channels; ++c, ++i) {
        const int64_t inside = 64 * ((x * 3 + y * 5 + c * 7 + x * y + number) % 4);
        const int64_t exact = border ? 128 : inside;
        image.pixels.push_back(
            static_cast<uint8_t>(larger ? exact : (i * 7 + number * 50 + i * i) % 256));
      }
    }
  }
  return image;
}

/// What the model reads of an image.
Batch ImageRow(const ModelSpec& model, const Image& image) {
  const Image fitted =
      image.width == model.image_size ? image : ResizeSquare(image, model.image_size);
  const int64_t patches = model.image_size / model.patch_size;
  Batch batch = Row(std::vector<int64_t>(static_cast<size_t>(patches * patches + 1)), {});
  batch.tokens.clear();
  const auto channels = static_cast<size_t>(fitted.channels);
  for (size_t c = 0; c < channels; ++c) {
    for (size_t i = c; i < fitted.pixels.size(); i += channels) {
      batch.pixels.push_back((static_cast<float>(fitted.pixels[i]) / 255 - 0.5f) / 0.5f);
    }
  }
  batch.labels = {0};
  batch.target_count = 1;
  return batch;
}

const std::vector<std::vector<std::string>>& Texts() {
  static const std::vector<std::vector<std::string>> texts = {
      {"Kalo the mi, 12!", "An inging to."},
      {"the weaver counts  the threads", "na\xc3\xafve \xe6\x9d\xb1\xe4\xba\xac 1995;"},
      {"Renstatu kalotoing, the mi.\nVel", "a"}};
  return texts;
}

/// SHA-256 of each file of a folder.
Json HashesOf(Env& env, const std::string& folder) {
  Json hashes = Json::object();
  const Result<std::vector<std::string>> names = env.ListDir(folder);
  EXPECT_TRUE(names.ok()) << names.status().message();
  for (const std::string& name : *names) {
    const Result<std::string> content = ReadFile(env, JoinPath(folder, name));
    EXPECT_TRUE(content.ok()) << content.status().message();
    hashes[name] = Sha256Hex(*content);
  }
  return hashes;
}

/// What check_exports.py records of a case: its files, and of `facts` what is small.
Json RecordOf(const Json& facts, Json files) {
  Json record = {{"files", std::move(files)}, {"ids", Json::array()}};
  record["logits"] = SampledLogits(facts.at("rows"));
  for (const Json& row : facts.at("rows")) {
    if (row.contains("ids")) record["ids"].push_back(row.at("ids"));
  }
  for (const char* key : {"stops", "generated", "chat"}) {
    if (facts.contains(key)) record[key] = facts.at(key);
  }
  return record;
}

class ExportsTest : public ::testing::TestWithParam<ExportCase> {
 protected:
  void SetUp() override {
    const char* kept = std::getenv("WEFT_EXPORTS");
    root_ = kept != nullptr ? kept : ::testing::TempDir() + "weft_exports_" + GetParam().name;
    folder_ = JoinPath(root_, GetParam().name);
    if (kept != nullptr) root_.clear();
  }
  void TearDown() override {
    if (root_.empty()) return;
    EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok());
  }

  static std::string TokenizerPath() {
    return WEFT_SOURCE_DIR "/common/formats/testdata/tokenizers/" + GetParam().tokenizer;
  }

  Result<Tokenizer> LoadTokenizer() const {
    Env& env = Env::Posix();
    if (!GetParam().tokenizer.empty()) return Tokenizer::Load(env, TokenizerPath());
    std::vector<DocumentFile> files;
    WEFT_ASSIGN_OR_RETURN(
        DocumentFile file,
        DocumentFile::Open(env, WEFT_SOURCE_DIR "/docs/examples/weaving.txt", {}));
    files.push_back(std::move(file));
    return TrainTokenizer(files, 300,
                          GetParam().family == "bert" ? std::vector<std::string>{"<mask>"}
                                                      : std::vector<std::string>{});
  }

  /// The ids that the model writes after a prompt, up to one of the stops.
  static Json Generated(TinyRun& run, const std::vector<int32_t>& prompt,
                        const std::vector<int32_t>& stops) {
    GenerateOptions generate;
    generate.sampling.temperature = 0;
    generate.max_new_tokens = 12;
    generate.on_token = [&](int32_t token) {
      return std::find(stops.begin(), stops.end(), token) == stops.end();
    };
    const auto tokens =
        Generate(run.context, static_cast<const LanguageModel&>(*run.model), prompt, generate);
    EXPECT_TRUE(tokens.ok()) << tokens.status().message();
    return tokens.ok() ? Json(*tokens) : Json();
  }

  std::string root_, folder_;
};

TEST_P(ExportsTest, AreTheSameModelAndTokenizerWhenImported) {
  const ExportCase& c = GetParam();
  Env& env = Env::Posix();
  std::unique_ptr<Tokenizer> tokenizer;
  if (c.texts > 0) {
    Result<Tokenizer> loaded = LoadTokenizer();
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizer = std::make_unique<Tokenizer>(*std::move(loaded));
    if (c.chat) {
      const Result<ChatTemplate> chat = ChatTemplate::Create(ChatTemplate::ChatMl(), *tokenizer);
      ASSERT_TRUE(chat.ok()) << chat.status().message();
      tokenizer->SetChatTemplate(ChatTemplate::ChatMl(), *chat->EndTokens());
    }
  }
  const ModelSpec spec = SpecOf(c, tokenizer.get());
  TinyRun run(spec, {&kFp32Precision, false, {}});
  SetWeights(*run.model);
  ASSERT_TRUE(run.model->Pack(run.context).ok());

  ExportOptions options;
  options.tokenizer = tokenizer.get();
  if (c.texts == 0) options.preprocessor_json = PreprocessorConfig(spec, DataSpec());
  if (c.imported) {
    const Result<UsageFiles> imported = ReadUsageFiles(env, TokenizerPath());
    ASSERT_TRUE(imported.ok()) << imported.status().message();
    options.imported = *imported;
  }
  const Status exported = ExportWeights(env, JoinPath(folder_, "hf"), *run.model, options);
  ASSERT_TRUE(exported.ok()) << exported.message();

  const std::string hf = JoinPath(folder_, "hf");
  const Result<ModelSpec> again = ReadModelConfig(env, hf, {});
  ASSERT_TRUE(again.ok()) << again.status().message();
  TinyRun imported(*again, {&kFp32Precision, false, {}});
  const Status status = ImportWeights(env, hf, *imported.model);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(imported.model->Pack(imported.context).ok());

  Json facts = {{"texts", c.texts}, {"tokenizer", c.tokenizer}, {"rows", Json::array()}};
  const auto record = [&](Json row, const Batch& batch) {
    const std::vector<float> logits = run.Logits(batch);
    EXPECT_EQ(imported.Logits(batch), logits);
    row["logits"] = logits;
    facts["rows"].push_back(std::move(row));
  };
  if (c.texts == 0) {
    for (int number = 0; number < 3; ++number) {
      const Image image = MadeUpImage(spec, c.resized, number);
      record({{"pixels", image.pixels}, {"channels", image.channels}}, ImageRow(spec, image));
    }
  } else {
    const Result<Tokenizer> reread = Tokenizer::Load(env, hf);
    ASSERT_TRUE(reread.ok()) << reread.status().message();
    for (const auto& pair : Texts()) {
      const std::vector<std::string> texts(pair.begin(), pair.begin() + c.texts);
      const Batch batch = TextRow(*tokenizer, spec, texts);
      EXPECT_EQ(TextRow(*reread, spec, texts).tokens, batch.tokens);
      record({{"texts", texts}, {"ids", batch.tokens}, {"types", batch.token_types}}, batch);
    }
    if (const std::string& own = tokenizer->config().chat_template; !own.empty()) {
      EXPECT_EQ(reread->config().chat_template, own);
      EXPECT_EQ(reread->roles().stops, tokenizer->roles().stops);
      EXPECT_GE(reread->roles().stops.size(), 2u);
      const ChatTemplate chat = *ChatTemplate::Create(reread->config().chat_template, *reread);
      const std::string question = R"([{"role": "system", "content": "Be brief."},
                                       {"role": "user", "content": "na\u00efve? "}])";
      const std::vector<int32_t> prompt =
          *chat.EncodePrompt(*Conversation::FromJson(question, /*tools=*/""), {});
      facts["chat"] = {{"messages", *ParseJson(question)},
                       {"ids", prompt},
                       {"generated", Generated(run, prompt, tokenizer->roles().stops)}};
    }
  }
  if (HeadOf(spec) == "causal_lm") {
    const std::vector<int64_t>& begin = tokenizer->form(/*pair=*/false).begin;
    std::vector<int32_t> prompt(begin.begin(), begin.end());
    ASSERT_TRUE(tokenizer->Encode(Texts()[0][0], prompt).ok());
    facts["prompt"] = Texts()[0][0];
    facts["stops"] = tokenizer->roles().stops;
    facts["generated"] = Generated(run, prompt, tokenizer->roles().stops);
  }
  Json made = RecordOf(facts, HashesOf(env, hf));
  if (!root_.empty()) {
    ExpectAsRecorded(c.name, std::move(made), 5e-5f);
    return;
  }
  facts["record"] = std::move(made);
  ASSERT_TRUE(WriteFileAtomic(env, JoinPath(folder_, "facts.json"), facts.dump() + "\n").ok());
}

INSTANTIATE_TEST_SUITE_P(Families, ExportsTest, ::testing::ValuesIn(Cases()), [](const auto& test) {
  std::string name = test.param.name;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace weft::engine
