#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/precision_names.h"
#include "common/spec/spec_json_fwd.h"
#include "common/spec/time_calibration.h"

namespace weft {

/// Products that workers measure: of dense operands (kProductRateNames), and of layers with 2:4
/// sparse weights and with a quarter of the weights, by pass (common/model/technique_products.h).
inline constexpr std::array<std::string_view, 13> kMeasuredProducts = {
    "fp32",
    "bf16",
    "fp16",
    "fp8",
    "sparse24_forward_fp32",
    "sparse24_input_gradient_fp32",
    "sparse24_weight_gradient_fp32",
    "sparse24_forward_bf16",
    "sparse24_input_gradient_bf16",
    "sparse24_weight_gradient_bf16",
    "csr_forward_fp32",
    "csr_input_gradient_fp32",
    "csr_weight_gradient_fp32"};

/// One measured matrix product.
struct GemmRate {
  std::string precision = "fp32";
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t threads = 1;
  double flops_per_second = 0;

  bool operator==(const GemmRate&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("precision", "Type of the inputs, or form and pass of the product.")
              .OneOf(kMeasuredProducts),
          self.precision);
    visit(Field("m", "Rows of the result."), self.m);
    visit(Field("n", "Columns of the result."), self.n);
    visit(Field("k", "Inner size."), self.k);
    visit(Field("threads", "Threads used."), self.threads);
    visit(Field("flops_per_second", "2 m n k over the time.").Unit("FLOP/s"),
          self.flops_per_second);
  }
};

/// How one GPU reaches another of its machine.
struct DeviceLink {
  int64_t index = 0;
  std::string path = "system";
  bool peer = false;
  double bytes_per_second = 0;

  bool operator==(const DeviceLink&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("index", "The other GPU.").Range(0, 1023), self.index);
    visit(Field("path",
                "What lies between them: NVLink, one PCIe switch, several, the host bridge, the "
                "NUMA node, or several NUMA nodes.")
              .OneOf({"nvlink", "switch", "switches", "bridge", "node", "system"}),
          self.path);
    visit(Field("peer", "They reach each other's memory."), self.peer);
    visit(Field("bytes_per_second", "Measured copy to it; 0: not measured.").Unit("bytes/s"),
          self.bytes_per_second);
  }
};

/// A GPU of a machine.
struct DeviceSpec {
  std::string device = "cuda";
  int64_t index = 0;
  std::string uuid;
  std::string name;
  std::string compute_capability;
  std::string driver;
  int64_t memory_bytes = 0;
  int64_t memory_limit_bytes = 0;
  int64_t pcie_generation = 0;
  int64_t pcie_width = 0;
  int64_t nvlinks = 0;
  int64_t numa_node = -1;
  bool ecc = false;
  bool mig = false;
  std::string unusable;
  std::vector<GemmRate> gemm;
  double copy_bytes_per_second = 0;
  double upload_bytes_per_second = 0;
  double download_bytes_per_second = 0;
  std::vector<DeviceLink> links;

  bool operator==(const DeviceSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("device", "Its kind.").OneOf({"cuda"}), self.device);
    visit(Field("index", "Its number on this machine, in the order of the driver.").Range(0, 1023),
          self.index);
    visit(Field("uuid", "Its name in all the world, as the driver gives it."), self.uuid);
    visit(Field("name", "Its model."), self.name);
    visit(Field("compute_capability", "For example 9.0."), self.compute_capability);
    visit(Field("driver", "Version of its driver."), self.driver);
    visit(Field("memory_bytes", "Its memory.").Unit("bytes"), self.memory_bytes);
    visit(Field("memory_limit_bytes", "Memory offered to its rank.").Unit("bytes"),
          self.memory_limit_bytes);
    visit(Field("pcie_generation", "Of its slot; 0: unknown."), self.pcie_generation);
    visit(Field("pcie_width", "Lanes of its slot; 0: unknown."), self.pcie_width);
    visit(Field("nvlinks", "NVLinks that are up."), self.nvlinks);
    visit(Field("numa_node", "Of its slot; -1: unknown."), self.numa_node);
    visit(Field("ecc", "Memory errors are corrected."), self.ecc);
    visit(Field("mig", "It is cut into instances."), self.mig);
    visit(Field("unusable", "Why no rank runs on it; empty: ranks do."), self.unusable);
    visit(Field("gemm", "Measured matrix products."), self.gemm);
    visit(
        Field("copy_bytes_per_second", "Copy within its memory, read plus write.").Unit("bytes/s"),
        self.copy_bytes_per_second);
    visit(
        Field("upload_bytes_per_second", "Copy from pinned memory of the machine.").Unit("bytes/s"),
        self.upload_bytes_per_second);
    visit(
        Field("download_bytes_per_second", "Copy to pinned memory of the machine.").Unit("bytes/s"),
        self.download_bytes_per_second);
    visit(Field("links", "To the other GPUs."), self.links);
  }
};

/// A machine as its worker measured it.
struct WorkerProfile {
  std::string worker_id;
  std::string host;
  std::string rack;
  std::string device = "cpu";
  std::string cpu_model;
  std::string isa;
  int64_t cores = 1;
  int64_t processors = 0;
  int64_t memory_bytes = 0;
  int64_t memory_limit_bytes = 0;
  std::vector<GemmRate> gemm;
  double copy_bytes_per_second = 0;
  double loopback_bytes_per_second = 0;
  double network_bytes_per_second = 0;
  double network_latency_seconds = 0;
  double between_racks_bytes_per_second = 0;
  double between_racks_latency_seconds = 0;
  double disk_write_bytes_per_second = 0;
  std::vector<DeviceSpec> devices;
  TimeCalibration calibration;

  bool operator==(const WorkerProfile&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("worker_id", "Stable name of the worker."), self.worker_id);
    visit(Field("host", "Address other ranks can reach."), self.host);
    visit(Field("rack",
                "Name of what it shares a switch with, such as a rack: machines of one rack are "
                "nearer to each other than to others; empty: all are as near."),
          self.rack);
    visit(Field("device", "What ranks can compute on besides the processor: cpu is nothing else.")
              .OneOf({"cpu", "cuda"}),
          self.device);
    visit(Field("cpu_model", "Model name of the processor."), self.cpu_model);
    visit(Field("isa", "Widest instruction set in use: baseline, avx2, avx512, avx512_bf16, amx."),
          self.isa);
    visit(Field("cores", "Cores offered to ranks.").Range(1, 65536), self.cores);
    visit(Field("processors", "Of the machine, where more cores are offered; 0: one a core.")
              .Range(0, 65536),
          self.processors);
    visit(Field("memory_bytes", "Physical memory.").Unit("bytes"), self.memory_bytes);
    visit(Field("memory_limit_bytes", "Memory offered to ranks, all together.").Unit("bytes"),
          self.memory_limit_bytes);
    visit(Field("gemm", "Measured matrix products."), self.gemm);
    visit(Field("copy_bytes_per_second", "Memory copy of all cores, read plus write.")
              .Unit("bytes/s"),
          self.copy_bytes_per_second);
    visit(Field("loopback_bytes_per_second", "TCP over loopback, one stream.").Unit("bytes/s"),
          self.loopback_bytes_per_second);
    visit(Field("network_bytes_per_second",
                "To other machines, one direction, all ranks of this one together; 0: not known, "
                "and taken to be as fast as loopback.")
              .Unit("bytes/s"),
          self.network_bytes_per_second);
    visit(Field("network_latency_seconds",
                "How much longer a message to another machine takes than one to itself; 0: not "
                "known, and taken to be no longer.")
              .Unit("seconds")
              .Range(0, 60),
          self.network_latency_seconds);
    visit(Field("between_racks_bytes_per_second",
                "To machines of other racks, one direction, all ranks of this one together; 0: as "
                "to those of its own.")
              .Unit("bytes/s")
              .Range(0, 9e15),
          self.between_racks_bytes_per_second);
    visit(Field("between_racks_latency_seconds",
                "How much longer a message to another rack takes than one within its own.")
              .Unit("seconds")
              .Range(0, 60),
          self.between_racks_latency_seconds);
    visit(
        Field("disk_write_bytes_per_second", "Synced writes to the run directory.").Unit("bytes/s"),
        self.disk_write_bytes_per_second);
    visit(Field("devices", "Its GPUs, in the order of the driver."), self.devices);
    visit(Field("calibration", "What runs have taught of its kind; the coordinator fills it in."),
          self.calibration);
  }
};
WEFT_SPEC_JSON(extern, WorkerProfile);

/// What is stated of the network between two machines, or between those of two racks.
struct LinkSpec {
  std::vector<std::string> workers = {};
  std::vector<std::string> racks = {};
  double bytes_per_second = 0;
  double latency_seconds = 0;

  bool operator==(const LinkSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("workers", "Two machines, by their worker_id.").Range(0, 2), self.workers);
    visit(
        Field("racks",
              "Instead, two racks: each machine of the one with each of the other; the same twice: "
              "machines of that rack among each other.")
            .Range(0, 2),
        self.racks);
    visit(
        Field("bytes_per_second",
              "From one machine to another, one direction, all ranks of a machine together; 0: as "
              "network_bytes_per_second of the two says.")
            .Unit("bytes/s")
            .Range(0, 9e15),
        self.bytes_per_second);
    visit(Field("latency_seconds",
                "How much longer a message takes over it than one within a machine; where the "
                "network_latency_seconds of a machine is longer, that counts.")
              .Unit("seconds")
              .Range(0, 60),
          self.latency_seconds);
  }
};

/// What the planner may place ranks on.
struct ClusterProfile {
  std::vector<WorkerProfile> workers;
  std::vector<LinkSpec> links = {};

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("workers", "The machines."), self.workers);
    visit(
        Field("links",
              "What lies between some of them; a link between two machines goes before one between "
              "their racks.")
            .Range(0, 256),
        self.links);
  }
};
WEFT_SPEC_JSON(extern, ClusterProfile);

}  // namespace weft
