#include "proto/convert.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "common/spec/plan_query.h"
#include "common/spec/spec_json.h"
#include "weft/v1/cluster.pb.h"
#include "weft/v1/coordinator.pb.h"
#include "weft/v1/job.pb.h"
#include "weft/v1/plan.pb.h"

namespace weft {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

/// The type a spec member needs in the .proto.
template <class M>
FieldDescriptor::CppType ProtoType() {
  if constexpr (SpecStruct<M>)
    return FieldDescriptor::CPPTYPE_MESSAGE;
  else if constexpr (kIsVector<M> || kIsOptional<M>)
    return ProtoType<typename M::value_type>();
  else if constexpr (kIsStringMap<M>)
    return ProtoType<typename M::mapped_type>();
  else if constexpr (std::is_same_v<M, bool>)
    return FieldDescriptor::CPPTYPE_BOOL;
  else if constexpr (std::is_integral_v<M>)
    return FieldDescriptor::CPPTYPE_INT64;
  else if constexpr (std::is_floating_point_v<M>)
    return FieldDescriptor::CPPTYPE_DOUBLE;
  else
    return FieldDescriptor::CPPTYPE_STRING;
}

/// Names, types and repetition of a spec against those of its message, with all below it.
template <SpecStruct T>
void ExpectSameFields(const Descriptor* descriptor) {
  T spec{};
  int count = 0;
  T::Fields(spec, [&]<class M>(const Field& field, const M&) {
    ++count;
    const FieldDescriptor* other = descriptor->FindFieldByName(std::string(field.name));
    ASSERT_NE(other, nullptr) << descriptor->full_name() << " lacks " << field.name;
    ASSERT_EQ(other->is_map(), kIsStringMap<M>) << other->full_name();
    if constexpr (kIsStringMap<M>) {
      EXPECT_EQ(other->message_type()->map_key()->cpp_type(), FieldDescriptor::CPPTYPE_STRING);
      other = other->message_type()->map_value();
    }
    EXPECT_EQ(other->is_repeated(), kIsVector<M>) << other->full_name();
    EXPECT_EQ(other->cpp_type(), ProtoType<M>()) << other->full_name();
    if constexpr (SpecStruct<M>) {
      ExpectSameFields<M>(other->message_type());
    } else if constexpr (kIsVector<M>) {
      if constexpr (SpecStruct<typename M::value_type>) {
        ExpectSameFields<typename M::value_type>(other->message_type());
      }
    }
  });
  EXPECT_EQ(descriptor->field_count(), count) << descriptor->full_name() << " has extra fields";
}

TEST(Convert, MessagesAndSpecsDeclareTheSameFields) {
  ExpectSameFields<JobSpec>(v1::JobSpec::descriptor());
  ExpectSameFields<ClusterProfile>(v1::ClusterProfile::descriptor());
  ExpectSameFields<PlanReport>(v1::PlanReport::descriptor());
  ExpectSameFields<PlanQuery>(v1::PlanQuery::descriptor());
}

TEST(Convert, JobSurvivesTheRoundTrip) {
  JobSpec job;
  job.name = "round-trip";
  job.data.train = {"a.txt", "b.txt"};
  job.data.mask_documents = true;
  job.optimizer.learning_rate = 1.0 / 3.0;
  job.train.seed = 9'000'000'000'000'000;
  auto message = ToProto<v1::JobSpec>(job);
  EXPECT_EQ(message.optimizer().learning_rate(), 1.0 / 3.0);
  Result<JobSpec> back = FromProto<JobSpec>(message);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(ToJson(*back), ToJson(job));
}

/// One field of a Progress.
struct Metrics {
  std::map<std::string, double> technique_metrics;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("technique_metrics", "By name."), self.technique_metrics);
  }
};

TEST(Convert, MapsAreObjects) {
  const auto message = ToProto<v1::Progress>(Metrics{{{"one", 1.5}, {"two", 2}}});
  EXPECT_EQ(message.technique_metrics().at("one"), 1.5);
  EXPECT_EQ(message.technique_metrics().size(), 2);
  EXPECT_EQ(ProtoToJson(message)["technique_metrics"], (Json{{"one", 1.5}, {"two", 2.0}}));
}

TEST(Convert, AbsentFieldsMeanTheirDefault) {
  v1::JobSpec message;
  message.set_name("sparse");
  message.mutable_data()->add_train("a.txt");
  Result<JobSpec> job = FromProto<JobSpec>(message);
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job->train.steps, TrainSpec().steps);
  EXPECT_EQ(job->model.width, ModelSpec().width);
}

TEST(Convert, RangesHoldForMessagesToo) {
  v1::JobSpec message;
  message.set_name("bad");
  message.mutable_data()->add_train("a.txt");
  message.mutable_train()->set_precision("bf17");
  Result<JobSpec> job = FromProto<JobSpec>(message);
  ASSERT_FALSE(job.ok());
  EXPECT_EQ(job.status().message(),
            "train.precision is 'bf17', but must be one of fp32 | bf16 | fp16 | bf16_pure | fp8 | "
            "auto; did "
            "you mean 'bf16'?");
}

/// What is wrong with a message is said as of its JSON.
TEST(Convert, ErrorsAreThoseOfJson) {
  v1::JobSpec sound;
  sound.set_name("sound");
  sound.mutable_data()->add_train("a.txt");
  ASSERT_TRUE(FromProto<JobSpec>(sound).ok());
  std::vector<v1::JobSpec> wrong(9, sound);
  wrong[0].clear_name();
  wrong[1].clear_data();
  wrong[2].set_name(std::string(1000, 'n'));
  wrong[3].mutable_train()->set_steps(-1);
  wrong[4].mutable_optimizer()->set_learning_rate(std::numeric_limits<double>::quiet_NaN());
  wrong[5].mutable_optimizer()->set_learning_rate(1e9);
  wrong[6].mutable_train()->set_precision("bf17");
  wrong[7].add_phases()->set_steps(1);
  wrong[7].add_phases()->set_layers(-7);
  wrong[8].mutable_data()->clear_train();
  for (const v1::JobSpec& message : wrong) {
    const Result<JobSpec> read = FromProto<JobSpec>(message);
    const Result<JobSpec> as_json = FromJson<JobSpec>(ProtoToJson(message));
    ASSERT_FALSE(as_json.ok()) << message.ShortDebugString();
    ASSERT_FALSE(read.ok()) << message.ShortDebugString();
    EXPECT_EQ(read.status().message(), as_json.status().message());
  }
}

TEST(Convert, ListsAndMapsComeBack) {
  Metrics metrics{{{"one", 1.5}, {"", 2}}};
  const Result<Metrics> read = FromProto<Metrics>(ToProto<v1::Progress>(metrics));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->technique_metrics, metrics.technique_metrics);
  ClusterProfile cluster;
  cluster.workers.resize(2);
  cluster.workers[1].worker_id = "second";
  const Result<ClusterProfile> machines =
      FromProto<ClusterProfile>(ToProto<v1::ClusterProfile>(cluster));
  ASSERT_TRUE(machines.ok()) << machines.status().message();
  EXPECT_EQ(ToJson(*machines), ToJson(cluster));
}

TEST(Convert, EnumsAreSentByName) {
  v1::Job job;
  job.set_state(v1::RUNNING);
  EXPECT_EQ(ProtoToJson(job)["state"], "RUNNING");
}

}  // namespace
}  // namespace weft
