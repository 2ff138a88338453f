#include "worker/engine/growth/learned_growth.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "kernels/linear/linear.h"
#include "kernels/optimizer/optimizer.h"

namespace weft::engine {
namespace {

constexpr int64_t kTransposeTile = 32;

TensorView ViewOf(const GrowthMatrix& matrix) {
  return {const_cast<float*>(matrix.values.data()), DType::kF32, {matrix.rows, matrix.columns}};
}

GrowthMatrix Transposed(const GrowthMatrix& matrix) {
  GrowthMatrix transposed = GrowthMatrix::Zero(matrix.columns, matrix.rows);
  for (int64_t tile = 0; tile < matrix.rows; tile += kTransposeTile) {
    const int64_t end = std::min(tile + kTransposeTile, matrix.rows);
    for (int64_t j = 0; j < matrix.columns; ++j) {
      for (int64_t i = tile; i < end; ++i) {
        transposed.values[static_cast<size_t>(j * matrix.rows + i)] =
            matrix.values[static_cast<size_t>(i * matrix.columns + j)];
      }
    }
  }
  return transposed;
}

/// `count` rows from `first` on.
GrowthMatrix RowsOf(const GrowthMatrix& matrix, int64_t first, int64_t count) {
  const auto begin = matrix.values.begin() + first * matrix.columns;
  return {count, matrix.columns, {begin, begin + count * matrix.columns}};
}

/// Adds the rows of `below`.
void Append(const GrowthMatrix& below, GrowthMatrix& matrix) {
  matrix.rows += below.rows;
  matrix.columns = below.columns;
  matrix.values.insert(matrix.values.end(), below.values.begin(), below.values.end());
}

void AddTo(const GrowthMatrix& more, GrowthMatrix& sum) {
  std::transform(more.values.begin(), more.values.end(), sum.values.begin(), sum.values.begin(),
                 std::plus<>());
}

int64_t ColumnCount(const ParameterInfo& parameter) {
  return parameter.Elements() / parameter.shape[0];
}

}  // namespace

Result<LearnedGrowth> LearnedGrowth::New(const ModelSpec& from, const ModelSpec& to,
                                         const GrowthSpec& growth, const OldTensors& old) {
  LearnedGrowth learned(from, to);
  OldPlaces places;
  std::map<int64_t, int64_t> count;
  for (const ParameterInfo& parameter : ParametersOf(from)) {
    places.emplace(parameter.name, std::pair(parameter, count[parameter.block]++));
    WEFT_ASSIGN_OR_RETURN(const std::vector<double> values,
                          old(GrownFrom::kPhaseBefore, parameter.name));
    if (std::ssize(values) != parameter.Elements()) {
      return InvalidError("the tensor " + parameter.name + " has " + std::to_string(values.size()) +
                          " numbers, growth is from " + std::to_string(parameter.Elements()));
    }
    learned.old_[parameter.name] = {
        parameter.shape[0], ColumnCount(parameter), {values.begin(), values.end()}};
  }
  const GrowthOperator start(from, to, growth);
  bool stacked = false;  // the weight that a bias comes after
  for (ParameterInfo& parameter : ParametersOf(to)) {
    stacked = parameter.stacked = parameter.bias ? stacked : parameter.stacked;
    WEFT_ASSIGN_OR_RETURN(const GrownTensor tensor,
                          start.Of(parameter.name, GrownNumbers::kValues));
    const Status added = learned.Add(parameter, tensor, places);
    if (!added.ok()) return added.WithContext(parameter.name);
  }
  for (LearnedMatrix* matrix : learned.All()) {
    const GrowthMatrix& value = matrix->value;
    matrix->gradient = GrowthMatrix::Zero(value.rows, value.columns);
    matrix->first_moment.resize(value.values.size());
    matrix->second_moment.resize(value.values.size());
  }
  return learned;
}

Status LearnedGrowth::Add(const ParameterInfo& parameter, const GrownTensor& start,
                          const OldPlaces& places) {
  if (start.terms.size() != 1) return InvalidError("is not of one tensor of each old block");
  const GrownTerm& term = start.terms.front();
  const auto& [old, index] = places.at(term.parameter);
  Recipe recipe;
  recipe.sources = {term.parameter};
  recipe.block = parameter.block;
  if (parameter.block >= 0 && DistinctBlocks(from_) != DistinctBlocks(to_)) {
    recipe.sources.clear();
    for (const auto& [name, place] : places) {
      if (place.first.block >= 0 && place.second == index) recipe.sources.push_back(name);
    }
    std::sort(recipe.sources.begin(), recipe.sources.end(),
              [&](const std::string& a, const std::string& b) {
                return places.at(a).first.block < places.at(b).first.block;
              });
    recipe.depth = index;
    LearnedMatrix& depth = depths_[index];
    if (depth.value.rows == 0) {
      depth.value = GrowthMatrix::Zero(DistinctBlocks(to_), DistinctBlocks(from_));
    }
    const int64_t at = parameter.block * depth.value.columns + old.block;
    depth.value.values[static_cast<size_t>(at)] = 1;
  }
  WEFT_ASSIGN_OR_RETURN(recipe.rows, PartsOf(parameter, term));
  SideKey columns{Side::kStream, parameter.looked_up()};
  if (parameter.role == ParameterRole::kAttentionOutput) columns = {Side::kHeads, false};
  if (parameter.role == ParameterRole::kMlpDown) columns = {Side::kMlp, false};
  const Part whole{{}, term.columns.old_size(), term.columns.size()};
  WEFT_ASSIGN_OR_RETURN(recipe.columns, StartSide(columns, term.columns, whole, 0, 0));
  recipes_.emplace(parameter.name, std::move(recipe));
  return OkStatus();
}

Result<std::vector<LearnedGrowth::Part>> LearnedGrowth::PartsOf(const ParameterInfo& parameter,
                                                                const GrownTerm& start) {
  // What divides the gains of the norm before a tied classifier.
  bool divides = false;
  for (int64_t i = 0; i < start.rows.size(); ++i) {
    for (const AxisMap::Term& term : start.rows[i]) divides = divides || term.factor != 1;
  }
  std::vector<Part> parts = {{{divides ? Side::kLogits : Side::kStream, !divides},
                              start.rows.old_size(),
                              start.rows.size()}};
  switch (parameter.role) {
    case ParameterRole::kQueriesKeysValues:
      parts = {{{Side::kQueries, true}, QueryWidth(from_), QueryWidth(to_)},
               {{Side::kKeys, true}, KvWidth(from_), KvWidth(to_)},
               {{Side::kValues, true}, KvWidth(from_), KvWidth(to_)}};
      break;
    case ParameterRole::kQueriesKeys:
      parts[0].key = {parameter.stacked ? Side::kKeys : Side::kQueries, true};
      break;
    case ParameterRole::kValues:
      parts[0].key = {Side::kValues, true};
      break;
    case ParameterRole::kMlpUp:
      parts[0].key = {Side::kMlp, true};
      break;
    case ParameterRole::kPositionEmbedding:
      parts[0].key = {Side::kPositions, true};
      break;
    default:
      break;
  }
  int64_t first = 0, old_first = 0;
  for (Part& part : parts) {
    WEFT_ASSIGN_OR_RETURN(part.key, StartSide(part.key, start.rows, part, first, old_first));
    first += part.new_rows;
    old_first += part.old_rows;
  }
  return parts;
}

Result<LearnedGrowth::SideKey> LearnedGrowth::StartSide(const SideKey& key, const AxisMap& map,
                                                        const Part& part, int64_t first,
                                                        int64_t old_first) {
  if (part.new_rows == part.old_rows) return SideKey();
  const auto [found, added] = sides_.try_emplace(key);
  GrowthMatrix& value = found->second.value;
  if (!added) {
    if (value.rows == part.new_rows && value.columns == part.old_rows) return key;
    return InvalidError("has a side of " + std::to_string(part.old_rows) +
                        " that grows otherwise than those of the same neurons; hint: "
                        "growth.method fpi");
  }
  value = GrowthMatrix::Zero(part.new_rows, part.old_rows);
  for (int64_t i = 0; i < part.new_rows; ++i) {
    for (const AxisMap::Term& term : map[first + i]) {
      value.values[static_cast<size_t>(i * part.old_rows + term.old - old_first)] =
          static_cast<float>(term.factor);
    }
  }
  return key;
}

Result<GrowthMatrix> LearnedGrowth::Product(const GrowthMatrix& a, const GrowthMatrix& b) {
  GrowthMatrix product = GrowthMatrix::Zero(a.columns, b.columns);
  flops_ += 2.0 * static_cast<double>(a.rows) * static_cast<double>(a.columns) *
            static_cast<double>(b.columns);
  WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
      {}, {.x = ViewOf(b), .dy = ViewOf(a), .dweight = ViewOf(product), .accumulate = false}));
  return product;
}

Result<LearnedGrowth::Forward> LearnedGrowth::Run(const Recipe& recipe) {
  Forward pass;
  if (recipe.depth < 0) {
    pass.mixed = old_.at(recipe.sources.front());
  } else {
    const GrowthMatrix& depth = depths_.at(recipe.depth).value;
    const float* share = depth.values.data() + recipe.block * depth.columns;
    for (const std::string& source : recipe.sources) {
      const GrowthMatrix& old = old_.at(source);
      if (pass.mixed.rows == 0) pass.mixed = GrowthMatrix::Zero(old.rows, old.columns);
      for (size_t i = 0; i < old.values.size(); ++i) {
        pass.mixed.values[i] += *share * old.values[i];
      }
      ++share;
    }
  }
  int64_t first = 0;
  for (const Part& part : recipe.rows) {
    GrowthMatrix rows = RowsOf(pass.mixed, first, part.old_rows);
    if (part.key.side != Side::kFixed) {
      WEFT_ASSIGN_OR_RETURN(rows, Product(Transposed(sides_.at(part.key).value), rows));
    }
    Append(rows, pass.widened);
    first += part.old_rows;
  }
  if (recipe.columns.side == Side::kFixed) {
    pass.value = pass.widened;
  } else {
    WEFT_ASSIGN_OR_RETURN(
        pass.value, Product(Transposed(pass.widened), Transposed(sides_.at(recipe.columns).value)));
  }
  return pass;
}

Result<std::vector<float>> LearnedGrowth::ValueOf(const std::string& name) {
  const auto found = recipes_.find(name);
  if (found == recipes_.end()) return InvalidError("the grown model has no parameter " + name);
  WEFT_ASSIGN_OR_RETURN(Forward pass, Run(found->second));
  return std::move(pass.value.values);
}

Status LearnedGrowth::AddGradient(const std::string& name, std::span<const float> gradient) {
  const auto found = recipes_.find(name);
  if (found == recipes_.end()) return InvalidError("the grown model has no parameter " + name);
  const Recipe& recipe = found->second;
  WEFT_ASSIGN_OR_RETURN(const Forward pass, Run(recipe));
  GrowthMatrix of_widened{pass.value.rows, pass.value.columns, {gradient.begin(), gradient.end()}};
  if (gradient.size() != pass.value.values.size()) {
    return InvalidError("a gradient of " + std::to_string(gradient.size()) + " numbers for " +
                        name + " of " + std::to_string(pass.value.values.size()));
  }
  if (recipe.columns.side != Side::kFixed) {
    LearnedMatrix& side = sides_.at(recipe.columns);
    WEFT_ASSIGN_OR_RETURN(const GrowthMatrix more, Product(of_widened, pass.widened));
    AddTo(more, side.gradient);
    WEFT_ASSIGN_OR_RETURN(of_widened, Product(Transposed(of_widened), side.value));
  }
  GrowthMatrix of_mixed;
  int64_t first = 0, old_first = 0;
  for (const Part& part : recipe.rows) {
    GrowthMatrix rows = RowsOf(of_widened, first, part.new_rows);
    if (part.key.side != Side::kFixed) {
      LearnedMatrix& side = sides_.at(part.key);
      WEFT_ASSIGN_OR_RETURN(
          const GrowthMatrix more,
          Product(Transposed(rows), Transposed(RowsOf(pass.mixed, old_first, part.old_rows))));
      AddTo(more, side.gradient);
      WEFT_ASSIGN_OR_RETURN(rows, Product(side.value, rows));
    }
    Append(rows, of_mixed);
    first += part.new_rows;
    old_first += part.old_rows;
  }
  if (recipe.depth < 0) return OkStatus();
  GrowthMatrix& depth = depths_.at(recipe.depth).gradient;
  float* share = depth.values.data() + recipe.block * depth.columns;
  for (const std::string& source : recipe.sources) {
    const std::vector<float>& old = old_.at(source).values;
    *share++ += static_cast<float>(
        std::inner_product(old.begin(), old.end(), of_mixed.values.begin(), 0.0));
  }
  return OkStatus();
}

std::vector<LearnedGrowth::LearnedMatrix*> LearnedGrowth::All() {
  std::vector<LearnedMatrix*> all;
  for (auto& [key, matrix] : sides_) all.push_back(&matrix);
  for (auto& [index, matrix] : depths_) all.push_back(&matrix);
  return all;
}

std::vector<LearnedGrowth::Numbers> LearnedGrowth::Learned() {
  std::vector<Numbers> learned;
  for (LearnedMatrix* matrix : All()) {
    learned.push_back({matrix->value.values, matrix->gradient.values});
  }
  return learned;
}

Status LearnedGrowth::Update(double learning_rate) {
  std::vector<kernels::UpdateTensor> tensors;
  for (LearnedMatrix* matrix : All()) {
    tensors.push_back({.parameter = matrix->value.values.data(),
                       .gradient = matrix->gradient.values.data(),
                       .state = {matrix->first_moment.data(), matrix->second_moment.data()},
                       .count = std::ssize(matrix->value.values)});
  }
  WEFT_RETURN_IF_ERROR(kernels::Adam(
      {}, {.update = {.tensors = tensors, .learning_rate = static_cast<float>(learning_rate)},
           .beta2 = 0.999f,
           .step = ++updates_}));
  for (LearnedMatrix* matrix : All()) std::ranges::fill(matrix->gradient.values, 0.0f);
  return OkStatus();
}

}  // namespace weft::engine
