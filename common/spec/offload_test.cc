#include "common/spec/offload.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/testing.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(ValidateJob, RefusesToOffloadWhatCannotBe) {
  const auto error = [](const std::function<void(JobSpec&)>& change) {
    return ErrorAfter([&](JobSpec& job) {
      job.resources.offload_optimizer = "host";
      change(job);
    });
  };
  EXPECT_THAT(error([](JobSpec& job) { job.optimizer.name = "lion"; }),
              HasSubstr("does not go with optimizer.name lion"));
  EXPECT_THAT(error([](JobSpec& job) {
                job.resources.device = "cuda";
                job.resources.ranks = 2;
                job.train.local_steps = 8;
              }),
              HasSubstr("train.local_steps 8 with resources.offload_optimizer host"));
  EXPECT_THAT(error([](JobSpec& job) {
                job.resources.device = "cuda";
                job.resources.host_link_bytes_per_second = 1000;
              }),
              HasSubstr("a CPU emulates a link of this rate"));
  EXPECT_THAT(error([](JobSpec& job) { job.resources.zero_stage = 3; }),
              HasSubstr("resources.zero_stage 3 without offload_parameters"));
  EXPECT_THAT(error([](JobSpec& job) {
                job.resources.zero_stage = 2;
                job.resources.delayed_update = true;
              }),
              HasSubstr("delayed_update does not go with resources.zero_stage 2"));
  EXPECT_THAT(
      error([](JobSpec& job) { job.model.over_parameterization.kind = "linear_expansion"; }),
      HasSubstr("does not go with resources.offload_optimizer host"));
  EXPECT_THAT(error([](JobSpec& job) { job.resources.offload_optimizer = "nvme"; }),
              HasSubstr("needs a resources.offload_directory"));
  EXPECT_THAT(error([](JobSpec& job) { job.resources.offload_directory = "/x"; }),
              HasSubstr("/x is for resources.offload_optimizer nvme"));
  EXPECT_THAT(error([](JobSpec& job) {
                job.resources.delayed_update = true;
                job.train.averaging.kind = "ema";
              }),
              HasSubstr("train.averaging ema does not go with resources.delayed_update"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.resources.delayed_update = true; }),
              HasSubstr("nothing is"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.resources.host_link_bytes_per_second = 1000; }),
              HasSubstr("nothing is; hint: resources.offload_optimizer host"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.resources.device = "cuda";
                job.resources.device_memory_bytes = 1000;
              }),
              HasSubstr("a CPU emulates a device of this memory"));
  JobSpec job = GoodJob();
  job.resources.offload_optimizer = "host";
  job.resources.device_memory_bytes = 1 << 20;
  job.resources.host_link_bytes_per_second = 1 << 30;
  job.resources.delayed_update = true;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
}

TEST(ValidateJob, KeepsUnitsOnTheDeviceWhereTheOthersHaveCopiesThere) {
  using Change = std::function<void(JobSpec&)>;
  const auto with_units = [](const Change& change) -> Change {
    return [change](JobSpec& job) {
      job.resources.offload_optimizer = "host";
      job.resources.device_updated_units = {0, 1};
      change(job);
    };
  };
  const auto keeping = [&](const Change& change) { return ErrorAfter(with_units(change)); };
  EXPECT_TRUE(Accepts(with_units([](JobSpec&) {})));
  EXPECT_TRUE(
      Accepts(with_units([](JobSpec& job) { job.resources.offload_activations = "host"; })));
  EXPECT_TRUE(Accepts(with_units([](JobSpec& job) { job.resources.ranks = 2; })));
  EXPECT_THAT(keeping([](JobSpec& job) { job.resources.offload_optimizer = "none"; }),
              HasSubstr("is for resources.offload_optimizer host, not none"));
  EXPECT_THAT(keeping([](JobSpec& job) { job.resources.offload_parameters = "host"; }),
              HasSubstr("offloaded parameters do not reside on the device"));
  EXPECT_THAT(keeping([](JobSpec& job) { job.resources.delayed_update = true; }),
              HasSubstr("late for some units alone"));
  EXPECT_THAT(keeping([](JobSpec& job) {
                job.resources.ranks = 2;
                job.resources.zero_stage = 1;
              }),
              HasSubstr("each rank has shards of all units"));
  EXPECT_THAT(
      keeping([](JobSpec& job) { job.resources.ranks = job.resources.pipeline_parallel = 2; }),
      HasSubstr("each stage has other units"));
  EXPECT_THAT(keeping([](JobSpec& job) {
                job.resources.ranks = 2;
                job.train.local_steps = 2;
              }),
              HasSubstr("made on the host"));
  EXPECT_THAT(keeping([](JobSpec& job) { job.resources.device = "cuda"; }),
              HasSubstr("the host of a GPU makes all of the update"));
  EXPECT_THAT(keeping([](JobSpec& job) {
                job.resources.device_updated_units = {1, 0};
              }),
              HasSubstr("in rising order"));
  EXPECT_THAT(keeping([](JobSpec& job) { job.resources.device_updated_units = {99}; }),
              HasSubstr("has 99, and lists units of the model"));
  EXPECT_THAT(keeping([](JobSpec& job) {
                job.model.layers = 2;
                job.resources.device_updated_units = {0, 1, 2, 3};
              }),
              HasSubstr("has all units of the model; hint: resources.offload_optimizer none"));
  EXPECT_THAT(keeping([](JobSpec& job) {
                job.resources.offload_optimizer = "part";
                job.resources.device_memory_bytes = 1 << 20;
              }),
              HasSubstr("part chooses them itself"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.resources.offload_optimizer = "part"; }),
              HasSubstr("hint: resources.device_memory_bytes"));
  EXPECT_TRUE(Accepts([](JobSpec& job) {
    job.resources.offload_optimizer = "part";
    job.resources.device_memory_bytes = 1 << 20;
  }));
}

TEST(ValidateJob, WeightsStayThatWouldComeInEveryPass) {
  using Change = std::function<void(JobSpec&)>;
  const auto with_units = [](const Change& change) -> Change {
    return [change](JobSpec& job) {
      job.resources.offload_optimizer = job.resources.offload_parameters = "host";
      job.resources.resident_units = {0, 1};
      change(job);
    };
  };
  const auto staying = [&](const Change& change) { return ErrorAfter(with_units(change)); };
  EXPECT_TRUE(Accepts(with_units([](JobSpec&) {})));
  EXPECT_TRUE(Accepts(with_units([](JobSpec& job) { job.resources.device = "cuda"; })));
  EXPECT_TRUE(Accepts(
      with_units([](JobSpec& job) { job.resources.ranks = job.resources.zero_stage = 2; })));
  EXPECT_THAT(staying([](JobSpec& job) { job.resources.offload_parameters = "none"; }),
              HasSubstr("resident_units is for resources.offload_parameters host, not none"));
  EXPECT_THAT(staying([](JobSpec& job) {
                job.resources.offload_parameters = "nvme";
                job.resources.offload_directory = "/x";
              }),
              HasSubstr("resident_units is for resources.offload_parameters host, not nvme"));
  EXPECT_THAT(staying([](JobSpec& job) {
                job.resources.ranks = 2;
                job.resources.zero_stage = 3;
              }),
              HasSubstr("each rank has shards of all units"));
  EXPECT_THAT(
      staying([](JobSpec& job) { job.resources.ranks = job.resources.pipeline_parallel = 2; }),
      HasSubstr("each stage has other units"));
  const std::pair<std::vector<int64_t>, std::string> other_units[] = {
      {{3, 3}, "3"}, {{-1}, "-1"}, {{99}, "99"}};
  for (const auto& [units, wrong] : other_units) {
    EXPECT_THAT(staying([&units = units](JobSpec& job) { job.resources.resident_units = units; }),
                HasSubstr("resources.resident_units has " + wrong + ", and lists units"));
  }
  EXPECT_THAT(staying([](JobSpec& job) {
                job.model.layers = 2;
                job.resources.resident_units = {0, 1, 2, 3};
              }),
              HasSubstr("has all units of the model; hint: resources.offload_parameters none"));
  const auto part = [](JobSpec& job) {
    job.resources.offload_optimizer = "host";
    job.resources.offload_parameters = "part";
  };
  EXPECT_THAT(ErrorAfter(part), HasSubstr("hint: resources.device_memory_bytes"));
  EXPECT_THAT(ErrorAfter([&](JobSpec& job) {
                part(job);
                job.resources.device_memory_bytes = 1 << 20;
                job.resources.resident_units = {0};
              }),
              HasSubstr("part chooses them itself"));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    part(job);
    job.resources.device_memory_bytes = 1 << 20;
  }));
}

TEST(ValidateJob, DataParallelRanksOffloadEachItsOwn) {
  for (const int64_t stage : {0, 1, 2, 3}) {
    EXPECT_TRUE(Accepts([=](JobSpec& job) {
      job.resources.ranks = 2;
      job.resources.zero_stage = stage;
      job.resources.offload_optimizer = "host";
      if (stage > 2) job.resources.offload_parameters = "host";
      job.resources.offload_activations = "host";
    }));
  }
  EXPECT_TRUE(Accepts([](JobSpec& job) {
    job.resources.ranks = job.resources.zero_stage = 2;
    job.resources.offload_optimizer = "nvme";
    job.resources.offload_directory = "/x";
  }));
}

TEST(ValidateJob, RanksThatShareMatricesOrBlocksOffloadTheirParts) {
  for (const char* optimizer : {"host", "nvme"}) {
    for (const bool pipeline : {false, true}) {
      EXPECT_TRUE(Accepts([&](JobSpec& job) {
        job.resources.ranks = 4;
        (pipeline ? job.resources.pipeline_parallel : job.resources.tensor_parallel) = 2;
        job.resources.sequence_parallel = !pipeline;
        job.resources.zero_stage = 1;
        job.resources.offload_optimizer = optimizer;
        if (optimizer == std::string("nvme")) job.resources.offload_directory = "/x";
      }));
    }
  }
}

TEST(ValidateJob, RanksThatShareSequencesOffloadEachItsOwn) {
  for (const char* place : {"host", "nvme"}) {
    EXPECT_TRUE(Accepts([=](JobSpec& job) {
      job.resources.ranks = 4;
      job.resources.context_parallel = 2;
      job.resources.offload_optimizer = job.resources.offload_parameters = place;
      job.resources.offload_activations = "host";
      if (place == std::string("nvme")) job.resources.offload_directory = "/x";
    }));
  }
}

TEST(ValidateJob, ARankOnAGpuOffloadsWhatOneOnACpuDoes) {
  EXPECT_TRUE(Accepts([](JobSpec& job) {
    job.resources.device = "cuda";
    job.resources.offload_optimizer = job.resources.offload_parameters = "host";
    job.resources.offload_activations = "host";
  }));
  EXPECT_TRUE(Accepts([](JobSpec& job) {
    job.resources.device = "cuda";
    job.resources.offload_optimizer = "nvme";
    job.resources.offload_directory = "/x";
    job.resources.delayed_update = true;
  }));
}

TEST(ValidateJob, ActivationsAreOffloadedByRanksThatKeepThem) {
  const auto after = [](const std::function<void(JobSpec&)>& change) {
    return ErrorAfter([&](JobSpec& job) {
      job.resources.offload_activations = "host";
      change(job);
    });
  };
  EXPECT_TRUE(Accepts([](JobSpec& job) {
    job.resources.offload_activations = "host";
    job.resources.recompute = "optimal";
    job.resources.host_link_bytes_per_second = 1 << 30;
    job.resources.device_memory_bytes = 1 << 30;
  }));
  for (const char* recompute : {"none", "attention", "block", "optimal", "auto"}) {
    EXPECT_TRUE(Accepts([&](JobSpec& job) {
      job.resources.offload_activations = "host";
      job.resources.activation_bits = 4;
      job.resources.recompute = recompute;
    }));
  }
  for (const char* schedule : {"1f1b", "gpipe", "zero_bubble"}) {
    EXPECT_TRUE(Accepts([=](JobSpec& job) {
      job.resources.ranks = job.resources.pipeline_parallel = 2;
      job.resources.pipeline_schedule = schedule;
      job.resources.offload_activations = "host";
    }));
  }
  EXPECT_THAT(after([](JobSpec& job) { job.resources.delayed_update = true; }),
              HasSubstr("hint: resources.offload_optimizer host"));
}

TEST(ValidateJob, ParametersComeBlockByBlockWhereTheHostUpdatesThem) {
  const auto after = [](const std::function<void(JobSpec&)>& change) {
    return ErrorAfter([&](JobSpec& job) {
      job.resources.offload_optimizer = job.resources.offload_parameters = "host";
      change(job);
    });
  };
  EXPECT_TRUE(Accepts([](JobSpec& job) {
    job.resources.offload_optimizer = job.resources.offload_parameters = "host";
    job.resources.offload_activations = "host";
  }));
  EXPECT_THAT(after([](JobSpec& job) { job.resources.offload_optimizer = "none"; }),
              HasSubstr("offload_parameters host has weights on the host"));
  EXPECT_THAT(after([](JobSpec& job) { job.resources.delayed_update = true; }),
              HasSubstr("does not go with resources.delayed_update"));
  EXPECT_THAT(after([](JobSpec& job) {
                job.resources.recompute = "block";
                job.resources.recompute_segment = 2;
              }),
              HasSubstr("parameters of one block at a time"));
  EXPECT_TRUE(Accepts([](JobSpec& job) {
    job.resources.offload_optimizer = job.resources.offload_parameters = "host";
    job.resources.ranks = job.resources.pipeline_parallel = 2;
  }));
}

TEST(ValidateJob, ParametersResideInAFileOfEachRankOnACpu) {
  const auto after = [](const std::function<void(JobSpec&)>& change) {
    return ErrorAfter([&](JobSpec& job) {
      job.resources.offload_optimizer = "host";
      job.resources.offload_parameters = "nvme";
      job.resources.offload_directory = "/x";
      change(job);
    });
  };
  for (const char* optimizer : {"host", "nvme"}) {
    EXPECT_TRUE(Accepts([&](JobSpec& job) {
      job.resources.offload_optimizer = optimizer;
      job.resources.offload_parameters = "nvme";
      job.resources.offload_directory = "/x";
      job.resources.offload_activations = "host";
      job.resources.recompute = "block";
    }));
  }
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"}) {
    EXPECT_TRUE(Accepts([&](JobSpec& job) {
      job.resources.offload_optimizer = job.resources.offload_parameters = "nvme";
      job.resources.offload_directory = "/x";
      job.resources.ranks = job.resources.pipeline_parallel = 2;
      job.resources.pipeline_schedule = schedule;
    }));
  }
  EXPECT_THAT(after([](JobSpec& job) { job.resources.offload_directory.clear(); }),
              HasSubstr("resources.offload_parameters nvme needs a resources.offload_directory"));
  EXPECT_THAT(after([](JobSpec& job) { job.resources.offload_optimizer = "none"; }),
              HasSubstr("offload_parameters nvme has weights on the host"));
  for (const int64_t stage : {0, 1, 2, 3}) {
    EXPECT_TRUE(Accepts([=](JobSpec& job) {
      job.resources.offload_optimizer = job.resources.offload_parameters = "nvme";
      job.resources.offload_directory = "/x";
      job.resources.ranks = 4;
      job.resources.tensor_parallel = 2;
      job.resources.zero_stage = stage;
      job.model.heads = 4;
    }));
  }
  EXPECT_THAT(after([](JobSpec& job) { job.resources.device = "cuda"; }),
              HasSubstr("offload_parameters nvme does not go with resources.device cuda"));
  EXPECT_THAT(after([](JobSpec& job) { job.train.averaging.kind = "ema"; }),
              HasSubstr("train.averaging ema does not go with"));
  EXPECT_THAT(after([](JobSpec& job) { job.resources.recompute = "optimal"; }),
              HasSubstr("parameters of one block at a time"));
}

}  // namespace
}  // namespace weft
