#include "common/model/pipeline_shape.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

std::vector<int64_t> NumbersOf(const ModelShape& shape) {
  const ParameterCounts& c = shape.counts;
  const ParameterUses &body = shape.body, &head = shape.head;
  return {c.token_embedding,
          c.position_embedding,
          c.embedding_projection,
          c.attention,
          c.mlp,
          c.norms,
          c.classifier,
          c.branch_scales,
          shape.spec.layers,
          shape.tensor,
          shape.tensor_rows,
          shape.expert_ranks,
          shape.trained,
          shape.stored,
          shape.stored_trained,
          shape.stored_trained_experts,
          shape.stored_matrices,
          shape.stored_trained_matrices,
          shape.packed,
          shape.packed_in_tiles,
          shape.packed_padding.f32,
          shape.packed_padding.f32_else,
          shape.packed_padding.bf16,
          shape.packed_padding.bf16_else,
          shape.packed_padding.emulated_bf16,
          shape.quantized,
          shape.quantized_block.numbers,
          shape.stacked_with_derived,
          shape.derived,
          shape.sources,
          shape.largest_derived,
          shape.largest_source,
          body.all,
          body.trained,
          body.backward,
          head.all,
          head.trained,
          head.backward,
          shape.first_trained_layer,
          shape.PaddedClasses(),
          shape.ExpertRows(),
          shape.sequence_parallel ? 1 : 0,
          shape.embeds ? 1 : 0,
          shape.has_head ? 1 : 0,
          shape.trains_embeddings ? 1 : 0,
          shape.spec.untied_classifier ? 1 : 0};
}

/// Against shapes that are made of each part by itself.
void ExpectStages(const ModelShape& whole) {
  const StageShapes shapes(whole);
  const std::vector<int64_t> cut = {2, 1, 4, 3, 1};
  for (int64_t stage = 0; stage < std::ssize(cut); ++stage) {
    const ModelShape own = shapes.Of({cut[static_cast<size_t>(stage)], stage == 0, stage == 4});
    EXPECT_EQ(NumbersOf(own), NumbersOf(ShapeOfStage(whole, cut, stage))) << "stage " << stage;
  }
  // All that a rank has of several stages.
  const std::vector<int64_t> chunks = {2, 1, 4, 3};
  for (const int64_t rank : {0, 1}) {
    const int64_t blocks = rank == 0 ? 6 : 4;
    EXPECT_EQ(NumbersOf(shapes.Of({blocks, rank == 0, rank == 1})),
              NumbersOf(ShapeOfStages(whole, chunks, 2, rank)));
  }
}

TEST(StageShapes, AreThoseOfEachStageByItself) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const bool untied : {false, true}) {
      SCOPED_TRACE(std::string(family) + (untied ? ", untied" : ""));
      JobSpec job;
      job.model.family = family;
      job.model.layers = 11;
      job.model.width = 192;
      job.model.heads = 6;
      job.model.vocab_size = 1021;
      job.model.context = 128;
      job.model.untied_classifier = untied;
      const ModelSpec model = ShapeOf(job).spec;
      ExpectStages(ModelShape(model));
      ExpectStages(ModelShape(model, 2, true));
      ExpectStages(ModelShape(model, 6, false, 2));
      if (job.model.family != "llama") continue;
      job.model.experts = 8;
      job.model.experts_per_token = 2;
      const ModelSpec mixture = ShapeOf(job).spec;
      ExpectStages(ModelShape(mixture));
      ExpectStages(ModelShape::OfExpertRank(mixture, 4));
    }
  }
}

}  // namespace
}  // namespace weft
