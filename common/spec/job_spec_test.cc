#include "common/spec/job_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "common/spec/model_family.h"
#include "common/spec/spec_json.h"
#include "common/spec/testing.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(ValidateJob, AcceptsTheDefaults) {
  EXPECT_TRUE(ValidateJob(GoodJob()).ok());
}

TEST(ValidateJob, NamesTheFieldsThatDoNotAgree) {
  for (const char* name : {"Tiny", "-a", "a-", "a b", "a/b", "a.b", "é", "a_b"}) {
    EXPECT_THAT(ErrorAfter([&](JobSpec& job) { job.name = name; }), HasSubstr("name"));
  }
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.model.heads = 7; }),
              HasSubstr("model.width 384 must be a multiple of model.heads 7"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.train.sequence_length = 257; }),
              HasSubstr("train.sequence_length 257 is longer than model.context 256"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.train.steps = 99; }),
              HasSubstr("schedule.warmup_steps 100 is more than train.steps 99"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.resources.ranks = 3; }),
              HasSubstr("train.global_batch 32 must be a multiple of resources.ranks 3"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.resources.min_ranks = 4;
                job.resources.max_ranks = 2;
              }),
              HasSubstr("resources.min_ranks 4 is more than resources.max_ranks 2"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.resources.ranks = job.resources.max_ranks = 2; }),
              HasSubstr("need resources.ranks 0"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.resources.micro_batch = 5; }),
              HasSubstr("resources.micro_batch"));
}

TEST(ValidateJob, RefusesCheckpointsThatNothingDecides) {
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.checkpoint.interval = "auto";
                job.checkpoint.every_steps = 0;
              }),
              HasSubstr("checkpoint.interval auto needs checkpoint.every_steps above 0"));
  EXPECT_TRUE(Accepts([](JobSpec& job) { job.checkpoint.interval = "auto"; }));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.checkpoint.peer_every_steps = 1;
                job.train.local_steps = 4;
              }),
              HasSubstr("train.local_steps 4 does not go with checkpoint.peer_every_steps 1"));
  EXPECT_TRUE(Accepts([](JobSpec& job) { job.checkpoint.peer_every_steps = 1; }));
}

TEST(ValidateJob, RefusesModelsWhosePartsDoNotFit) {
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.model.kv_heads = 2; }),
              HasSubstr("model.kv_heads 2 does not go with model.family gpt2"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.model.sliding_window = 8; }),
              HasSubstr("model.sliding_window"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.model.distinct_blocks = 4; }),
              HasSubstr("model.layers 6 must be a multiple of model.distinct_blocks 4"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.model.family = "llama";
                job.model.kv_heads = 4;
              }),
              HasSubstr("model.heads 6 must be a multiple of model.kv_heads 4"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.model.family = "llama";
                job.model.rope_scaling.kind = "llama3";
                job.model.rope_scaling.low_frequency_factor = 4;
              }),
              HasSubstr("high_frequency_factor must be more"));
}

TEST(ValidateJob, RefusesInitializationOfAnotherNetwork) {
  const auto error = [](const char* method, const std::function<void(JobSpec&)>& change) {
    return ErrorAfter([&](JobSpec& job) {
      job.model.initialization.method = method;
      change(job);
    });
  };
  for (const char* method : {"fixup", "t_fixup", "rezero", "skipinit", "layer_scale", "mup"}) {
    JobSpec job = GoodJob();
    job.model.initialization.method = method;
    EXPECT_TRUE(ValidateJob(job).ok()) << method;
    EXPECT_THAT(error(method,
                      [](JobSpec& imported) {
                        imported.model.import_path = "folder";
                        imported.data.tokenizer.path = "folder";
                      }),
                HasSubstr("does not go with model.import_path"));
  }
  EXPECT_THAT(error("t_fixup", [](JobSpec& job) { job.model.norm_position = "post"; }),
              HasSubstr("does not go with model.norm_position post"));
  EXPECT_THAT(error("fixup", [](JobSpec& job) { job.model.family = "llama"; }),
              HasSubstr("Fixup needs layers with biases"));
  EXPECT_THAT(error("mup", [](JobSpec& job) { job.optimizer.name = "sgd"; }),
              HasSubstr("does not go with optimizer.name sgd"));
}

TEST(CheckFamily, KeepsTheNetworksOfBertAndVitAsTheyAre) {
  for (const char* family : {"bert", "vit"}) {
    ModelSpec model;
    model.family = family;
    for (const char* method : {"auto", "gpt2", "normal", "xavier_uniform", "kaiming_normal"}) {
      model.initialization.method = method;
      EXPECT_TRUE(CheckFamily(model).ok()) << method;
    }
    for (const char* method : {"fixup", "t_fixup", "rezero", "skipinit", "layer_scale", "mup"}) {
      model.initialization.method = method;
      EXPECT_THAT(CheckFamily(model).message(),
                  HasSubstr(std::string("model.initialization.method ") + method +
                            " does not go with model.family " + family));
    }
  }
}

TEST(ValidateJob, TellsWhatAHeadNeedsOfTheData) {
  const auto classify = [](JobSpec& job) {
    job.model.family = "bert";
    job.model.head = "classification";
    job.data.batching = "pad_uniform";
  };
  EXPECT_TRUE(Accepts([](JobSpec& job) { job.model.family = "bert"; }));
  EXPECT_TRUE(Accepts(classify));
  EXPECT_THAT(ErrorAfter([&](JobSpec& job) {
                classify(job);
                job.data.batching = "concatenate";
              }),
              HasSubstr("one document a sequence, not data.batching concatenate; hint: pad_"));
  EXPECT_THAT(ErrorAfter([&](JobSpec& job) {
                classify(job);
                job.data.format = "text";
              }),
              HasSubstr("needs labels"));
  const auto pairs = [&](JobSpec& job) {
    classify(job);
    job.data.second_text_field = "answer";
  };
  EXPECT_TRUE(Accepts(pairs));
  EXPECT_THAT(ErrorAfter([&](JobSpec& job) {
                pairs(job);
                job.model.token_types = 1;
              }),
              HasSubstr("model.token_types of 2"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.data.second_text_field = "answer"; }),
              HasSubstr("data.second_text_field needs a model.head"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.model.head = "classification"; }),
              HasSubstr("model.head classification does not go with model.family gpt2"));

  const auto vit = [](JobSpec& job) {
    job.model.family = "vit";
    job.model.image_size = 28;
    job.model.patch_size = 7;
    job.model.context = 1;
  };
  EXPECT_TRUE(Accepts(vit));
  EXPECT_THAT(ErrorAfter([&](JobSpec& job) {
                vit(job);
                job.train.sequence_length = 16;
              }),
              HasSubstr("train.sequence_length 16 is not that of a vit's images, 17"));
}

TEST(ValidateJob, RefusesOptimizationThatContradictsItself) {
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.optimizer.name = "sgd";
                job.optimizer.nesterov = true;
                job.optimizer.momentum = 0;
              }),
              HasSubstr("optimizer.nesterov needs optimizer.momentum"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.optimizer.name = "muon";
                job.optimizer.learning_rate = 0;
                job.optimizer.muon_learning_rate = 0.02;
              }),
              HasSubstr("optimizer.learning_rate 0.0 is less than a millionth of "
                        "optimizer.muon_learning_rate 0.02"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.optimizer.name = "muon";
                job.optimizer.learning_rate = 1e-40;  // which is 0 in f32
                job.optimizer.muon_learning_rate = 0.02;
              }),
              HasSubstr("optimizer.muon_learning_rate"));
  EXPECT_TRUE(Accepts([](JobSpec& job) {
    job.optimizer.name = "muon";
    job.optimizer.learning_rate = 1e-6;
    job.optimizer.muon_learning_rate = 0.02;
  }));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.optimizer.name = "lars";
                job.train.gradient_clip_value = 1;
              }),
              HasSubstr("does not go with train.gradient_clip_value"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.model.over_parameterization.layers = {"*mlp*"}; }),
              HasSubstr("layers needs a model.over_parameterization.kind"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.optimizer.name = "schedule_free_adamw"; }),
              HasSubstr("schedule_free_adamw does not go with schedule.kind cosine"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.optimizer.name = "schedule_free_adamw";
                job.schedule.kind = "constant";
                job.train.averaging.kind = "ema";
              }),
              HasSubstr("train.averaging ema does not go with"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.schedule.kind = "warmup_stable_decay";
                job.schedule.decay_steps = 901;
              }),
              HasSubstr("schedule.decay_steps 901 is more than train.steps 1000 less"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.train.batch_warmup_steps = 10; }),
              HasSubstr("needs a train.batch_warmup_start"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.train.batch_warmup_steps = 10;
                job.train.batch_warmup_start = 5;
              }),
              HasSubstr("that divides train.global_batch 32"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.train.batch_warmup_steps = 10;
                job.train.batch_warmup_start = 4;
                job.resources.micro_batch = 8;
              }),
              HasSubstr("train.batch_warmup_start 4 must be a multiple of"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.train.gradient_noise_scale = true;
                job.resources.ranks = 1;
                job.resources.micro_batch = 32;
              }),
              HasSubstr("train.gradient_noise_scale compares"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.schedule.batch_scaling = "linear"; }),
              HasSubstr("needs schedule.reference_batch"));
}

TEST(ValidateJob, AsksForWhatFp8Multiplies) {
  const auto error = [](const std::function<void(JobSpec&)>& change) {
    return ErrorAfter([&](JobSpec& job) {
      job.train.precision = "fp8";
      change(job);
    });
  };
  EXPECT_TRUE(Accepts([](JobSpec& job) { job.train.precision = "fp8"; }));
  EXPECT_THAT(error([](JobSpec& job) { job.model.mlp_width = 1000; }), HasSubstr("MLP is 1000"));
  EXPECT_THAT(error([](JobSpec& job) { job.model.width = 72; }), HasSubstr("model.width is 72"));
  EXPECT_THAT(error([](JobSpec& job) {
                job.model.mlp_width = 1040;
                job.resources.ranks = job.resources.tensor_parallel = 2;
              }),
              HasSubstr("multiples of 16 on each of resources.tensor_parallel 2 ranks, and the "
                        "width of the MLP is 1040"));
  EXPECT_TRUE(Accepts([](JobSpec& job) {
    job.train.precision = "fp8";
    job.resources.ranks = job.resources.tensor_parallel = 2;
  }));
  EXPECT_THAT(error([](JobSpec& job) {
                job.model.family = "llama";
                job.model.heads = job.model.kv_heads = 1;
                job.model.head_width = 8;
              }),
              HasSubstr("the width of all heads together is 8"));
  EXPECT_THAT(error([](JobSpec& job) {
                job.train.fp8.bf16_first_blocks = job.model.layers - 1;
                job.train.fp8.bf16_last_blocks = 1;
              }),
              HasSubstr("leave none"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.train.fp8.margin = 1; }),
              HasSubstr("train.fp8 needs train.precision fp8, not bf16"));
}

TEST(ValidateJob, RefusesToShardWhatEveryRankNeedsWhole) {
  for (const char* name : {"lars", "lamb", "adafactor", "muon"}) {
    EXPECT_THAT(
        ErrorAfter([&](JobSpec& job) {
          job.resources.zero_stage = 1;
          job.optimizer.name = name;
        }),
        HasSubstr(std::string("resources.zero_stage 1 does not go with optimizer.name ") + name));
  }
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.resources.zero_stage = 3;
                job.model.over_parameterization.kind = "linear_expansion";
              }),
              HasSubstr("model.over_parameterization"));
  JobSpec job = GoodJob();
  job.resources.zero_stage = 1;
  for (const char* name : {"sgd", "adam", "adamw", "lion", "schedule_free_adamw"}) {
    job.optimizer.name = name;
    job.schedule.kind = "constant";
    EXPECT_TRUE(ValidateJob(job).ok()) << name;
  }
  job.resources.zero_stage = 3;
  EXPECT_TRUE(ValidateJob(job).ok());
  job.train.precision = "fp8";
  EXPECT_THAT(ValidateJob(job).message(),
              HasSubstr("train.precision fp8 does not go with resources.zero_stage 3"));
}

TEST(ValidateJob, SegmentsAreOfBlocksThatRecompute) {
  const auto segments = [](const char* recompute) {
    return [=](JobSpec& job) {
      job.resources.recompute = recompute;
      job.resources.recompute_segment = 4;
    };
  };
  EXPECT_TRUE(Accepts(segments("block")));
  EXPECT_THAT(ErrorAfter(segments("auto")),
              HasSubstr("resources.recompute_segment 4 is for resources.recompute"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.resources.zero_stage = 3;
                job.resources.recompute = "optimal";
              }),
              HasSubstr("parameters of one block at a time"));
}

TEST(ValidateJob, CompressesActivationsWhereTheyAreKept) {
  const auto bits = [](int64_t count, const char* device, const char* recompute) {
    return [=](JobSpec& job) {
      job.resources.activation_bits = count;
      job.resources.device = device;
      job.resources.recompute = recompute;
    };
  };
  for (int64_t count : {8, 4, 2}) {
    for (const char* device : {"auto", "cpu", "cuda"}) {
      for (const char* recompute : {"auto", "none", "attention", "block", "optimal"}) {
        EXPECT_TRUE(Accepts(bits(count, device, recompute)));
      }
    }
  }
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    bits(4, "cpu", "block")(job);
    job.resources.ranks = job.resources.pipeline_parallel = 2;
  }));
  EXPECT_THAT(ErrorAfter(bits(3, "cpu", "none")), HasSubstr("must be 8, 4, 2 or 0"));
  EXPECT_TRUE(Accepts([](JobSpec& job) {
    job.resources.activation_bits = 4;
    job.resources.ranks = 4;
    job.resources.tensor_parallel = job.resources.context_parallel = 2;
  }));
}

TEST(ValidateJob, ReducesInBFloat16WhatStaysOnTheDevice) {
  for (const int64_t stage : {0, 1, 2, 3}) {
    EXPECT_TRUE(Accepts([=](JobSpec& job) {
      job.resources.gradient_reduction = "bf16";
      job.resources.zero_stage = stage;
      job.resources.offload_activations = "host";
    }));
  }
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.resources.gradient_reduction = "bf16";
                job.resources.offload_optimizer = "host";
              }),
              HasSubstr("gradient_reduction bf16 does not go with resources.offload_optimizer "
                        "host"));
}

TEST(ValidateJob, RefusesGroupsThatShareUnevenly) {
  const auto shared = [](int64_t stage, int64_t shard_ranks, int64_t ranks, int64_t tensor) {
    return [=](JobSpec& job) {
      job.train.global_batch = 12;
      job.resources.zero_stage = stage;
      job.resources.zero_shard_ranks = shard_ranks;
      job.resources.ranks = ranks;
      job.resources.tensor_parallel = tensor;
    };
  };
  EXPECT_TRUE(Accepts(shared(1, 2, 4, 1)));
  EXPECT_TRUE(Accepts(shared(1, 2, 0, 1))) << "the planner chooses";
  EXPECT_THAT(ErrorAfter(shared(0, 2, 4, 1)),
              HasSubstr("which is 0; hint: resources.zero_stage 1"));
  EXPECT_THAT(ErrorAfter(shared(1, 1, 4, 1)), HasSubstr("zero_shard_ranks 1 shards nothing"));
  EXPECT_THAT(ErrorAfter(shared(1, 4, 6, 1)),
              HasSubstr("zero_shard_ranks 4 must divide the ranks that sum"));
  EXPECT_THAT(ErrorAfter(shared(1, 4, 4, 2)), HasSubstr("tensor_parallel x pipeline_parallel 2"));
}

TEST(ValidateJob, AsksOfDataForInstructionTuningWhatTheyHave) {
  const auto error = [](const std::string& format, const std::string& loss_on,
                        const std::string& chat_template) {
    return ErrorAfter([&](JobSpec& job) {
      job.data.format = format;
      job.data.loss_on = loss_on;
      job.data.chat_template = chat_template;
    });
  };
  for (const char* format : {"chat", "prompt_completion", "alpaca"}) {
    for (const char* loss_on : {"all", "completions"}) {
      JobSpec job = GoodJob();
      job.data.format = format;
      job.data.loss_on = loss_on;
      if (job.data.format == "chat") job.data.chat_template = "{{ messages }}";
      EXPECT_EQ(ValidateJob(job).ToString(), "OK");
    }
    EXPECT_THAT(ErrorAfter([&](JobSpec& job) {
                  job.data.format = format;
                  job.model.family = "bert";
                }),
                HasSubstr("trains language models that predict the next token"));
  }
  EXPECT_THAT(error("jsonl", "completions", ""), HasSubstr("not data.format jsonl"));
  EXPECT_THAT(error("alpaca", "all", "{{ messages }}"), HasSubstr("is for data.format chat"));
}

TEST(ValidateJob, LeavesSizesOfAnImportedModelToTheImport) {
  JobSpec job = GoodJob();
  job.model.import_path = "gpt2";
  job.model.heads = 7;
  job.train.sequence_length = 1024;
  EXPECT_TRUE(ValidateJob(job).ok());
  EXPECT_THAT(ValidateHead(job).message(), HasSubstr("data.tokenizer.path"));
  job.data.tokenizer.path = "gpt2";
  EXPECT_TRUE(ValidateHead(job).ok());
}

TEST(ValidateJob, ExtremesWithinTheDeclaredRangesDoNotOverflow) {
  JobSpec job = GoodJob();
  job.train.global_batch = 1 << 24;
  job.resources.ranks = 1 << 20;
  job.resources.micro_batch = 1 << 24;
  EXPECT_FALSE(ValidateJob(job).ok());
}

TEST(JobSpec, ResolvesDerivedSizes) {
  JobSpec job = GoodJob();
  EXPECT_EQ(SequenceLength(job), 256);
  EXPECT_EQ(MlpWidth(job.model), 4 * 384);
  job.train.sequence_length = 64;
  job.model.mlp_width = 100;
  EXPECT_EQ(SequenceLength(job), 64);
  EXPECT_EQ(MlpWidth(job.model), 100);
  job.model.family = "vit";
  EXPECT_EQ(SequenceLength(job), 14 * 14 + 1);
}

TEST(JobSpec, DefaultsLieWithinTheirDeclaredRanges) {
  Json json = ToJson(GoodJob());
  Result<JobSpec> back = FromJson<JobSpec>(json);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(ToJson(*back), json);
}

TEST(FitDefaultWarmup, IsATenthOfTheStepsAtMost) {
  JobSpec job = GoodJob();
  job.train.steps = 1000;
  EXPECT_FALSE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 100);
  job.train.steps = 999;
  EXPECT_TRUE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 99);
  job.train.steps = 3;
  EXPECT_TRUE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 1);
  job.schedule.warmup_steps = 0;
  EXPECT_FALSE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 0);
}

TEST(FitDefaultWarmup, IsThatOfAScheduleOfSeveralTrainings) {
  JobSpec job = GoodJob();
  job.train.steps = 50;
  job.schedule.steps_before = 300;
  job.schedule.steps_after = 150;
  EXPECT_EQ(ScheduleSteps(job), 500);
  EXPECT_TRUE(ValidateJob(job).ok()) << "a warm-up that is over, " << ValidateJob(job).message();
  EXPECT_TRUE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 50);
}

TEST(DefaultDecaySearchSteps, AreThoseOfTheWarmupInWholeIntervals) {
  JobSpec job;
  job.train.sparsity.mask_interval = 40;
  job.schedule.warmup_steps = 100;
  EXPECT_EQ(DefaultDecaySearchSteps(job), 120);
  job.schedule.warmup_steps = 120;
  EXPECT_EQ(DefaultDecaySearchSteps(job), 120);
  job.schedule.warmup_steps = 0;  // One search for masks would measure no flips.
  EXPECT_EQ(DefaultDecaySearchSteps(job), 80);
}

TEST(FitDefaultWarmup, SizesThatAreNoneAreLeftToValidation) {
  JobSpec job = GoodJob();
  job.phases.resize(2);
  job.phases[0].steps = job.phases[1].steps = 50;
  job.phases[0].layers = 2;
  job.phases[1].width = 8;  // a fraction of a head
  job.phases[1].growth.method = "stack";
  job.phases[1].growth.freeze_old = true;
  FitDefaultWarmup(job);
  EXPECT_EQ(ValidateJob(job).code(), StatusCode::kInvalid);
}

TEST(FitDefaultWarmup, LeavesTheDecayItsSteps) {
  JobSpec job = GoodJob();
  job.train.steps = 40;
  job.schedule.kind = "warmup_stable_decay";
  job.schedule.decay_steps = 38;
  EXPECT_TRUE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 2);
  EXPECT_TRUE(ValidateJob(job).ok());
  job.schedule.decay_steps = 50;
  EXPECT_TRUE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 0);
  EXPECT_FALSE(ValidateJob(job).ok()) << "a decay that the job says stays a mistake";
}

TEST(ValidateJob, OfItsPlaceInTheQueues) {
  const auto error = [](const std::function<void(SchedulingSpec&)>& change) {
    JobSpec job;
    job.name = "a";
    job.data.train = {"/x"};
    change(job.scheduling);
    return ValidateJob(job).message();
  };
  EXPECT_EQ(error([](SchedulingSpec& scheduling) {
              scheduling.queue = "research";
              scheduling.after = {"a-1", "b-1"};
              scheduling.group = "sweep";
              scheduling.group_limit = 2;
            }),
            "");
  EXPECT_EQ(error([](SchedulingSpec& scheduling) { scheduling.queue = "Research"; }),
            "scheduling.queue 'Research' must hold only a-z, 0-9 and dashes between them");
  EXPECT_EQ(error([](SchedulingSpec& scheduling) { scheduling.group = "my sweep"; }),
            "scheduling.group 'my sweep' must hold only a-z, 0-9 and dashes between them");
  EXPECT_EQ(error([](SchedulingSpec& scheduling) { scheduling.group_limit = 2; }),
            "scheduling.group_limit needs a scheduling.group whose jobs it counts");
  EXPECT_EQ(error([](SchedulingSpec& scheduling) {
              scheduling.after = {"b-1", "a-1", "b-1"};
            }),
            "scheduling.after names job 'b-1' twice");
  EXPECT_EQ(error([](SchedulingSpec& scheduling) { scheduling.after = {""}; }),
            "scheduling.after holds an empty job id");
}

}  // namespace
}  // namespace weft
