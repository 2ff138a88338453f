// Every operation that a tape records: its result and its backward pass in f32 against a forward
// pass written down in float64 and the central differences of that, over shapes drawn from a fixed
// seed: sides of 1, odd ones, and ones around the width of vectors.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/parallel.h"
#include "worker/engine/models/gradient_problems.h"
#include "worker/engine/nn/token_batch.h"
#include "worker/engine/testing/parameter_values.h"

namespace weft::engine {
namespace {

void ExpectNear(const Doubles& got, const Doubles& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << what;
    difference += std::pow(got[i] - want[i], 2);
    norm += want[i] * want[i];
  }
  const double room = 3e-5 * std::sqrt(norm) + 3e-6 * std::sqrt(static_cast<double>(got.size()));
  EXPECT_LT(std::sqrt(difference), room) << what;
}

Doubles AsDoubles(const TensorView& view) {
  const std::vector<float> values = ValuesOf(view);
  return {values.begin(), values.end()};
}

/// How the problem's operation and its reference, differentiated by central differences, compare.
void Check(const Problem& p, Sides& sides, Allocator& allocator) {
  kernels::cpu::SetThreads(1);
  Context context;
  context.allocator = &allocator;
  ASSERT_TRUE(p.parameters->Allocate(context, true).ok());
  std::vector<Matrix> values = p.inputs;
  for (int64_t i = 0; i < p.parameters->size(); ++i) {
    const Shape& shape = (*p.parameters)[i].shape;
    values.push_back(sides.Normal(shape.Rows(), shape[-1]));
    std::copy(values.back().values.begin(), values.back().values.end(),
              p.parameters->value(i).As<float>());
  }
  const Status prepared = p.prepare(context);
  ASSERT_TRUE(prepared.ok()) << prepared.message();

  ParameterGradients gradients(p.parameters->DifferentiatedGradients());
  gradients.StartStep();
  gradients.StartPass({});
  Tape tape(&gradients);
  std::vector<Value> inputs;
  for (const Matrix& input : p.inputs) {
    inputs.push_back(tape.NewValue(NewTensor(context, input), true));
  }
  auto outputs = p.run(context, tape, inputs);
  ASSERT_TRUE(outputs.ok()) << outputs.status().message();
  const std::vector<Matrix> expected = p.reference(values);
  ASSERT_EQ(outputs->size(), expected.size());
  std::vector<Matrix> weights;  // of the sum over all outputs whose gradient is looked at
  for (size_t i = 0; i < expected.size(); ++i) {
    ExpectNear(AsDoubles((*outputs)[i].tensor), expected[i].values, "output " + std::to_string(i));
    weights.push_back(sides.Normal(expected[i].rows, expected[i].columns));
    if (p.loss_scale != 0) {
      weights[i].values[0] = p.loss_scale;
    } else {
      ASSERT_TRUE(
          tape.AddGradient(context, (*outputs)[i].node, NewTensor(context, weights[i])).ok());
    }
  }
  ASSERT_TRUE(tape.RunBackward(context).ok());
  ASSERT_TRUE(gradients.FinishPass(context).ok());

  const auto sum = [&] {
    double total = 0;
    const std::vector<Matrix> out = p.reference(values);
    for (size_t i = 0; i < out.size(); ++i) {
      for (size_t e = 0; e < out[i].values.size(); ++e) {
        total += out[i].values[e] * weights[i].values[e];
      }
    }
    return total;
  };
  for (size_t v = 0; v < values.size(); ++v) {
    const bool input = v < inputs.size();
    const auto parameter = static_cast<int64_t>(v - inputs.size());
    Doubles slopes;
    for (double& value : values[v].values) {
      constexpr double kStep = 1e-5;
      const double start = value;
      value = start + kStep;
      const double above = sum();
      value = start - kStep;
      slopes.push_back((above - sum()) / (2 * kStep));
      value = start;
    }
    if (input) {
      const Tensor gradient = tape.TakeGradient(inputs[v].node);
      ASSERT_TRUE(static_cast<bool>(gradient)) << "no gradient of input " << v;
      ExpectNear(AsDoubles(gradient), slopes, "gradient of input " + std::to_string(v));
    } else {
      ExpectNear(AsDoubles(p.parameters->gradient(parameter)), slopes,
                 "gradient of " + (*p.parameters)[parameter].name);
    }
  }
}

TEST(GradientCheck, EveryOperationAgreesWithCentralDifferencesOfItsFloat64Forward) {
  constexpr int kVariants = 6;
  for (const Operation& operation : Operations()) {
    for (int variant = 0; variant < kVariants; ++variant) {
      Sides sides(variant);
      Allocator allocator;
      const Problem problem = operation.make(sides);
      std::string shapes;
      for (const Matrix& input : problem.inputs) {
        shapes += " " + std::to_string(input.rows) + "x" + std::to_string(input.columns);
      }
      SCOPED_TRACE(operation.name + shapes);
      Check(problem, sides, allocator);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

std::string TextOf(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(GradientCheck, ListsEveryOperationThatTheEngineRecords) {
  std::set<std::string> recorded;
  const std::filesystem::path engine = WEFT_SOURCE_DIR "/worker/engine";
  const std::regex record(R"re(Record\(\s*"([^"]+)")re");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(engine)) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".cc") || name.ends_with("_test.cc")) continue;
    const std::string text = TextOf(entry.path());
    size_t calls = 0, named = 0;
    for (size_t at = text.find(".Record("); at != std::string::npos;
         at = text.find(".Record(", at + 1)) {
      ++calls;
    }
    for (std::sregex_iterator it(text.begin(), text.end(), record), end; it != end; ++it) {
      recorded.insert((*it)[1]);
      ++named;
    }
    EXPECT_EQ(calls, named) << entry.path() << " records an operation without a literal name";
  }
  std::set<std::string> listed;
  for (const Operation& operation : Operations()) listed.insert(operation.recorded);
  // Between ranks: techniques/parallel/tensor_parallel_test.cc compares their gradients with one
  // rank's.
  listed.insert({"enter shards", "leave shards"});
  // They bring values and take them away: train/sharded_training_test.cc compares the bits with
  // those of a rank that holds all.
  listed.insert({"fetch parameters", "release parameters"});
  // Likewise what was saved: techniques/offload/activation_offload_test.cc.
  listed.insert("fetch activations");
  // Gradients that are zero: graft_test.cc compares with a branch times zero.
  listed.insert("skipped branch");
  // They need a network with a table: techniques/peft/token_adapters_test.cc has their slopes.
  listed.insert({"token adapter backward", "trained tokens backward"});
  // Images of another size than the table's: resized_positions_test.cc has its gradient.
  listed.insert("resized positions backward");
  // Blocks in the order of a plan of recomputation: decoder_test.cc compares the bits.
  listed.insert("block");
  EXPECT_EQ(listed, recorded) << "Operations() has a row for each";
}

TEST(GradientCheck, KnowsWhereEveryKernelIsDifferentiated) {
  // By folder of kernels/: an operation above that runs it, or why there is none.
  const std::map<std::string, std::string> kernels = {
      {"activation", "gelu backward"},
      {"adafactor", "an update"},
      {"affine", "affine backward"},
      {"attention", "attention backward"},
      {"attention_part", "between ranks: techniques/parallel/context_parallel_test.cc"},
      {"block_sparse", "linear backward: techniques/structured_matrices has its gradients"},
      {"cayley", "linear backward: techniques/peft has its gradients"},
      {"cross_entropy", "head backward"},
      {"dropout", "dropout backward"},
      {"elementwise", "add backward"},
      {"embedding", "embedding backward"},
      {"gather_rows", "gather rows backward"},
      {"group_quantize", "rounds what blocks keep"},
      {"hadamard", "linear backward: techniques/peft has its gradients"},
      {"layer_norm", "norm backward"},
      {"linear", "linear backward"},
      {"linear_fp8", "linear backward, whose rounding differs"},
      {"logit_penalty", "head backward: techniques/value_learning has its gradients"},
      {"masked_norm", "norm backward"},
      {"moe_combine", "experts backward"},
      {"moe_route", "experts backward"},
      {"norm_part", "between ranks: kernels/norm_part/norm_part_test.cc has that of one norm"},
      {"norm_stat", "a measurement"},
      {"optimizer", "an update"},
      {"orthogonalize", "an update"},
      {"patches", "reads images, which nobody trains"},
      {"quantize_4bit", "quantised frozen weights"},
      {"quantize_fp8", "rounds what products read"},
      {"quantize_int8", "codes that no layer reads yet"},
      {"rms_norm", "norm backward"},
      {"rope", "attention backward"},
      {"sparse24", "linear backward, whose weight gradients are estimates"},
      {"sparse24_decay", "an update"},
      {"sparse24_mask", "masks of weights, which have no gradient"},
      {"sparse24_mvue", "an estimate of gradients"},
      {"step_totals", "a measurement"},
      {"stochastic_round", "an update"},
      {"swap_blocks", "linear backward: techniques/structured_matrices has its gradients"},
      {"swiglu", "mlp backward"},
  };
  const std::string cmake = TextOf(WEFT_SOURCE_DIR "/kernels/CMakeLists.txt");
  const size_t begin = cmake.find("set(WEFT_OPS"), end = cmake.find(')', begin);
  std::stringstream list(cmake.substr(begin + 12, end - begin - 12));
  std::set<std::string> built, known;
  for (std::string name; list >> name;) built.insert(name);
  for (const auto& [name, how] : kernels) known.insert(name);
  EXPECT_EQ(known, built);
}

TEST(TokenBatchTest, AnEmptyBatchIsRefused) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  for (const auto& [sequences, length] : {std::pair<int64_t, int64_t>{0, 8}, {0, 0}, {3, 0}}) {
    Batch batch;
    batch.sequences = sequences;
    batch.length = length;
    batch.sequence_starts = {0};
    const Status status = TokenBatch::New(context, batch, 0).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("is empty"));
  }
}

}  // namespace
}  // namespace weft::engine
