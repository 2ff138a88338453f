#include "common/model/pipeline_shape.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/pipeline/named_schedule.h"

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

TEST(PipelineMemory, TheFullestRankIsTheFirstWithMostOfAll) {
  JobSpec job;
  job.model.layers = 19;
  job.model.width = 192;
  job.model.heads = 6;
  job.model.vocab_size = 1021;
  MemoryInputs inputs;
  inputs.shape = ShapeOf(job);
  inputs.sequence_length = 64;
  inputs.precision = &kBf16Precision;
  inputs.micro_batch = 2;
  inputs.accumulation_steps = 16;
  const StageShapes shapes(inputs.shape);
  struct Pipeline {
    const char* kind;
    int64_t chunks;
    std::vector<int64_t> cut;
  };
  for (const Pipeline& p :
       {Pipeline{"1f1b", 1, {2, 3, 3, 3, 2, 3, 2, 1}}, Pipeline{"1f1b", 1, {3, 3, 3, 3, 3, 4}},
        Pipeline{"zero_bubble", 1, {1, 3, 3, 3, 3, 3, 3}},
        Pipeline{"interleaved", 2, {3, 2, 2, 2, 2, 3, 3, 2}}}) {
    const int64_t ranks = std::ssize(p.cut) / p.chunks;
    const InFlightActivations in_flight(NamedSchedule(p.kind, ranks, p.chunks, 16).value());
    for (int64_t blocks = 0; blocks <= 19; ++blocks) {
      inputs.recomputed_blocks = blocks;
      PipelineMemory memory(shapes, p.cut, in_flight);
      MemoryBreakdown most;
      for (const MemoryBreakdown& rank : memory.Ranks(inputs)) {
        if (TotalBytes(rank) > TotalBytes(most)) most = rank;
      }
      const MemoryBreakdown fullest = PipelineMemory(shapes, p.cut, in_flight).Fullest(inputs);
      EXPECT_EQ(TotalBytes(fullest), TotalBytes(most)) << p.kind << ", " << blocks;
      EXPECT_EQ(fullest.activations_bytes, most.activations_bytes) << p.kind << ", " << blocks;
    }
  }
  // With 1F1B, most ranks need not be looked at.
  const InFlightActivations in_flight(NamedSchedule("1f1b", 8, 1, 16).value());
  EXPECT_EQ(in_flight.FallsFrom(6), 1);
}

}  // namespace
}  // namespace weft
