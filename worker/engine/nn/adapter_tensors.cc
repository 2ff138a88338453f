#include "worker/engine/nn/adapter_tensors.h"

namespace weft::engine {
namespace {

Shape ShapeOf(const ParameterInfo& tensor) {
  Shape shape;
  for (const int64_t extent : tensor.shape) shape.dims[shape.rank++] = extent;
  return shape;
}

}  // namespace

int64_t RegisterAdapters(ParameterSet* parameters, const ProductsFactory& factory,
                         const ParameterInfo& weight, const WeightPlace& place) {
  int64_t count = 0;
  for (const ParameterInfo& tensor : factory.AdaptersOf(weight)) {
    // It is cut as the side of the weight that it shares; of another side each rank has a partial
    // gradient.
    const bool input = tensor.adapter == AdapterSide::kInput;
    Shard own = input ? place.inputs : place.outputs;
    if (tensor.shape.size() == 1) own.axis = 0;
    if (tensor.of_whole_weight) own = {};
    const bool cut = !place.outputs.whole() || !place.inputs.whole();
    const int64_t index =
        parameters->Register(tensor.name, own.PartShape(ShapeOf(tensor)), tensor.role,
                             {.padded_rows = input ? 0 : place.padded_rows,
                              .shard = own,
                              .parts = tensor.parts,
                              .read_directly = tensor.read_directly,
                              .adapter_of = weight.name,
                              .adapter = tensor.adapter,
                              .expert = tensor.expert,
                              .row_part = tensor.row_part,
                              .row_parts = tensor.row_parts,
                              .replicated = tensor.replicated,
                              .starts_at_zero = tensor.starts_at_zero});
    if (cut && own.whole()) parameters->SetPartialGradient(index);
    ++count;
  }
  return count;
}

}  // namespace weft::engine
