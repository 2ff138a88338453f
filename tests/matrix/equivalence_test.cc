// Every technique and every two of them together, against the plain training of one rank.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "tests/matrix/combinations.h"
#include "tests/matrix/covering_set_file.h"
#include "tests/matrix/techniques.h"
#include "tests/matrix/training.h"

namespace weft::testing {
namespace {

constexpr int kShards = 12;        // so that a test takes well below a minute
constexpr int64_t kSavedStep = 3;  // where trainings stop that go on in another way
constexpr double kTolerance = 1e-5;
constexpr double kNoDifference = 0;

const std::vector<Combination>& Combinations() {
  static const auto* const all = new std::vector<Combination>(ReadCombinations(WEFT_COVERING_SET));
  return *all;
}

/// The same training on one rank, and the one that has the same bits, as plain as can be.
Combination OneRank(const Combination& combination) {
  return Without(combination, [](Effect effect) { return effect != Effect::kOwnTraining; });
}
Combination Twin(const Combination& combination) {
  return Without(combination, [](Effect effect) { return effect == Effect::kSameBits; });
}

/// The second step of a training that has gone on shows the moments that were saved. FP8 forgets a
/// scale three steps after it, and rounds of sub-networks have three steps. Of the ten steps the
/// second half has whole sequences, one network, masks of `step`, adapters of sparse weights, or
/// another training.
int64_t StepsOf(const Combination& combination) {
  const TrainSpec train = JobOf(combination).train;
  const SparsitySpec& sparsity = train.sparsity;
  const bool second_half = train.sequence_warmup_steps > 0 || train.nested_model.layers > 0 ||
                           sparsity.method == "step" || sparsity.adapter_rank > 0 ||
                           train.pruning.method == "lottery_ticket";
  const bool thirds = train.precision == "fp8" || train.local_sub_networks;
  return kSavedStep + (thirds || second_half ? 3 : 2);
}

class EquivalenceOfMeshes : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "weft_matrix_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  std::string root_;
};

class EquivalenceMatrix : public EquivalenceOfMeshes, public ::testing::WithParamInterface<int> {
 protected:
  std::string NewFolder() { return root_ + "/" + std::to_string(++folders_); }

  /// Losses of the whole training; made once.
  const std::vector<double>& LossesOf(const Combination& combination) {
    const auto [entry, fresh] = losses_.try_emplace(combination);
    if (!fresh) return entry->second;
    const int64_t steps = StepsOf(combination);
    const auto training = Train(JobOf(combination), NewFolder(), steps);
    EXPECT_TRUE(training.ok()) << NameOf(combination) << ": " << training.status().message();
    if (training.ok()) entry->second = training->losses;
    EXPECT_EQ(std::ssize(entry->second), steps) << NameOf(combination);
    return entry->second;
  }

  void ExpectThoseOf(const Combination& truth, const std::vector<double>& losses, double tolerance);
  void ExpectLossesOf(const Combination& one_rank, const Combination& combination);
  void ExpectToGoOn(const Combination& one_rank, const Combination& from, const Combination& to);

  int folders_ = 0;
  std::map<Combination, std::vector<double>> losses_;
};

/// Parts of tensors this small have other quantisation groups than the whole has, and so have
/// experts whose tokens come from other ranks or micro-batches, and images in other micro-batches,
/// whose rows end amid a group: what is kept in bits is rounded elsewhere, and gradients are the
/// same on average alone; of the same groups other orders of sums round a few numbers otherwise. In
/// FP8 a rank scales what it has of a micro-batch, in the first step or with `current` in every
/// step, or the sequences of it that a branch picks, and other parts have other roundings; so have
/// the partial sums of tensor-parallel ranks, in bf16. Where weights are kept by such gradients,
/// some are others, as are elements that an estimate of gradients draws. Scores of GraSP are
/// differences of gradients: already another order of sums exchanges some weights at the threshold,
/// and roundings elsewhere more of them.
double ToleranceOf(const Combination& combination) {
  const JobSpec job = JobOf(combination);
  const ResourceSpec& resources = job.resources;
  const bool mixture = job.model.experts > 0, images = job.model.family == "vit";
  const bool others = (mixture && resources.expert_parallel > 1) ||
                      ((mixture || images) && resources.micro_batch != 2);
  const bool parts = resources.tensor_parallel > 1 || resources.context_parallel > 1 || others;
  const bool picks = job.model.stochastic_depth.mode == "sample";
  const bool other_scales = job.train.precision == "fp8" &&
                            (resources.micro_batch != 2 || picks || resources.expert_parallel > 1 ||
                             resources.context_parallel > 1 || resources.tensor_parallel > 1);
  const std::string& pruning = job.train.pruning.method;
  const SparsitySpec& sparsity = job.train.sparsity;
  const bool draws = sparsity.method != "none" && sparsity.gradient_estimate != "exact";
  const bool grasp = pruning == "grasp";
  const bool keeps_others = grasp || pruning == "snip" || pruning == "set" || pruning == "rigl";
  const double others_kept = grasp ? 10 : keeps_others || draws ? 5 : 1;
  const double of_scales = other_scales ? others_kept * 1e-3 : grasp ? 1e-3 : kTolerance;
  if (resources.activation_bits == 0) return of_scales;
  const double of_tokens = resources.activation_bits == 8   ? 2e-4
                           : resources.activation_bits == 4 ? 1e-3
                                                            : 5e-3;
  // A batch has 8 images where it has 128 tokens: a mean of those varies four times as much.
  const double of_bits = images ? 4 * of_tokens : of_tokens;
  return std::max(others_kept * (parts ? of_bits : of_bits / 8), of_scales);
}

void ExpectNear(const std::vector<double>& losses, const std::vector<double>& expected,
                double tolerance = kTolerance) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(losses[step], expected[step], tolerance) << "step " << step;
  }
}

/// `losses` are those of `truth`, which a failure names.
void EquivalenceMatrix::ExpectThoseOf(const Combination& truth, const std::vector<double>& losses,
                                      double tolerance) {
  SCOPED_TRACE("against " + NameOf(truth));
  ExpectNear(losses, LossesOf(truth), tolerance);
}

void EquivalenceMatrix::ExpectLossesOf(const Combination& one_rank,
                                       const Combination& combination) {
  SCOPED_TRACE(NameOf(combination));
  const std::vector<double>& losses = LossesOf(combination);
  ExpectThoseOf(one_rank, losses, ToleranceOf(combination));
  if (IsLegal(Twin(combination))) ExpectThoseOf(Twin(combination), losses, kNoDifference);
}

/// Some of the steps in either way.
void EquivalenceMatrix::ExpectToGoOn(const Combination& one_rank, const Combination& from,
                                     const Combination& to) {
  SCOPED_TRACE(NameOf(from) + " -> " + NameOf(to));
  const std::string folder = NewFolder();
  const auto before = Train(JobOf(from), folder, kSavedStep);
  ASSERT_TRUE(before.ok()) << before.status().message();
  const auto after = Train(JobOf(to), folder, StepsOf(to));
  ASSERT_TRUE(after.ok()) << after.status().message();
  std::vector<double> losses = before->losses;
  losses.insert(losses.end(), after->losses.begin(), after->losses.end());
  ExpectThoseOf(one_rank, losses, std::max(ToleranceOf(from), ToleranceOf(to)));
  if (Twin(from) == Twin(to) && IsLegal(Twin(to))) ExpectThoseOf(Twin(to), losses, kNoDifference);
}

/// What a shard compares: combinations by the training on one rank that they make, so that no other
/// shard makes that one again; those with the same bits one after the other. Shards have about as
/// many.
std::map<Combination, std::vector<Combination>> WaysOfShard(int shard) {
  std::map<Combination, std::vector<Combination>> by_training, own;
  for (const Combination& combination : Combinations()) {
    by_training[OneRank(combination)].push_back(combination);
  }
  for (auto& [one_rank, ways] : by_training) {
    std::sort(ways.begin(), ways.end(), [](const Combination& one, const Combination& other) {
      return std::pair(Twin(one), one) < std::pair(Twin(other), other);
    });
  }
  std::array<size_t, kShards> sizes = {};
  for (const auto& [one_rank, ways] : by_training) {
    auto* const least = std::min_element(sizes.begin(), sizes.end());
    *least += ways.size();
    if (least - sizes.begin() == shard) own[one_rank] = ways;
  }
  return own;
}

// And a training that goes on in another way has those losses, too: from a combination to the next
// one of those that make the same training.
TEST_P(EquivalenceMatrix, LossesAreThoseOfOneRank) {
  int hop = 0;
  for (const auto& [one_rank, ways] : WaysOfShard(GetParam())) {
    for (const Combination& combination : ways) ExpectLossesOf(one_rank, combination);
    for (auto from = ways.begin(), to = std::next(from); to != ways.end(); ++from, ++to) {
      if (hop++ % 4 == 0) ExpectToGoOn(one_rank, *from, *to);
    }
  }
}

// Logits are small at the start. Batches of another network, or losses over other rows, would show.
TEST_F(EquivalenceOfMeshes, EachNetworkStartsAtTheLossOfAGuess) {
  for (size_t network = 0; network < Axes()[0].size(); ++network) {
    Combination combination(Axes().size(), 0);
    combination[0] = network;
    SCOPED_TRACE(NameOf(combination));
    const JobSpec job = JobOf(combination);
    const auto training = Train(job, root_ + "/" + std::to_string(network), 1);
    ASSERT_TRUE(training.ok()) << training.status().message();
    const ModelSpec& model = job.model;
    const int64_t choices = model.classes > 0 ? model.classes : model.vocab_size;
    ASSERT_EQ(training->losses.size(), 1u);
    EXPECT_NEAR(training->losses[0], std::log(static_cast<double>(choices)), 0.1);
  }
}

// Each of these meshes has the experts elsewhere.
TEST_F(EquivalenceOfMeshes, ExpertsMoveBetweenRanks) {
  JobSpec job = JobOf(Combination(Axes().size(), 0));
  job.model.family = "llama";
  job.model.experts = 4;
  job.model.expert_capacity = 1;
  job.train.eval_every_steps = 5;
  const auto train = [&](int64_t ranks, int64_t expert, int64_t last_step) {
    job.resources.ranks = ranks;
    job.resources.expert_parallel = expert;
    const auto training = Train(job, root_, last_step);
    EXPECT_TRUE(training.ok()) << training.status().message();
    return training.ok() ? training->losses : std::vector<double>();
  };
  std::vector<double> losses;
  int64_t step = 0;
  for (const auto& [ranks, expert] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {4, 4}, {4, 2}, {2, 1}, {4, 4}}) {
    const std::vector<double> more = train(ranks, expert, step += 2);
    losses.insert(losses.end(), more.begin(), more.end());
  }
  EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok());
  ExpectNear(losses, train(1, 1, 10));
}

// What is kept for a second forward pass, quantised, on the host.
TEST_F(EquivalenceOfMeshes, CodesOfWhatIsRecomputedFromWaitOnTheHost) {
  JobSpec job = JobOf(Combination(Axes().size(), 0));
  job.resources.recompute = "attention";
  const auto train = [&](int64_t bits, const char* where, int64_t ranks) {
    job.resources.activation_bits = bits;
    job.resources.offload_activations = where;
    job.resources.ranks = ranks;
    const auto training = Train(job, root_ + "/" + std::to_string(bits) + where, 10);
    EXPECT_TRUE(training.ok()) << training.status().message();
    EXPECT_TRUE(Env::Posix().RemoveTree(root_ + "/" + std::to_string(bits) + where).ok());
    return training.ok() ? *training : Training();
  };
  for (const int64_t ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const Training twin = train(4, "none", ranks), away = train(4, "host", ranks);
    EXPECT_EQ(away.losses, twin.losses);
    const Training plain = train(0, "host", ranks);
    EXPECT_NE(away.losses, plain.losses);
    EXPECT_LT(away.ranks[0].tiers.device_bytes, twin.ranks[0].tiers.device_bytes);
    EXPECT_LT(3 * away.ranks[0].tiers.host_bytes, plain.ranks[0].tiers.host_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, EquivalenceMatrix, ::testing::Range(0, kShards));

TEST(CoveringSet, HasEveryChoiceAndEveryTwoThatAreLegalTogether) {
  const std::vector<Combination>& all = Combinations();
  EXPECT_GE(all.size(), 60u);
  EXPECT_EQ(std::set<Combination>(all.begin(), all.end()).size(), all.size());
  for (const Combination& combination : all) EXPECT_TRUE(IsLegal(combination));
  // What is legal without help must be there; here by looking at all of it.
  const Combination plain(Axes().size(), 0);
  for (size_t a = 0; a < plain.size(); ++a) {
    for (size_t b = a + 1; b < plain.size(); ++b) {
      for (size_t i = 1; i < Axes()[a].size(); ++i) {
        for (size_t j = 1; j < Axes()[b].size(); ++j) {
          Combination both = plain;
          both[a] = i, both[b] = j;
          if (!IsLegal(both)) continue;
          const bool there = std::any_of(all.begin(), all.end(), [&](const Combination& one) {
            return one[a] == i && one[b] == j;
          });
          EXPECT_TRUE(there) << NameOf(both);
        }
      }
    }
  }
}

TEST(CoveringSet, HasMixturesWhoseMatricesAndExpertsAreShared) {
  for (const std::string tensor : {"tensor 2", "tensor 2 with sequence"}) {
    for (const std::string expert : {"expert 2", "expert 4"}) {
      const auto is = [&](const Combination& one) {
        const std::string name = NameOf(one) + ",";
        return name.starts_with("mixtral,") && name.find(tensor + ",") != std::string::npos &&
               name.find(expert + ",") != std::string::npos;
      };
      EXPECT_TRUE(std::any_of(Combinations().begin(), Combinations().end(), is))
          << tensor << ", " << expert;
    }
  }
}

}  // namespace
}  // namespace weft::testing
