#include "common/formats/base_tensors.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::Contains;
using testing::IsEmpty;
using testing::Not;

ModelSpec ModelWithLora() {
  ModelSpec model;
  model.layers = 2;
  model.width = 32;
  model.heads = 4;
  model.vocab_size = 67;
  model.context = 24;
  model.import_path = "/base";
  model.peft.method = "lora";
  return model;
}

std::vector<std::string> NamesOf(const ModelSpec& model) {
  return BaseTensors(model, HeadWeights::kFromFile);
}

TEST(BaseTensors, AreAllFrozenWeightsOfTheFolder) {
  const ModelSpec lora = ModelWithLora();
  std::vector<std::string> in_files;
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(lora)) {
    in_files.push_back(tensor.parameter);
  }
  EXPECT_THAT(NamesOf(lora), testing::UnorderedElementsAreArray(in_files));
  // Factors that nothing trains are in no folder.
  ModelSpec vera = lora;
  vera.peft.method = "vera";
  EXPECT_EQ(NamesOf(vera), NamesOf(lora));
  // What is quantised is made of the folder, too.
  ModelSpec quantized = lora;
  quantized.weight_quantization.type = "nf4";
  EXPECT_EQ(NamesOf(quantized), NamesOf(lora));
}

TEST(BaseTensors, AreNoneThatAreTrained) {
  ModelSpec model = ModelWithLora();
  model.peft.modules_to_save = {"ln_f"};
  EXPECT_THAT(NamesOf(model), Not(Contains("transformer.ln_f.weight")));
  EXPECT_THAT(NamesOf(model), Contains("transformer.h.0.ln_1.weight"));
}

TEST(BaseTensors, AreNoneThatBeginOtherwiseThanInTheFolder) {
  ModelSpec decomposed = ModelWithLora();
  for (const char* init : {"pissa", "olora"}) {
    decomposed.peft.init = init;
    EXPECT_THAT(NamesOf(decomposed), IsEmpty()) << init;
  }
  ModelSpec random = ModelWithLora();
  random.import_path = "";
  EXPECT_THAT(NamesOf(random), IsEmpty());
  ModelSpec head = ModelWithLora();
  head.family = "bert";
  head.head = "classification";
  head.classes = 3;
  EXPECT_THAT(NamesOf(head), Contains("classifier.weight"));
  const std::vector<std::string> body = BaseTensors(head, HeadWeights::kLeaveAsTheyAre);
  EXPECT_THAT(body, Not(Contains("classifier.weight")));
  EXPECT_THAT(body, Contains("bert.embeddings.word_embeddings.weight"));
}

TEST(BaseTensors, AreNoneOfAJobThatFreezesByName) {
  ModelSpec model = ModelWithLora();
  model.peft.method = "none";
  model.freeze = {"transformer.h.*"};
  EXPECT_THAT(NamesOf(model), IsEmpty());
}

}  // namespace
}  // namespace weft
