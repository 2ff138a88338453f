#include <algorithm>

#include "kernels/embedding/embedding.h"
#include "kernels/embedding/embedding_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

struct Geometry {
  int64_t count;
  int64_t vocabulary;
  int64_t context;  ///< 0: no positions.
  int64_t width;
  int64_t first_row = 0;  ///< Of the token table, when it is a part ...
  int64_t part_rows = 0;  ///< ... of this many rows; 0: it is the whole.

  bool partial() const { return part_rows > 0; }
  int64_t TokenRows() const { return partial() ? part_rows : vocabulary; }
  EmbeddingPart Part() const { return {first_row, partial() ? vocabulary : 0}; }

  /// Rows of both tables that are touched, nearly: each once, however often its index comes.
  int64_t TableRows() const { return std::min(count, vocabulary) + std::min(count, context); }
};

std::string NameOf(const char* op, const Geometry& g, DType dtype) {
  return std::string(op) + "/" + std::to_string(g.count) + "of" + std::to_string(g.vocabulary) +
         "x" + std::to_string(g.width) + (g.partial() ? "+part" : "") +
         (g.context > 0 ? "+positions/" : "/") + std::string(DTypeName(dtype));
}

std::vector<int32_t> Indices(const TestTensor& tensor) {
  std::vector<double> values = tensor.InitialValues();
  return {values.begin(), values.end()};
}

/// The whole table or its gradient, zero where another part has the rows.
std::vector<double> Whole(const Geometry& g, const std::vector<double>& part) {
  std::vector<double> whole(static_cast<size_t>(g.vocabulary * g.width));
  std::copy(part.begin(), part.end(), whole.begin() + g.first_row * g.width);
  return whole;
}

TestTensor& MakeIndices(OpRun& run, int64_t count, int64_t limit) {
  return run.tensors.emplace_back(DType::kI32, Shape{count}).RandomIntegers(run.rng, 0, limit);
}

OpCase ForwardCase(const Geometry& g, DType dtype, DType table_type, CaseUse use) {
  return {NameOf("embedding_forward", g, dtype) + "/from_" + std::string(DTypeName(table_type)),
          use, [=](OpRun& run) {
            bool with_positions = g.context > 0;
            TestTensor& tokens = MakeIndices(run, g.count, g.vocabulary);
            TestTensor& positions = MakeIndices(run, g.count, std::max<int64_t>(g.context, 1));
            TestTensor& table = run.Input(table_type, {g.TokenRows(), g.width});
            TestTensor& position_table = run.Input(table_type, {g.context, g.width});
            TestTensor& out = run.Output(
                "out", dtype, {g.count, g.width}, 0, 1,
                [=, &tokens, &positions, &table, &position_table] {
                  return ref::Embedding(
                      Indices(tokens), with_positions ? Indices(positions) : std::vector<int32_t>(),
                      Whole(g, table.InitialValues()), position_table.InitialValues(), g.width);
                });
            EmbeddingForwardArgs args;
            args.tokens = tokens.view();
            args.token_table = table.view();
            args.part = g.Part();
            if (with_positions) {
              args.positions = positions.view();
              args.position_table = position_table.view();
            }
            args.out = out.view();
            run.run = [args](const Stream& stream) { return EmbeddingForward(stream, args); };
            run.bytes = static_cast<double>(out.view().Bytes()) +
                        static_cast<double>(g.TableRows() * g.width * DTypeSize(table_type));
          }};
}

OpCase BackwardCase(const Geometry& g, DType dtype, CaseUse use) {
  return {NameOf("embedding_backward", g, dtype), use, [=](OpRun& run) {
            TestTensor& tokens = MakeIndices(run, g.count, g.vocabulary);
            TestTensor& positions = MakeIndices(run, g.count, std::max<int64_t>(g.context, 1));
            TestTensor& dout = run.Input(dtype, {g.count, g.width});
            TestTensor& dtable = run.Input(DType::kF32, {g.TokenRows(), g.width});
            auto add = [=, &dout](const TestTensor& indices, std::vector<double> sum) {
              ref::EmbeddingBackward(Indices(indices), dout.InitialValues(), g.width, sum);
              return sum;
            };
            run.Check("dtoken_table", dtable, g.count, [=, &tokens, &dtable] {
              const std::vector<double> sum = add(tokens, Whole(g, dtable.InitialValues()));
              const auto begin = sum.begin() + g.first_row * g.width;
              return std::vector<double>(begin, begin + g.TokenRows() * g.width);
            });
            EmbeddingBackwardArgs args;
            args.tokens = tokens.view();
            args.dout = dout.view();
            args.dtoken_table = dtable.view();
            args.part = g.Part();
            if (g.context > 0) {
              TestTensor& dposition = run.Input(DType::kF32, {g.context, g.width});
              run.Check("dposition_table", dposition, g.count, [=, &positions, &dposition] {
                return add(positions, dposition.InitialValues());
              });
              args.positions = positions.view();
              args.dposition_table = dposition.view();
            }
            run.run = [args](const Stream& stream) { return EmbeddingBackward(stream, args); };
            run.bytes = static_cast<double>(dout.view().Bytes()) +
                        2.0 * sizeof(float) * static_cast<double>(g.TableRows() * g.width);
          }};
}

}  // namespace

std::vector<OpCase> EmbeddingCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kFloatTypes) {
    auto add = [&](const Geometry& g, CaseUse use) {
      for (DType table : kMatrixTypes) cases.push_back(ForwardCase(g, dtype, table, use));
      cases.push_back(BackwardCase(g, dtype, use));
    };
    add({0, 5, 0, 8}, CaseUse::kTest);
    add({1, 5, 3, 1}, CaseUse::kTest);
    add({40, 7, 9, 33}, CaseUse::kTest);
    add({900, 50, 128, 70}, CaseUse::kTest);
    add({900, 3, 0, 70}, CaseUse::kTest);
    add({40, 7, 9, 33, 2, 3}, CaseUse::kTest);
    add({900, 50, 0, 24, 38, 12}, CaseUse::kTest);
    // More tokens than a CUDA kernel sorts at a time, and rows of whole 16 bytes.
    add({5000, 50, 0, 24}, CaseUse::kTest);
    add({2048, 50304, 1024, 384}, CaseUse::kSpeed);
    add({2048, 50304, 1024, 768}, CaseUse::kSpeed);
    if (dtype == DType::kBF16) add({65536, 50304, 1024, 1600}, CaseUse::kDeviceSpeed);
  }
  return cases;
}

}  // namespace weft::kernels::testing
