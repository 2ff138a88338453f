// GPUs as the worker sees them, on a management library made up (testing/fake_nvml.cc).
#include "worker/daemon/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>

#include "common/env.h"
#include "common/spec/spec_json.h"
#include "worker/daemon/device_monitor.h"
#include "worker/daemon/device_rates.h"
#include "worker/daemon/metrics.h"
#include "worker/daemon/xid.h"

namespace weft::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A machine with two GPUs joined by NVLink behind one PCIe switch.
constexpr char kTwoGpus[] = R"(
driver 580.65.06
count 2
* name NVIDIA H100 80GB HBM3
0 uuid GPU-aaaaaaaa-0000
1 uuid GPU-bbbbbbbb-1111
* major 9
* memory_total 85899345920
* memory_used 1073741824
* bus_id 00000000:0A:00.0
1 bus_id 00000000:8B:00.0
* pcie_generation 5
* pcie_width 16
* nvlinks 4
* ecc 1
* mig 0
* utilization 75
* power 350500
* energy 123456
* temperature 61
* sm_clock 1980
* memory_clock 2619
* corrected 3
* uncorrected 0
link 0 1 10 1
)";

/// Every function of the library that describes a GPU or samples it.
constexpr const char* kCalls[] = {"nvmlDeviceGetName",
                                  "nvmlDeviceGetUUID",
                                  "nvmlDeviceGetCudaComputeCapability",
                                  "nvmlDeviceGetMemoryInfo",
                                  "nvmlDeviceGetPciInfo_v3",
                                  "nvmlDeviceGetMaxPcieLinkGeneration",
                                  "nvmlDeviceGetMaxPcieLinkWidth",
                                  "nvmlDeviceGetNvLinkState",
                                  "nvmlDeviceGetEccMode",
                                  "nvmlDeviceGetMigMode",
                                  "nvmlDeviceGetTopologyCommonAncestor",
                                  "nvmlDeviceGetP2PStatus",
                                  "nvmlDeviceGetUtilizationRates",
                                  "nvmlDeviceGetPowerUsage",
                                  "nvmlDeviceGetTotalEnergyConsumption",
                                  "nvmlDeviceGetTemperature",
                                  "nvmlDeviceGetClockInfo",
                                  "nvmlDeviceGetTotalEccErrors",
                                  "nvmlEventSetCreate",
                                  "nvmlDeviceRegisterEvents",
                                  "nvmlEventSetWait_v2"};

std::string Library(const std::string& kind) {
  return std::string(WEFT_BINARY_DIR) + "/" + kind + "_nvml/libnvidia-ml.so.1";
}

class DevicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "devices";
    ASSERT_TRUE(Env::Posix().CreateDirs(dir_).ok());
    setenv("WEFT_FAKE_NVML", (dir_ + "/nvml").c_str(), 1);
    Say(kTwoGpus);
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(dir_).ok()); }

  /// What the library reports from now on.
  void Say(const std::string& lines) {
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), dir_ + "/nvml", lines).ok());
  }

  std::unique_ptr<Nvml> Load(const std::string& kind = "fake") {
    Result<std::unique_ptr<Nvml>> nvml = Nvml::Load(Library(kind));
    EXPECT_TRUE(nvml.ok()) << nvml.status().message();
    return nvml.ok() ? std::move(*nvml) : nullptr;
  }

  std::string dir_;
};

/// Rates that show which call made them.
struct CountingMeasure {
  int calls = 0;
  Result<DeviceSpec> operator()(const std::vector<DeviceSpec>& devices, size_t which) {
    ++calls;
    DeviceSpec rates;
    rates.gemm.push_back({"bf16", 1, 1, 1, 1, 100.0 * calls});
    for (size_t other = 0; other < devices.size(); ++other) {
      if (other != which)
        rates.links.push_back({static_cast<int64_t>(other), "system", false, 7e9});
    }
    return rates;
  }
};

/// Collects what a monitor reports.
struct Heard {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<DeviceEvent> events;
  int samples = 0;

  DeviceMonitor::Listener Listener() {
    return {[this](int, const DeviceSample&) {
              std::lock_guard lock(mutex);
              ++samples;
              changed.notify_all();
            },
            [this](const DeviceEvent& event) {
              std::lock_guard lock(mutex);
              events.push_back(event);
              changed.notify_all();
            }};
  }
  bool WaitForEvents(size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(10), [&] { return events.size() >= count; });
  }
  bool WaitForMoreSamples(int count) {
    std::unique_lock lock(mutex);
    int wanted = samples + count;
    return changed.wait_for(lock, std::chrono::seconds(10), [&] { return samples >= wanted; });
  }
};

TEST_F(DevicesTest, AreDescribedAsTheDriverSays) {
  ASSERT_TRUE(Env::Posix().CreateDirs(dir_ + "/sys/bus/pci/devices/0000:8b:00.0").ok());
  ASSERT_TRUE(
      WriteFileAtomic(Env::Posix(), dir_ + "/sys/bus/pci/devices/0000:8b:00.0/numa_node", "1\n")
          .ok());
  auto nvml = Load();
  ASSERT_EQ(nvml->count(), 2);
  DeviceSpec device = nvml->Describe(1, dir_);
  EXPECT_EQ(device.index, 1);
  EXPECT_EQ(device.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(device.uuid, "GPU-bbbbbbbb-1111");
  EXPECT_EQ(device.compute_capability, "9.0");
  EXPECT_EQ(device.driver, "580.65.06");
  EXPECT_EQ(device.memory_bytes, int64_t{80} << 30);
  EXPECT_EQ(device.pcie_generation, 5);
  EXPECT_EQ(device.pcie_width, 16);
  EXPECT_EQ(device.nvlinks, 4);
  EXPECT_EQ(device.numa_node, 1);
  EXPECT_EQ(nvml->Describe(0, dir_).numa_node, -1);
  EXPECT_TRUE(device.ecc);
  EXPECT_FALSE(device.mig);
  EXPECT_EQ(device.unusable, "");
  ASSERT_EQ(device.links.size(), 1u);
  EXPECT_EQ(device.links[0].index, 0);
  EXPECT_EQ(device.links[0].path, "nvlink");
  EXPECT_TRUE(device.links[0].peer);
}

TEST_F(DevicesTest, PathsFollowTheTopology) {
  for (auto [level, path] : {std::pair(10, "switch"),
                             {20, "switches"},
                             {30, "bridge"},
                             {40, "node"},
                             {50, "system"},
                             {77, "system"}}) {
    Say(std::string(kTwoGpus) + "\n* nvlinks 0\n");
    std::string text = kTwoGpus;
    text.replace(text.find("link 0 1 10 1"), 13, "link 0 1 " + std::to_string(level) + " 0");
    Say(text);
    EXPECT_EQ(Load()->Describe(0).links[0].path, path);
  }
}

TEST_F(DevicesTest, WithoutADriverThereAreNone) {
  EXPECT_EQ(Nvml::Load(dir_ + "/absent.so").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(Nvml::Load(Library("broken")).status().code(), StatusCode::kUnavailable);
  Say("error nvmlInit_v2 9");
  EXPECT_THAT(Nvml::Load(Library("fake")).status().message(), HasSubstr("NVML error 9"));
  Say("error nvmlDeviceGetCount_v2 999");
  EXPECT_EQ(Nvml::Load(Library("fake")).status().code(), StatusCode::kUnavailable);
}

TEST_F(DevicesTest, AnOldDriverTellsLess) {
  auto nvml = Load("old");
  ASSERT_EQ(nvml->count(), 1);
  DeviceSpec device = nvml->Describe(0);
  EXPECT_EQ(device.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(device.uuid, "");
  EXPECT_EQ(device.memory_bytes, 0);
  DeviceSample sample = nvml->Sample(0);
  EXPECT_EQ(sample.lost, "");
  EXPECT_FALSE(sample.power_watts || sample.memory_used_bytes || sample.corrected_errors);
  EXPECT_EQ(nvml->Watch({0}).status().code(), StatusCode::kUnavailable);
  Heard heard;
  DeviceMonitor monitor(*nvml, {0}, std::chrono::milliseconds(5), heard.Listener());
  EXPECT_TRUE(heard.WaitForMoreSamples(2));
}

TEST_F(DevicesTest, AFunctionThatFailsHidesWhatItWouldTell) {
  for (const char* call : kCalls) {
    for (int code : {3, 999, 2}) {
      Say(std::string(kTwoGpus) + "error " + call + " " + std::to_string(code) + "\n");
      auto nvml = Load();
      DeviceSpec device = nvml->Describe(0);
      DeviceSample sample = nvml->Sample(0);
      EXPECT_EQ(device.unusable + sample.lost, "") << call << " " << code;
      auto events = nvml->Watch({0, 1});
      EXPECT_FALSE(events.ok() && (*events)->Wait(std::chrono::milliseconds(0)).ok() &&
                   std::string(call).starts_with("nvmlEvent"));
    }
  }
  Say(std::string(kTwoGpus) + "error nvmlDeviceGetPowerUsage 999 0\n");
  auto nvml = Load();
  EXPECT_FALSE(nvml->Sample(0).power_watts);
  EXPECT_DOUBLE_EQ(*nvml->Sample(1).power_watts, 350.5);
}

TEST_F(DevicesTest, ALostGpuIsNamedAndTheOtherGoesOn) {
  Say(std::string(kTwoGpus) + "error nvmlDeviceGetHandleByIndex_v2 15 0\n");
  auto nvml = Load();
  EXPECT_THAT(nvml->Describe(0).unusable, HasSubstr("GPU is lost"));
  EXPECT_THAT(nvml->Sample(0).lost, HasSubstr("GPU is lost"));
  EXPECT_EQ(nvml->Describe(1).unusable, "");
  EXPECT_TRUE(nvml->Describe(1).links.empty());
}

TEST_F(DevicesTest, AreOfferedAsTheUserAndCudaSay) {
  auto nvml = Load();
  auto offered = [&](const std::string& choice, const std::string& visible) {
    std::string indices;
    auto devices = FindDevices(*nvml, {choice, visible}, CountingMeasure(), dir_ + "/cache", true);
    if (!devices.ok()) return devices.status().message();
    for (const DeviceSpec& device : *devices) {
      if (device.unusable.empty()) indices += std::to_string(device.index);
    }
    return indices;
  };
  EXPECT_EQ(offered("all", "all"), "01");
  EXPECT_EQ(offered("none", "all"), "");
  EXPECT_EQ(offered("1", "all"), "1");
  EXPECT_EQ(offered("GPU-aaaaaaaa", "all"), "0");
  EXPECT_EQ(offered("all", "1,0"), "01");
  EXPECT_EQ(offered("all", "GPU-bbbbbbbb-1111"), "1");
  EXPECT_EQ(offered("0", "1"), "");
  EXPECT_EQ(offered("all", ""), "");
  EXPECT_EQ(offered("all", "-1"), "");
  EXPECT_THAT(offered("0,7", "all"), HasSubstr("no GPU '7' among its 2"));
  Say(std::string(kTwoGpus) + "1 mig 1\n");
  EXPECT_EQ(offered("all", "all"), "0");
}

TEST_F(DevicesTest, AreMeasuredOnceForEachUuidAndDriver) {
  auto nvml = Load();
  CountingMeasure measure;
  auto find = [&](bool again = false) {
    auto devices = FindDevices(*nvml, {}, std::ref(measure), dir_ + "/cache", again);
    EXPECT_TRUE(devices.ok());
    return *devices;
  };
  auto devices = find();
  EXPECT_EQ(measure.calls, 2);
  EXPECT_EQ(devices[0].gemm[0].flops_per_second, 100);
  EXPECT_EQ(devices[1].links[0].bytes_per_second, 7e9);
  // 92 % of 80 GiB, less than 97 % of the 79 that are free.
  EXPECT_NEAR(static_cast<double>(devices[0].memory_limit_bytes), 0.92 * 85899345920.0, 1);
  EXPECT_EQ(find()[1].gemm[0].flops_per_second, 200);
  EXPECT_EQ(measure.calls, 2);
  find(true);
  EXPECT_EQ(measure.calls, 4);
  Say(std::string(kTwoGpus) + "driver 590.1\n0 memory_used 75161927680\n");
  nvml = Load();
  devices = find();
  EXPECT_EQ(measure.calls, 6);
  EXPECT_NEAR(static_cast<double>(devices[0].memory_limit_bytes), 0.97 * 10737418240.0, 1);
  Say(std::string(kTwoGpus) + "1 uuid GPU-another-one\n");
  nvml = Load();
  find();
  EXPECT_EQ(measure.calls, 8) << "the driver changed back, and one is another GPU";
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), dir_ + "/cache", "{\"version\": 3").ok());
  EXPECT_EQ(find()[0].gemm.size(), 1u);
}

TEST_F(DevicesTest, WhereProgramsCannotComputeAreNotUsable) {
  auto nvml = Load();
  auto program = [](const std::string& path) {
    return [path](const auto& devices, size_t which) {
      return MeasureInProcess(path, devices, which);
    };
  };
  auto why = [&](const std::string& path) {
    return FindDevices(*nvml, {}, program(path), dir_ + "/cache", true)->at(1).unusable;
  };
  EXPECT_THAT(why(std::string(WEFT_BINARY_DIR) + "/weft-worker"), HasSubstr("CUDA"));
  EXPECT_THAT(why(dir_ + "/absent"), HasSubstr("No such file"));
  EXPECT_THAT(why("/bin/echo"), HasSubstr("no result"));
  std::string script = dir_ + "/measure";
  std::ofstream(script) << "#!/bin/sh\n"
                           "[ $1 = --measure-device ] || exit 1\n"
                           "[ $CUDA_VISIBLE_DEVICES = GPU-aaaaaaaa-0000,GPU-bbbbbbbb-1111 ] || "
                           "exit 1\n"
                           "[ $2 = 0 ] && kill -9 $$\n"
                           "echo '{\"copy_bytes_per_second\": 3e12}'\n";
  ASSERT_EQ(chmod(script.c_str(), 0700), 0);
  auto devices = FindDevices(*nvml, {}, program(script), dir_ + "/cache", true);
  EXPECT_THAT(devices->at(0).unusable, HasSubstr("signal 9"));
  EXPECT_EQ(devices->at(1).unusable, "");
  EXPECT_EQ(devices->at(1).copy_bytes_per_second, 3e12);
}

TEST_F(DevicesTest, AMonitorTellsOfXidsMemoryErrorsAndLossOnce) {
  auto nvml = Load();
  Heard heard;
  DeviceMonitor monitor(*nvml, {0, 1}, std::chrono::milliseconds(5), heard.Listener());
  ASSERT_TRUE(heard.WaitForMoreSamples(3));
  // A bad address in a kernel says nothing against the GPU.
  std::string lines = std::string(kTwoGpus) + "xid 1 31\n";
  Say(lines);
  ASSERT_TRUE(heard.WaitForEvents(1));
  Say(lines += "* corrected 9\n0 uncorrected 2\n");
  ASSERT_TRUE(heard.WaitForEvents(2));
  Say(lines += "xid 0 79\n");
  ASSERT_TRUE(heard.WaitForEvents(3));
  Say(lines += "error * 15 1\n");
  ASSERT_TRUE(heard.WaitForEvents(4));
  ASSERT_TRUE(heard.WaitForMoreSamples(6));
  std::lock_guard lock(heard.mutex);
  ASSERT_EQ(heard.events.size(), 4u);
  EXPECT_EQ(heard.events[0].index, 1);
  EXPECT_EQ(heard.events[0].xid, 31);
  EXPECT_FALSE(heard.events[0].broken);
  EXPECT_EQ(heard.events[1].index, 0);
  EXPECT_TRUE(heard.events[1].broken);
  EXPECT_THAT(heard.events[1].text, HasSubstr("2 uncorrected memory errors"));
  EXPECT_THAT(heard.events[2].text, AllOf(HasSubstr("XID 79"), HasSubstr("off the bus")));
  EXPECT_EQ(heard.events[3].index, 1);
  EXPECT_THAT(heard.events[3].text, HasSubstr("GPU is lost"));
  EXPECT_TRUE(heard.events[3].broken);
}

TEST_F(DevicesTest, AnXidThatIsNotKnownSpeaksAgainstTheGpu) {
  EXPECT_TRUE(MeaningOfXid(4711).breaks);
  EXPECT_EQ(MeaningOfXid(4711).text, "XID 4711");
}

// By the immediate action of NVIDIA's catalog.
TEST_F(DevicesTest, XidsThatAskForTheProgramToBeRestartedOrForNothingLeaveTheGpuInUse) {
  for (int64_t reset : {46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 158}) {
    EXPECT_TRUE(MeaningOfXid(reset).breaks) << reset;
  }
  for (int64_t restart : {8, 11, 13, 25, 31, 32, 39, 43, 45, 63, 68, 69, 80, 92, 94, 121, 137}) {
    EXPECT_FALSE(MeaningOfXid(restart).breaks) << restart;
  }
}

TEST_F(DevicesTest, AreMetrics) {
  auto nvml = Load();
  Metrics metrics(Clock::System());
  metrics.devices().Add(nvml->Describe(0));
  metrics.devices().Add(nvml->Describe(1));
  metrics.devices().Set(0, nvml->Sample(0));
  metrics.devices().Set(1, nvml->Sample(1));
  std::string text = metrics.Text();
  for (const char* line :
       {"weft_device_info{compute_capability=\"9.0\",device=\"1\",driver=\"580.65.06\","
        "name=\"NVIDIA H100 80GB HBM3\",uuid=\"GPU-bbbbbbbb-1111\"} 1",
        "weft_device_usable{device=\"0\"} 1",
        "weft_device_memory_total_bytes{device=\"0\"} 85899345920",
        "weft_device_memory_used_bytes{device=\"1\"} 1073741824",
        "weft_device_utilization_ratio{device=\"0\"} 0.75",
        "weft_device_memory_activity_ratio{device=\"0\"} 0.1",
        "weft_device_power_watts{device=\"0\"} 350.5",
        "weft_device_energy_joules_total{device=\"0\"} 123.456",
        "weft_device_temperature_celsius{device=\"0\"} 61",
        "weft_device_clock_hertz{device=\"0\",domain=\"sm\"} 1980000000",
        "weft_device_clock_hertz{device=\"0\",domain=\"memory\"} 2619000000",
        "weft_device_memory_errors_total{device=\"0\",kind=\"corrected\"} 3",
        "weft_device_memory_errors_total{device=\"0\",kind=\"uncorrected\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  Say(std::string(kTwoGpus) + "0 power 99000\n0 corrected 5\nerror * 15 1\n");
  metrics.devices().Set(0, nvml->Sample(0));
  metrics.devices().Set(1, nvml->Sample(1));
  metrics.devices().Count({1, 79, "XID 79", true});
  metrics.devices().Count({0, 31, "XID 31", false});
  text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("weft_device_power_watts{device=\"0\"} 99"));
  EXPECT_THAT(text, Not(HasSubstr("weft_device_power_watts{device=\"1\"}")));
  EXPECT_THAT(text, HasSubstr("errors_total{device=\"0\",kind=\"corrected\"} 5"));
  EXPECT_THAT(text, HasSubstr("weft_device_xid_errors_total{device=\"1\",xid=\"79\"} 1"));
  EXPECT_THAT(text, HasSubstr("weft_device_xid_errors_total{device=\"0\",xid=\"31\"} 1"));
  EXPECT_THAT(text, HasSubstr("weft_device_usable{device=\"0\"} 1"));
  EXPECT_THAT(text, HasSubstr("weft_device_usable{device=\"1\"} 0"));
}

}  // namespace
}  // namespace weft::daemon
